// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// unavailableAfter is how long Karpenter has no available replica before node classes report that. A rollout keeps one.
const unavailableAfter = 2 * time.Minute

// Observe reports an unavailable Karpenter while a step before this one waits.
func (n *NodeClass) Observe(ctx context.Context, s *scope.Scope) error {
	_, err := reportStopped(ctx, s)
	return err
}

// reportPause reports a pause in the guest, if that is connected. An error must not look as if Karpenter ran on.
func (n *NodeClass) reportPause(ctx context.Context, s *scope.Scope) (result scope.Result) {
	var err error
	if s.Guest, result.RequeueAfter, err = n.Guest(ctx, s.HostedCluster); err == nil {
		_, err = reportStopped(ctx, s)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "Reporting the pause in the guest")
		result.RequeueAfter = unavailableAfter
	}
	return result
}

// reportStopped reports on each node class that Karpenter is paused or unavailable, which Karpenter itself can't. It reads node classes
// from the API server: the cache has few of their conditions.
func reportStopped(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	kind := s.Profile.NodeClass
	if s.Component == nil || s.Guest == nil || kind.StopLaunches == nil {
		return scope.Result{}, nil
	}
	available := meta.FindStatusCondition(s.Component.Status.Conditions, v1beta1.Available)
	if available == nil {
		return scope.Result{}, nil
	}
	since, reason, text := time.Now(), v1alpha1.PausedReason, "AutoNode is paused, and Karpenter doesn't run: no node is launched, replaced "+
		"or removed; ask the platform team to end the pause"
	switch available.Reason {
	case v1beta1.PausedReason:
	case v1beta1.ReplicasUnavailableReason:
		since = available.LastTransitionTime.Time
		if wait := time.Until(since.Add(unavailableAfter)); wait > 0 {
			return scope.Result{RequeueAfter: wait}, nil
		}
		reason, text = v1alpha1.KarpenterUnavailableReason, fmt.Sprintf("Karpenter has had no available replica since %s: no node is launched, "+
			"replaced or removed; ask the platform team to check Karpenter's pods", since.UTC().Format(time.RFC3339))
	default:
		return scope.Result{}, nil
	}
	classes := kind.NewList()
	switch err := s.Guest.Live.List(ctx, classes); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return scope.Result{}, nil
	case err != nil:
		return scope.Result{}, fmt.Errorf("listing node classes in the guest: %w", err)
	}
	return scope.Result{}, meta.EachListItem(classes, func(item runtime.Object) error {
		class, ok := item.(client.Object)
		before, copied := item.DeepCopyObject().(client.Object)
		if !ok || !copied || !kind.StopLaunches(class, since, reason, text) {
			return nil
		}
		// A merge patch replaces the list of conditions as a whole.
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := s.Guest.Live.Status().Patch(ctx, class, patch); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing the status of node class %s in the guest: %w", class.GetName(), err)
		}
		return nil
	})
}
