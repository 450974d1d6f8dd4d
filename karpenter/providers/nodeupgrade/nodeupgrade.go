// SPDX-License-Identifier: Apache-2.0

// Package nodeupgrade carries out an upgrade of nodes that proves itself: it chooses the payload of launches, and halts replacements.
package nodeupgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const (
	maxFileSize = 64 << 10
	maxNames    = 100             // the API's limit
	interval    = 5 * time.Second // between two decisions: a soak and the age of a pod are times
)

// Config of an Upgrade: the plan's file, the nodes' version by the command line, and whether the API server doesn't support a version.
type Config struct {
	Path, Version string
	Guest         client.Reader
	Machines      *machine.Provider
	TooOld        func(version string) bool
	Clock         clock.PassiveClock
}

// Upgrade is a singleton controller. Without a plan it holds nothing.
type Upgrade struct {
	Config
	observers change.Notifier
	mu        sync.Mutex
	raw       []byte
	plan      upgradeplan.Plan
	foreign   bool // the plan is for a Karpenter that is to replace this one, whose own version isn't proved
	// status is nil without a plan, and with a foreign one.
	status *v1alpha1.NodeUpgradeStatus
	// upgraded are the NodeClaims of the payload, with those that are being launched; nil until they are counted.
	upgraded sets.Set[types.UID]
}

// New returns an upgrade, with the plan that the file has now.
func New(config Config) *Upgrade {
	u := &Upgrade{Config: config}
	u.load(context.Background())
	return u
}

// OnChange calls f, which must not block, when the status has changed, and with it perhaps the payload of launches.
func (u *Upgrade) OnChange(f func()) { u.observers.Add(f) }

// load reads the plan if it has changed. Only the operator writes it.
func (u *Upgrade) load(ctx context.Context) {
	raw, err := filewatch.Read(u.Path, maxFileSize)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && bytes.Equal(raw, u.raw) {
		return
	}
	plan := upgradeplan.Plan{}
	if err == nil && len(raw) > 0 {
		err = json.Unmarshal(raw, &plan)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "reading the plan of an upgrade; keeping the previous one", "file", u.Path)
		return
	}
	own := strings.TrimPrefix(u.Version, "v")
	u.foreign = plan.To.Image != "" && plan.To.Version != own && plan.From.Version != own
	switch {
	case u.foreign || plan.To.Version != own || plan.To == plan.From:
		u.upgraded, u.status = nil, nil
	case u.status == nil || plan.To != u.plan.To || u.upgraded == nil: // or another replica has decided until now
		u.upgraded, u.status = nil, plan.Resume(plan.Status)
	}
	u.raw, u.plan = raw, plan
	u.observers.Notify()
}

// Status is the progress of the upgrade; nil without one.
func (u *Upgrade) Status() *v1alpha1.NodeUpgradeStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status.DeepCopy()
}

// Launch returns the payload of a NodeClaim's machine, or of the next one for nil; empty without a plan.
func (u *Upgrade) Launch(nodeClaim *karpv1.NodeClaim) upgradeplan.Release {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.foreign, u.plan.To == u.plan.From:
		return u.plan.From
	case u.status == nil:
		return upgradeplan.Release{}
	case u.status.Phase == v1alpha1.NodeUpgradeRolling, u.TooOld(u.plan.From.Version), nodeClaim != nil && u.upgraded.Has(nodeClaim.UID):
		return u.plan.To
	case u.missing() == 0:
		return u.plan.From
	case nodeClaim != nil:
		u.upgraded.Insert(nodeClaim.UID)
	}
	return u.plan.To
}

// missing counts canaries to launch.
func (u *Upgrade) missing() int {
	if u.upgraded == nil || u.status.Phase != v1alpha1.NodeUpgradeCanary {
		return 0
	}
	return max(u.plan.Canaries-len(u.upgraded), 0)
}

// Counts reports whether a NodeClaim has drifted from the payload, and neither its node class nor a MachineDeployment pins its version.
func (u *Upgrade) Counts(nodeClaim *karpv1.NodeClaim) bool {
	if !IsUpgrade(nodeClaim) {
		return false
	}
	ctx, ref, class := context.Background(), nodeClaim.Spec.NodeClassRef, &v1alpha1.ClusterAPINodeClass{}
	if m, err := u.Machines.ForNodeClaim(ctx, nodeClaim.UID); err == nil && drift.IsDeployed(m) {
		return false
	}
	known := ref != nil && u.Guest.Get(ctx, client.ObjectKey{Name: ref.Name}, class, client.UnsafeDisableDeepCopy) == nil
	return !known || class.Spec.Version == ""
}

// IsUpgrade reports whether a NodeClaim has drifted from its version or image.
func IsUpgrade(nodeClaim *karpv1.NodeClaim) bool {
	drifted := nodeClaim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted)
	return drifted.IsTrue() && (drifted.Reason == string(drift.VersionDrifted) || drifted.Reason == string(drift.NodeImageDrifted))
}

// Disruptable is how many nodes may be replaced for the payload now; unlimited if not ok.
func (u *Upgrade) Disruptable(ctx context.Context) (n int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.foreign || u.status == nil || u.status.Phase == v1alpha1.NodeUpgradeRolling {
		return 0, u.foreign
	}
	nodeClaims := &karpv1.NodeClaimList{}
	if err := u.Guest.List(ctx, nodeClaims, client.UnsafeDisableDeepCopy); err != nil {
		return 0, true
	}
	n = u.missing()
	for i := range nodeClaims.Items {
		if claim := &nodeClaims.Items[i]; claim.DeletionTimestamp != nil && u.Counts(claim) {
			n-- // its replacement may be to come
		}
	}
	return n, true
}

// Fail counts a NodeClaim whose machine or node didn't come. Those that are repaired are counted by their condition.
func (u *Upgrade) Fail(ctx context.Context, nodeClaim *karpv1.NodeClaim, reason string) {
	m, err := u.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && u.status != nil && u.isUpgraded(m) {
		u.fail(ctx, nodeClaim.Name, reason)
	}
}

func (u *Upgrade) fail(ctx context.Context, nodeClaim, reason string) {
	counted := func(failed string) bool { return strings.HasPrefix(failed, nodeClaim+"/") }
	if !slices.ContainsFunc(u.status.FailedNodes, counted) && len(u.status.FailedNodes) < maxNames {
		u.status.FailedNodes = append(u.status.FailedNodes, nodeClaim+"/"+reason)
		u.observers.Notify()
		log.FromContext(ctx).Info("node of the release failed", "NodeClaim", nodeClaim, "reason", reason, "release", u.plan.To.Image)
	}
}

func (u *Upgrade) isUpgraded(m *clusterv1.Machine) bool {
	return m.Annotations[v1alpha1.ReleaseAnnotation] == u.plan.To.Image
}

// Name of the controller.
func (*Upgrade) Name() string { return "nodeupgrade" }

// Register adds the controller to the manager.
func (u *Upgrade) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named(u.Name()).WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(u))
}

// Reconcile decides on the phase.
func (u *Upgrade) Reconcile(ctx context.Context) (reconciler.Result, error) {
	u.load(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.status == nil {
		return reconciler.Result{RequeueAfter: interval}, nil
	}
	now := u.Clock.Now()
	counted, err := u.count(ctx, now)
	if err != nil {
		return reconciler.Result{}, err
	}
	if next := decide(u.plan, u.status, counted, now); !equality.Semantic.DeepEqual(next, u.status) {
		if next.Phase != u.status.Phase {
			log.FromContext(ctx).Info("upgrade of nodes changed phase", "phase", next.Phase, "version", next.Version, "message", next.Message)
		}
		u.status = next
		u.observers.Notify()
	}
	return reconciler.Result{RequeueAfter: interval}, nil
}

// count counts the nodes and their pods.
func (u *Upgrade) count(ctx context.Context, now time.Time) (nodes, error) {
	n := nodes{workloads: map[string]*workload{}}
	claims, all, pods := &karpv1.NodeClaimList{}, &corev1.NodeList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{claims, all, pods} {
		if err := u.Guest.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return n, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	launched := sets.New[types.UID]()
	if err := u.Machines.Each(ctx, func(m *clusterv1.Machine) {
		if u.isUpgraded(m) {
			launched.Insert(types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel]))
		}
	}); err != nil {
		return n, err //nolint:wrapcheck // the provider's own
	}
	ready := map[string]bool{}
	for i := range all.Items {
		ready[all.Items[i].Name] = nodeutils.GetCondition(&all.Items[i], corev1.NodeReady).Status == corev1.ConditionTrue
	}
	slices.SortFunc(claims.Items, func(a, b karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) })
	upgraded, onNode := sets.New[types.UID](), map[string]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		switch is := launched.Has(claim.UID) || u.upgraded.Has(claim.UID); {
		case claim.DeletionTimestamp != nil:
			if why := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDisruptionReason); is && why.IsTrue() &&
				why.Reason == string(karpv1.DisruptionReasonUnhealthy) {
				u.fail(ctx, claim.Name, why.Reason)
			}
		case is:
			upgraded.Insert(claim.UID)
			n.add(claim, ready[claim.Status.NodeName])
			onNode[claim.Status.NodeName] = true
		default:
			if u.Counts(claim) {
				n.former++
			}
			onNode[claim.Status.NodeName] = false
		}
	}
	u.upgraded = upgraded
	for i := range pods.Items {
		if is, ok := onNode[pods.Items[i].Spec.NodeName]; ok && pods.Items[i].Spec.NodeName != "" {
			n.addPod(&pods.Items[i], is, now)
		}
	}
	return n, nil
}
