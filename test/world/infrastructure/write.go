// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// write writes what has changed: metadata and spec first, so that Cluster API never sees a provisioned machine without
// a provider ID, then the status, then an event for what changed in the world. The result reports when there is more to write.
func (r *machineReconciler) write(ctx context.Context, i *instance, before *infrav1.KwokMachine) (reconcile.Result, error) {
	after, status := i.KwokMachine, i.Status.DeepCopy()
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !slices.Equal(before.Finalizers, after.Finalizers) {
		written := after.DeepCopy()
		written.Status = before.Status
		patch := client.MergeFrom(before)
		if len(before.Finalizers) > 0 && !slices.Equal(before.Finalizers, after.Finalizers) { // this writes the whole list
			patch = client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		}
		if err := r.management.Patch(ctx, written, patch); err != nil {
			return retryConflict(fmt.Errorf("writing the machine: %w", err))
		}
		if !written.DeletionTimestamp.IsZero() && len(written.Finalizers) == 0 {
			return reconcile.Result{}, nil // gone
		}
		for n := range status.Conditions { // they are about what was just written
			if status.Conditions[n].ObservedGeneration == before.Generation {
				status.Conditions[n].ObservedGeneration = written.Generation
			}
		}
		i.memory.written = written.DeepCopy()
		before = written.DeepCopy()
		after = written
	}
	after.Status = *status
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		i.memory.passing = nil
		return reconcile.Result{}, nil
	}
	if wait := i.memory.hold(&before.Status, &after.Status, i.now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// The provider is the only writer of the status, and before isn't older than the last write. So the patch needs no
	// lock, which would fail whenever another client has changed the machine.
	if err := r.management.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	i.memory.written, i.memory.passing = after.DeepCopy(), nil
	r.recordChanges(before, after)
	return reconcile.Result{}, nil
}

// recordChanges makes an event for each change that a person would want to see.
func (r *machineReconciler) recordChanges(before, after *infrav1.KwokMachine) {
	for _, kind := range []string{
		infrav1.ConditionProvisioned, infrav1.ConditionJoined, infrav1.ConditionServing, infrav1.ConditionFaultsUnderstood,
	} { // that a machine has joined a cloud doesn't know
		was := meta.FindStatusCondition(before.Status.Conditions, kind)
		is := meta.FindStatusCondition(after.Status.Conditions, kind)
		if is == nil || (was != nil && was.Reason == is.Reason) {
			continue
		}
		switch is.Reason {
		case infrav1.ReasonProvisioned:
			r.recorder.Eventf(after, nil, corev1.EventTypeNormal, is.Reason, "Provision", "the machine runs in zone %q", after.Status.FailureDomain)
		case infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidFailureDomain, infrav1.ReasonInvalidBootstrapData,
			infrav1.ReasonRegistrationFailed, infrav1.ReasonCertificateRefused, infrav1.ReasonDead, infrav1.ReasonMalformedFault:
			r.recorder.Eventf(after, nil, corev1.EventTypeWarning, is.Reason, "Reconcile", "%s", is.Message)
		}
	}
}
