// SPDX-License-Identifier: Apache-2.0

// Package nodepoolgone lets Karpenter core's state follow NodeClaims whose NodePool has been deleted.
//
// Upstream gap: core adds what a NodeClaim costs to its NodePool's. If the NodePool is deleted first, that fails for each
// of its NodeClaims until it has gone, and each failure is logged as an error: ten times in five seconds
// (docs/upstream/nodepool-gone.md).
package nodepoolgone

import (
	"context"
	"errors"
	"strings"

	"github.com/awslabs/operatorpkg/controller"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/apis"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Ignore wraps Karpenter core's controller of the state of NodeClaims: a reconciliation that ends because the NodePool
// isn't found counts as done. By then the state has the NodeClaim; only its cost, which is the NodePool's, doesn't count.
func Ignore(core controller.Controller) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			result, err := of.Inner.Reconcile(ctx, request)
			if isNodePoolGone(err) {
				return reconcile.Result{}, nil
			}
			return result, err
		}), nil
	})
}

func isNodePoolGone(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	// A cache names the kind, an API server the resource.
	details := status.Status().Details
	return details != nil && details.Group == apis.Group && strings.HasPrefix(strings.ToLower(details.Kind), "nodepool")
}
