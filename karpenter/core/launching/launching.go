// SPDX-License-Identifier: Apache-2.0

// Package launching lets the first nodes of a burst join while Karpenter core launches the others.
//
// Upstream gap: core launches all NodeClaims of a burst at once, so that on few CPUs each launch takes as long as all of them. Meanwhile it
// writes conditions of NodeClaims that only nodes are disrupted by (docs/upstream/launches-at-once.md).
package launching

import (
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Pace wraps Karpenter core's lifecycle controller: a few NodeClaims at a time get the pass that launches them, in the order of their events.
// Those that are launched or being deleted wait for none.
func Pace(core controller.Controller, guest client.Reader, now clock.WithDelayedExecution) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		pace := newPace(paceSlots, now)
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			nodeClaim, err := read(ctx, guest, request)
			if err != nil {
				return reconcile.Result{}, err
			}
			if nodeClaim != nil && nodeClaim.DeletionTimestamp == nil && !isLaunched(nodeClaim) {
				end, err := pace.begin(ctx)
				if err != nil {
					return reconcile.Result{}, fmt.Errorf("waiting for other NodeClaims to be launched: %w", err)
				}
				defer end()
			}
			return of.Inner.Reconcile(ctx, request)
		}), nil
	})
}

// Ignore wraps Karpenter core's controller of what nodes are disrupted for, Drifted and Consolidatable: it ignores NodeClaims that aren't
// launched. Core would only write all their other conditions as unknown, and the pass that launches them would conflict with that.
func Ignore(core controller.Controller, guest client.Reader) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			if nodeClaim, err := read(ctx, guest, request); err != nil || nodeClaim == nil || !isLaunched(nodeClaim) {
				return reconcile.Result{}, err
			}
			return of.Inner.Reconcile(ctx, request)
		}), nil
	})
}

// read returns nil if there is no such NodeClaim. The NodeClaim is the cache's own.
func read(ctx context.Context, guest client.Reader, request reconcile.Request) (*karpv1.NodeClaim, error) {
	nodeClaim := &karpv1.NodeClaim{}
	err := guest.Get(ctx, types.NamespacedName{Name: request.Name}, nodeClaim, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // no NodeClaim is an answer
	case err != nil:
		return nil, fmt.Errorf("reading NodeClaim %s: %w", request.Name, err)
	}
	return nodeClaim, nil
}

// isLaunched changes nothing, unlike nodeClaim.StatusConditions.
func isLaunched(nodeClaim *karpv1.NodeClaim) bool {
	return slices.ContainsFunc(nodeClaim.Status.Conditions, func(condition status.Condition) bool {
		return condition.Type == karpv1.ConditionTypeLaunched && condition.Status == metav1.ConditionTrue
	})
}
