// SPDX-License-Identifier: Apache-2.0

package vacancy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const (
	// interval between two checks, and the longest after checks that failed.
	interval, maxBackOff = 5 * time.Second, time.Minute
	// evicted is how long after a node has gone its pods may take to be created again and found unschedulable.
	evicted = time.Minute
)

// ReleasedReason is the reason of the event on a NodePool when a vacancy ends that nothing has filled. Pods that need the capacity may find
// that another cluster has taken it.
const ReleasedReason = "VacancyReleased"

// Name of the controller.
func (k *Keeper) Name() string { return "nodepool.vacancies" }

// Register implements operatorpkg's controller.
func (k *Keeper) Register(_ context.Context, m manager.Manager) error {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, maxBackOff)
	return ctrl.NewControllerManagedBy(m).Named(k.Name()).WithOptions(ctrlcontroller.Options{RateLimiter: limiter}).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(k))
}

// Reconcile ends the vacancies whose replacements are initialized or that no pod needs any more, and reports the others on their NodePools.
func (k *Keeper) Reconcile(ctx context.Context) (reconciler.Result, error) {
	var errs []error
	for _, v := range k.All() {
		errs = append(errs, k.check(ctx, &v))
	}
	return reconciler.Result{RequeueAfter: interval}, errors.Join(append(errs, k.report(ctx))...)
}

// check ends a vacancy that needn't be held any more.
func (k *Keeper) check(ctx context.Context, v *Vacancy) error {
	nodePool := &karpv1.NodePool{}
	err := k.Guest.Get(ctx, types.NamespacedName{Name: v.NodePool}, nodePool)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading NodePool %s: %w", v.NodePool, err)
	case apierrors.IsNotFound(err), nodePool.DeletionTimestamp != nil:
		k.End(v.NodeClaim)
		return nil
	case v.Filler != "":
		return k.checkFilled(ctx, nodePool, v)
	case v.expired(k.Clock.Now()):
		k.expire(ctx, nodePool, v, "no replacement was launched in time")
		return nil
	case v.Empty.IsZero():
		return nil
	}
	if v.NoSpareHost {
		k.Unavailable.Clear(v.Offering) // its host comes back
	}
	if k.Clock.Since(v.Empty) < evicted {
		return nil
	}
	needed, err := k.needed(ctx, nodePool)
	if err == nil && !needed {
		k.End(v.NodeClaim)
	}
	return err
}

// checkFilled ends a vacancy whose replacement is initialized, or has been replacing for too long.
func (k *Keeper) checkFilled(ctx context.Context, nodePool *karpv1.NodePool, v *Vacancy) error {
	nodeClaim := &karpv1.NodeClaim{}
	err := k.Guest.Get(ctx, types.NamespacedName{Name: v.Filler}, nodeClaim)
	switch {
	case apierrors.IsNotFound(err):
		k.Release(v.Filler)
	case err != nil:
		return fmt.Errorf("reading NodeClaim %s: %w", v.Filler, err)
	case nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue():
		k.End(v.NodeClaim)
		log.FromContext(ctx).Info("replaced a node that was terminated first", "NodePool", v.NodePool, "NodeClaim", v.NodeClaim,
			"replacement", v.Filler)
	case v.expired(k.Clock.Now()):
		k.expire(ctx, nodePool, v, "its replacements weren't initialized in time")
	}
	return nil
}

func (k *Keeper) expire(ctx context.Context, nodePool *karpv1.NodePool, v *Vacancy, why string) {
	k.End(v.NodeClaim)
	log.FromContext(ctx).Info("releasing the vacancy of a terminated node", "NodePool", v.NodePool, "NodeClaim", v.NodeClaim, "why", why)
	k.Recorder.Publish(events.Event{
		InvolvedObject: nodePool, Type: corev1.EventTypeWarning, Reason: ReleasedReason,
		Message:      fmt.Sprintf("Releasing the capacity of NodeClaim %s, which was terminated before its replacement: %s", v.NodeClaim, why),
		DedupeValues: []string{string(nodePool.UID), v.NodeClaim},
	})
}

// needed reports whether a NodePool may launch a node into a vacancy: pods wait for one, or a static NodePool has too few.
func (k *Keeper) needed(ctx context.Context, nodePool *karpv1.NodePool) (bool, error) {
	if nodePool.Spec.Replicas == nil {
		pods, err := nodeutils.GetProvisionablePods(ctx, k.Guest)
		if err != nil {
			return true, fmt.Errorf("listing pending pods: %w", err)
		}
		return len(pods) > 0, nil
	}
	running := func(n *karpv1.NodeClaim) bool { return n.DeletionTimestamp == nil }
	n, err := k.nodeClaims(ctx, nodePool, running)
	return n < *nodePool.Spec.Replicas, err
}

// report reports on each NodePool with vacancies that its nodes are terminated first, and why, until none of them has to be replaced.
func (k *Keeper) report(ctx context.Context) error {
	full := map[string]string{}
	for _, v := range k.All() {
		full[v.NodePool] = "nodes are terminated before their replacements are launched: " + v.Full
	}
	nodePools := &karpv1.NodePoolList{}
	if err := k.Guest.List(ctx, nodePools, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodePools: %w", err)
	}
	var errs []error
	for i := range nodePools.Items {
		errs = append(errs, k.reportOn(ctx, &nodePools.Items[i], full[nodePools.Items[i].Name]))
	}
	return errors.Join(errs...)
}

// reportOn reports a message on a NodePool; empty for no vacancy.
func (k *Keeper) reportOn(ctx context.Context, nodePool *karpv1.NodePool, message string) error {
	condition := nodePool.StatusConditions(status.WithObservedOnly()).Get(v1alpha1.TerminateFirstCondition)
	if condition == nil && message == "" || condition != nil && condition.Message == message {
		return nil
	}
	changed := nodePool.DeepCopy()
	if message != "" {
		changed.StatusConditions().SetTrueWithReason(v1alpha1.TerminateFirstCondition, v1alpha1.TerminateFirstCondition, message)
	} else {
		isDrifted := func(n *karpv1.NodeClaim) bool {
			return n.StatusConditions(status.WithObservedOnly()).IsTrue(karpv1.ConditionTypeDrifted)
		}
		if drifted, err := k.nodeClaims(ctx, nodePool, isDrifted); err != nil || drifted > 0 {
			return err
		}
		if err := changed.StatusConditions().Clear(v1alpha1.TerminateFirstCondition); err != nil {
			return fmt.Errorf("clearing the condition of NodePool %s: %w", nodePool.Name, err)
		}
	}
	// The patch keeps conditions of other writers.
	err := k.Guest.Status().Patch(ctx, changed, client.MergeFromWithOptions(nodePool, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("updating the conditions of NodePool %s: %w", nodePool.Name, err)
	}
	return nil
}

// nodeClaims counts the NodeClaims of a NodePool that match.
func (k *Keeper) nodeClaims(ctx context.Context, nodePool *karpv1.NodePool, matches func(*karpv1.NodeClaim) bool) (n int64, err error) {
	nodeClaims := &karpv1.NodeClaimList{}
	labels := client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool.Name}
	if err := k.Guest.List(ctx, nodeClaims, labels, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("listing NodeClaims of NodePool %s: %w", nodePool.Name, err)
	}
	for i := range nodeClaims.Items {
		if matches(&nodeClaims.Items[i]) {
			n++
		}
	}
	return n, nil
}
