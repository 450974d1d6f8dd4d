// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// RegistrationTimeout is after how long Karpenter deletes a NodeClaim whose node hasn't registered. It counts from
// the last transition of the condition Registered (registrationTimeout in Karpenter's package nodeclaim/lifecycle).
// Karpenter doesn't export it; a test checks it against Karpenter's own controller.
const RegistrationTimeout = 15 * time.Minute

// DeadlinesConfig is that of Extend.
type DeadlinesConfig struct {
	// HasMachine reports whether a NodeClaim has a Machine. It returns true where that is unknown.
	HasMachine func(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool
	// Passed reports whether a condition's reason reports that a deadline has passed.
	Passed func(reason string) bool
	// Suspended reports whether the management cluster doesn't answer.
	Suspended func() bool
	Clock     clock.PassiveClock
}

// Restart makes Karpenter's registration timeout count from the given time, and sets the reason and message of the
// condition Registered. It returns false on a conflict: the caller reads the NodeClaim again.
func Restart(ctx context.Context, guest client.Client, nodeClaim *karpv1.NodeClaim, from time.Time, reason, message string) (bool, error) {
	stored := nodeClaim.DeepCopy()
	for i := range nodeClaim.Status.Conditions {
		if condition := &nodeClaim.Status.Conditions[i]; condition.Type == karpv1.ConditionTypeRegistered {
			condition.LastTransitionTime, condition.Reason, condition.Message = metav1.NewTime(from), reason, message
		}
	}
	err := guest.Status().Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("restarting the registration timeout of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	return true, nil
}

// Extend returns the reconciler of Karpenter's NodeClaim lifecycle controller in place of its own: it times out a NodeClaim that has a
// Machine only after Restart has moved the timeout into the past. Karpenter counts from times in the NodeClaim's status, and so includes
// the time in which no Karpenter ran or the management cluster was unreachable. When that ends, either controller may read the NodeClaim
// first. Therefore Karpenter's controller reads shifted times. They are never written, and no other controller reads them.
//
// Upstream gap: core's launch and registration timeouts are the same for every provider and node class, and one of them isn't exported
// (docs/internals/upstream/registration-timeout.md).
func Extend(core reconcile.ObjectReconciler[*karpv1.NodeClaim], guest client.Client, config DeadlinesConfig) Middleware {
	return func(Registered) reconcile.Reconciler {
		return reconcile.AsReconciler(&extended{Client: guest, config: config}, core)
	}
}

type extended struct {
	client.Client
	config DeadlinesConfig

	mu sync.Mutex
	// since is when a controller could first act: the first read, or the last one while the management cluster was
	// unreachable.
	since time.Time
}

// Get implements client.Client.
func (r *extended) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if err := r.Client.Get(ctx, key, object, opts...); err != nil {
		return err
	}
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && nodeClaim.DeletionTimestamp == nil {
		r.extend(ctx, nodeClaim)
	}
	return nil
}

// extend shifts the times from which Karpenter counts its timeouts.
func (r *extended) extend(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	launched := false
	for _, condition := range nodeClaim.Status.Conditions {
		launched = launched || condition.Type == karpv1.ConditionTypeLaunched && condition.Status == metav1.ConditionTrue
	}
	from := r.acting()
	if launched && !r.config.Suspended() {
		if !r.config.HasMachine(ctx, nodeClaim) {
			// Karpenter's own timeout ends a NodeClaim that has no Machine.
			return
		}
		from = r.config.Clock.Now()
	}
	for i := range nodeClaim.Status.Conditions {
		condition := &nodeClaim.Status.Conditions[i]
		counted := condition.Type == karpv1.ConditionTypeLaunched || condition.Type == karpv1.ConditionTypeRegistered
		if counted && !r.config.Passed(condition.Reason) && condition.Status != metav1.ConditionTrue &&
			condition.LastTransitionTime.Time.Before(from) {
			condition.LastTransitionTime = metav1.NewTime(from)
		}
	}
}

// acting returns the time since which a controller can act.
func (r *extended) acting() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || r.config.Suspended() {
		r.since = r.config.Clock.Now()
	}
	return r.since
}
