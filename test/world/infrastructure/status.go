// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// conflictDelay is the time after which what failed for a stale read is tried again.
const conflictDelay = 20 * time.Millisecond

func setCondition(object conditions.Setter, kind string, status metav1.ConditionStatus, reason, message string) {
	conditions.Set(object, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
}

// unpause takes back the condition Paused where there is one.
func unpause(object conditions.Setter) {
	if conditions.Has(object, infrav1.ConditionPaused) {
		setCondition(object, infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused, "")
	}
}

// writeStatus writes the difference between two statuses of an object, if there is one. It fails with a conflict when before
// was stale, so that a stale read never undoes what was written since.
func writeStatus(ctx context.Context, management client.Client, before, after client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := management.Status().Patch(ctx, after, patch); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// retryConflict turns a conflict into another try: it is no error, the cache has only not caught up yet.
func retryConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
