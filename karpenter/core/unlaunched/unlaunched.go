// SPDX-License-Identifier: Apache-2.0

// Package unlaunched keeps a NodeClaim that never gets a provider ID from stopping Karpenter core.
//
// Upstream gap: core's state counts as unsynced while any NodeClaim has no provider ID, and then core schedules no pod and
// disrupts no node. A NodeClaim that is being deleted counts too, for as long as a finalizer keeps it
// (docs/upstream/unlaunched-nodeclaim.md).
package unlaunched

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Config of Settle.
type Config struct {
	// Guest reads NodeClaims from the cache.
	Guest         client.Client
	CloudProvider karpcloudprovider.CloudProvider
	Cluster       *state.Cluster
}

// retryPeriod is how often core's controller repeats itself (stateRetryPeriod in its package state/informer).
const retryPeriod = time.Minute

// placeholder of the provider IDs of NodeClaims that never get one.
const placeholder = "unlaunched://"

// Settle wraps Karpenter core's controller of the state of NodeClaims. The state gets a NodeClaim that is being deleted and has
// no provider ID with a placeholder for one: core never launches it, and its node is one that is being deleted. If a launch
// that was under way still succeeds, the provider ID replaces the placeholder.
func Settle(core controller.Controller, config Config) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			nodeClaim := &karpv1.NodeClaim{}
			err := config.Guest.Get(ctx, request.NamespacedName, nodeClaim)
			switch {
			case apierrors.IsNotFound(err):
			case err != nil:
				return reconcile.Result{}, fmt.Errorf("reading NodeClaim %s: %w", request.Name, err)
			case nodeClaim.DeletionTimestamp != nil && nodeClaim.Status.ProviderID == "" && nodeclaimutils.IsManaged(nodeClaim, config.CloudProvider):
				nodeClaim.Status.ProviderID = placeholder + nodeClaim.Name
				config.Cluster.UpdateNodeClaim(nodeClaim)
				return reconcile.Result{RequeueAfter: retryPeriod}, nil
			}
			return of.Inner.Reconcile(ctx, request)
		}), nil
	})
}
