// SPDX-License-Identifier: Apache-2.0

// Package status counts what AutoNode runs in guest clusters, and says whether the nodes run the version that they should.
package status

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// recheck is how often to look again at what no watch tells: the API server's version while nodes wait for it, and a disruption
// budget whose schedule opens.
const recheck = 30 * time.Second

// Config is what New needs.
type Config struct {
	// Clock decides which disruption budgets are active; nil is the real one.
	Clock clock.Clock
	// ServerVersion asks a guest's API server for its version; nil does it by discovery.
	ServerVersion func(ctx context.Context, guest *rest.Config) (string, error)
}

// Status is the step.
type Status struct {
	Config
	// versions remembers the API servers' versions: of serverVersion by the HostedCluster's UID.
	versions *lru.Cache
}

var _ scope.Step = (*Status)(nil)

// New returns the step.
func New(config Config) *Status {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.ServerVersion == nil {
		config.ServerVersion = discoverVersion
	}
	return &Status{Config: config, versions: lru.New(1 << 14)}
}

// Name implements scope.Step.
func (*Status) Name() string { return "status" }

// Reconcile counts, and owns NodesUpToDate. While the guest can't be reached the last known numbers stay.
func (st *Status) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Guest == nil || !s.Guest.Complete {
		return scope.Result{}, nil
	}
	inventory, err := take(ctx, s)
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
	counts.DriftedNodeCount = ptr.To(inventory.drifted())
	counts.NodeVersions = inventory.versions()

	desired := desiredVersion(s)
	if s.HostedCluster.Spec.AutoNode == nil || !s.HostedCluster.DeletionTimestamp.IsZero() || desired == "" {
		// Nodes that are being drained aren't meant to be up to date.
		counts.OutdatedNodeCount = nil
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)
		return scope.Result{}, nil
	}
	server, err := st.serverVersion(ctx, s, desired, inventory.newest)
	if err != nil {
		return scope.Result{}, err
	}
	v := judge(inventory, desired, server, st.Clock)
	counts.OutdatedNodeCount = ptr.To(v.outdated)
	meta.SetStatusCondition(&s.HostedCluster.Status.Conditions, metav1.Condition{
		Type:               v1beta1.NodesUpToDate,
		Status:             v.status,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: s.HostedCluster.Generation,
	})
	if v.status != metav1.ConditionTrue {
		return scope.Result{RequeueAfter: recheck}, nil
	}
	return scope.Result{}, nil
}

// Observe does the same while a step before this one waits: nothing but status is written.
func (st *Status) Observe(ctx context.Context, s *scope.Scope) error {
	_, err := st.Reconcile(ctx, s)
	return err
}

// desiredVersion is the payload's node version: of the payload that is resolved now, else of the one resolved last.
func desiredVersion(s *scope.Scope) string {
	if s.Release != nil {
		if v, err := s.Karpenter.NodeVersion(); err == nil {
			return plain(v)
		}
	}
	if v := s.HostedCluster.Status.Version; v != nil && v.Desired != nil {
		return plain(v.Desired.NodeVersion)
	}
	return ""
}

// inventory is what Karpenter runs in a guest.
type inventory struct {
	nodes  []corev1.Node
	claims []karpv1.NodeClaim
	pools  map[string]*karpv1.NodePool
	// pinned versions by the node class's name: its admin wants these, whatever the payload says.
	pinned map[string]string
	// group of the node classes that pinned is about.
	group string
	// newest is the newest version that Karpenter gives to nodes now; empty if it hasn't said.
	newest string
}

func take(ctx context.Context, s *scope.Scope) (inventory, error) {
	guest := s.Guest.Cached
	nodes, claims, pools := &corev1.NodeList{}, &karpv1.NodeClaimList{}, &karpv1.NodePoolList{}
	if err := guest.List(ctx, nodes, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return inventory{}, fmt.Errorf("listing nodes in the guest: %w", err)
	}
	for _, list := range []client.ObjectList{claims, pools} {
		if err := guest.List(ctx, list); err != nil {
			return inventory{}, fmt.Errorf("listing %T in the guest: %w", list, err)
		}
	}
	i := inventory{nodes: nodes.Items, claims: claims.Items, pools: map[string]*karpv1.NodePool{}, pinned: map[string]string{}, group: s.Profile.NodeClass.Group}
	for n := range pools.Items {
		i.pools[pools.Items[n].Name] = &pools.Items[n]
	}
	if s.Profile.Versions == nil {
		return i, nil
	}
	classes, err := s.Profile.Versions(ctx, guest)
	if err != nil {
		return inventory{}, err
	}
	for _, class := range classes {
		if class.Pinned != "" {
			i.pinned[class.Name] = plain(class.Pinned)
		}
		if v := plain(class.Given); compare(v, i.newest) > 0 {
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
	return count(int(min(total.Value(), math.MaxInt32))) // Value rounds up
}

func (i inventory) drifted() int32 {
	n := 0
	for c := range i.claims {
		if i.claims[c].StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() {
			n++
		}
	}
	return count(n)
}

// versions counts the nodes by version, newest first.
func (i inventory) versions() []v1beta1.NodeVersion {
	byVersion := map[string]int32{}
	for n := range i.nodes {
		byVersion[kubelet(&i.nodes[n])]++
	}
	versions := make([]v1beta1.NodeVersion, 0, len(byVersion))
	for v, n := range byVersion {
		versions = append(versions, v1beta1.NodeVersion{Version: v, Count: n})
	}
	slices.SortFunc(versions, func(a, b v1beta1.NodeVersion) int { return compare(b.Version, a.Version) })
	return versions
}

// wanted returns the version that each node should run, by the node's name.
func (i inventory) wanted(desired string) map[string]string {
	wanted := map[string]string{}
	for n := range i.nodes {
		wanted[i.nodes[n].Name] = desired
	}
	for c := range i.claims {
		claim := &i.claims[c]
		if ref := claim.Spec.NodeClassRef; ref != nil && ref.Group == i.group && claim.Status.NodeName != "" {
			if v, ok := i.pinned[ref.Name]; ok {
				wanted[claim.Status.NodeName] = v
			}
		}
	}
	return wanted
}

func kubelet(node *corev1.Node) string {
	if v := plain(node.Status.NodeInfo.KubeletVersion); v != "" {
		return v
	}
	return "unknown"
}

// plain removes what builds differ in: v1.36.3+0a1b2c is 1.36.3.
func plain(v string) string {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	return v
}

// compare orders versions; what isn't a version comes before all that are.
func compare(a, b string) int {
	x, errX := version.ParseSemantic(a)
	y, errY := version.ParseSemantic(b)
	switch {
	case errX != nil && errY != nil:
		return strings.Compare(a, b)
	case errX != nil:
		return -1
	case errY != nil:
		return 1
	case x.LessThan(y):
		return -1
	case y.LessThan(x):
		return 1
	}
	return 0
}

func count(n int) int32 {
	return int32(min(n, math.MaxInt32))
}
