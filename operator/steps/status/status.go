// SPDX-License-Identifier: Apache-2.0

// Package status counts AutoNode's nodes in guest clusters, and reports whether the nodes run the desired version and whether more can be
// launched.
package status

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// recheck is the interval between checks of state that no watch shows: the API server's version while nodes wait for it,
// and a disruption budget's schedule.
const recheck = 30 * time.Second

// Config is the input of New.
type Config struct {
	// Clock decides which disruption budgets are active; defaults to the real one.
	Clock clock.Clock
	// Versions returns the versions of the guests' API servers.
	Versions *guest.Versions
	// ApprovedByOthers returns which certificate request another approver than the operator has approved or has to, and until when that
	// counts; nil if it isn't known.
	ApprovedByOthers func(hostedCluster *v1beta1.HostedCluster) (reason, text string, until time.Time, ok bool)
}

// Status is the step.
type Status struct {
	Config
}

var _ scope.Step = (*Status)(nil)

// New returns the step.
func New(config Config) *Status {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Status{Config: config}
}

// Name implements scope.Step.
func (*Status) Name() string { return "status" }

// Reconcile counts, and sets NodesUpToDate. While the guest is unreachable the last numbers stay.
func (st *Status) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Guest == nil && s.Cluster == nil {
		zero(s)
		return scope.Result{}, nil
	}
	if s.Guest == nil || !s.Guest.Complete {
		return scope.Result{}, nil
	}
	inventory, err := readInventory(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	if s.HostedCluster.Status.AutoNode == nil {
		s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{}
	}
	counts := s.HostedCluster.Status.AutoNode
	counts.NodeCount = ptr.To(count(len(inventory.nodes)))
	counts.NodeClaimCount = ptr.To(count(len(inventory.claims)))
	counts.VCPUs = ptr.To(inventory.vcpus())
	counts.DriftedNodeCount = ptr.To(count(len(inventory.drifted())))
	counts.NodeVersions = inventory.versions()
	reportClasses(s, inventory.classes)
	result := scope.Result{RequeueAfter: st.reportApprovals(s)}

	desired := desiredVersion(s)
	if s.HostedCluster.Spec.AutoNode == nil || !s.HostedCluster.DeletionTimestamp.IsZero() || desired == "" {
		// Draining nodes don't count as outdated.
		counts.OutdatedNodeCount = nil
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)
		return result, nil
	}
	// An API server isn't downgraded, so it is asked again only while it is older than the nodes' desired version.
	// That happens at most every recheck, unless Karpenter has noticed an upgrade: the version that Karpenter gives
	// to nodes (newest) never exceeds the API server's.
	server, err := st.Versions.Server(ctx, s, func(known string, age time.Duration) bool {
		return guest.CompareVersions(known, desired) < 0 && (age >= recheck || guest.CompareVersions(inventory.newest, known) > 0)
	})
	if err != nil {
		return scope.Result{}, err
	}
	v := decide(inventory, desired, server, s.NodeUpgrade, st.Clock)
	counts.OutdatedNodeCount = ptr.To(v.outdated)
	s.SetCondition(metav1.Condition{Type: v1beta1.NodesUpToDate, Status: v.status, Reason: v.reason, Message: v.message})
	if v.status == metav1.ConditionTrue || v.reason == v1beta1.NodeUpgradeHeldReason || v.reason == v1beta1.WaitsForRingReason {
		return result, nil // what holds nodes back is watched, or has a time of its own
	}
	result.RequeueAfter = scope.Sooner(result.RequeueAfter, recheck)
	return result, nil
}

// reportApprovals sets NodeIdentityEnforced where another approver approves certificates or has to, and returns when to check that again.
func (st *Status) reportApprovals(s *scope.Scope) (requeueAfter time.Duration) {
	var reason, text string
	var until time.Time
	found := false
	if st.ApprovedByOthers != nil {
		reason, text, until, found = st.ApprovedByOthers(s.HostedCluster)
	}
	if !found {
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.NodeIdentityEnforced)
		return 0
	}
	if reason == v1beta1.ApprovedByAnotherReason {
		text += "; take away that approver's permission"
	}
	s.SetCondition(metav1.Condition{Type: v1beta1.NodeIdentityEnforced, Status: metav1.ConditionFalse, Reason: reason, Message: text})
	return max(until.Sub(st.Clock.Now()), time.Second)
}

// zero reports that nothing is left of a deleted Cluster: Cluster API deletes its Machines first. If nodes aren't
// Machines their number is unknown, and the last numbers stay.
func zero(s *scope.Scope) {
	counts := s.HostedCluster.Status.AutoNode
	if counts == nil || counts.NodeCount == nil || s.Profile == nil || s.Profile.Unattended != nil {
		return
	}
	for _, count := range []**int32{&counts.NodeCount, &counts.NodeClaimCount, &counts.VCPUs, &counts.DriftedNodeCount} {
		*count = ptr.To[int32](0)
	}
	counts.OutdatedNodeCount, counts.NodeVersions = nil, nil
	for _, condition := range []string{
		v1beta1.NodesUpToDate, v1beta1.NodeClassReady, v1beta1.OfferingsAvailable, v1beta1.NodeIdentityEnforced,
	} {
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, condition)
	}
}

// Observe does the same while a step before this one waits: it writes only status.
func (st *Status) Observe(ctx context.Context, s *scope.Scope) error {
	_, err := st.Reconcile(ctx, s)
	return err
}

// desiredVersion is the node version of the resolved payload, else of the last resolved one.
func desiredVersion(s *scope.Scope) string {
	if s.Release != nil {
		if v, err := s.Karpenter.NodeVersion(); err == nil {
			return guest.PlainVersion(v)
		}
	}
	if v := s.HostedCluster.Status.Version; v != nil && v.Desired != nil {
		return guest.PlainVersion(v.Desired.NodeVersion)
	}
	return ""
}

// inventory is Karpenter's objects and nodes in a guest.
type inventory struct {
	nodes  []corev1.Node
	claims []karpv1.NodeClaim
	pools  map[string]*karpv1.NodePool
	// pinned versions by node class: its admin sets these, independent of the payload.
	pinned map[string]string
	// images that hold nodes at an older version.
	images map[kind]provider.OlderImage
	// group of the node classes.
	group string
	// classes are the reports of the guest's node classes.
	classes []provider.NodeClassReport
	// newest is the newest version that Karpenter gives to nodes now; empty if unknown.
	newest string
}

// kind of nodes that may boot from an older image. Of several images the newest counts: Karpenter launches from that one.
type kind struct{ nodeClass, instanceType string }

func readInventory(ctx context.Context, s *scope.Scope) (inventory, error) {
	cached := s.Guest.Cached
	nodes, claims, pools := &corev1.NodeList{}, &karpv1.NodeClaimList{}, &karpv1.NodePoolList{}
	if err := cached.List(ctx, nodes, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return inventory{}, fmt.Errorf("listing nodes in the guest: %w", err)
	}
	for _, list := range []client.ObjectList{claims, pools} {
		if err := cached.List(ctx, list); err != nil {
			return inventory{}, fmt.Errorf("listing %T in the guest: %w", list, err)
		}
	}
	i := inventory{
		nodes: nodes.Items, claims: claims.Items, pools: map[string]*karpv1.NodePool{}, pinned: map[string]string{},
		images: map[kind]provider.OlderImage{}, group: s.Profile.NodeClass.Group,
	}
	for n := range pools.Items {
		i.pools[pools.Items[n].Name] = &pools.Items[n]
	}
	if s.Profile.NodeClasses == nil {
		return i, nil
	}
	classes, err := s.Profile.NodeClasses(ctx, cached)
	if err != nil {
		return inventory{}, err
	}
	i.classes = classes
	for _, class := range classes {
		if class.Pinned != "" {
			i.pinned[class.Name] = guest.PlainVersion(class.Pinned)
		}
		for _, image := range class.Images {
			key := kind{class.Name, image.InstanceType}
			if known, ok := i.images[key]; !ok || guest.CompareVersions(guest.PlainVersion(image.Version), guest.PlainVersion(known.Version)) > 0 {
				i.images[key] = image
			}
		}
		if v := guest.PlainVersion(class.Given); guest.CompareVersions(v, i.newest) > 0 {
			i.newest = v
		}
	}
	return i, nil
}

func (i inventory) vcpus() int32 {
	total := resource.Quantity{}
	for n := range i.nodes {
		total.Add(i.nodes[n].Status.Capacity[corev1.ResourceCPU])
	}
	return count(int(max(0, min(total.Value(), math.MaxInt32)))) // Value rounds up
}

// drifted are the nodes of the NodeClaims that Karpenter is to replace.
func (i inventory) drifted() (nodes []string) {
	for c := range i.claims {
		if i.claims[c].StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() {
			nodes = append(nodes, i.claims[c].Status.NodeName)
		}
	}
	return nodes
}

const (
	// maxVersionCount is how many versions are counted separately. A cluster has two or three, but the guest's admin can
	// make nodes that report anything.
	maxVersionCount = 8
	// maxVersion limits the length of a version, in bytes.
	maxVersion = 64
	// others counts the nodes of all further versions.
	others = "others"
)

// versions counts the nodes by version, newest first.
func (i inventory) versions() []v1beta1.NodeVersion {
	byVersion := map[string]int{}
	for n := range i.nodes {
		byVersion[kubelet(&i.nodes[n])]++
	}
	return frequent(byVersion)
}

// frequent returns the most frequent versions, newest first, then the others as one.
func frequent(byVersion map[string]int) []v1beta1.NodeVersion {
	versions := make([]v1beta1.NodeVersion, 0, len(byVersion))
	for v, n := range byVersion {
		versions = append(versions, v1beta1.NodeVersion{Version: v, Count: count(n)})
	}
	newest := func(a, b v1beta1.NodeVersion) int { return guest.CompareVersions(b.Version, a.Version) }
	if len(versions) > maxVersionCount {
		// A guest's admin can make as many versions as Nodes, and to parse versions in each comparison costs more than the rest of a status.
		slices.SortFunc(versions, func(a, b v1beta1.NodeVersion) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.Version, a.Version))
		})
		rest := 0
		for _, v := range versions[maxVersionCount:] {
			rest += int(v.Count)
		}
		versions = append(versions[:maxVersionCount:maxVersionCount], v1beta1.NodeVersion{Version: others, Count: count(rest)})
	}
	slices.SortFunc(versions, newest)
	return versions
}

// wanted returns each node's desired version, and the image that it boots from if that is older than nodes should be, by node name.
func (i inventory) wanted(desired string) (versions map[string]string, imaged map[string]provider.OlderImage) {
	versions, imaged = map[string]string{}, map[string]provider.OlderImage{}
	for n := range i.nodes {
		versions[i.nodes[n].Name] = desired
	}
	for c := range i.claims {
		claim := &i.claims[c]
		ref, node := claim.Spec.NodeClassRef, claim.Status.NodeName
		if ref == nil || ref.Group != i.group || node == "" {
			continue
		}
		if v, ok := i.pinned[ref.Name]; ok {
			versions[node] = v
		}
		if image, ok := i.images[kind{ref.Name, claim.Labels[corev1.LabelInstanceTypeStable]}]; ok {
			imaged[node] = image
		}
	}
	return versions, imaged
}

// kubelet returns a node's version; empty for a malformed one.
func kubelet(node *corev1.Node) string {
	v := guest.PlainVersion(node.Status.NodeInfo.KubeletVersion)
	if _, err := utilversion.ParseSemantic(v); err != nil || len(v) > maxVersion {
		return unknown
	}
	return v
}

// unknown is the version of a node whose own is malformed.
const unknown = "unknown"

func count(n int) int32 {
	return int32(min(n, math.MaxInt32))
}
