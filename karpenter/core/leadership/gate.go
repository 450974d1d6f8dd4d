// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// ErrSuspended is what a suspended cloud provider returns. Karpenter tries again, and leaves alone what it can't decide about.
var ErrSuspended = errors.New("the management cluster doesn't answer; nothing is decided until it does")

// ManagementUnreachableReason is of the NodeClaim's condition Launched while its Machine can't be created because the
// management cluster doesn't answer. It goes on by itself.
const ManagementUnreachableReason = "ManagementUnreachable"

// Gate returns the cloud provider, except that it decides nothing while suspended: no instance types means that nothing is
// launched, consolidated or replaced.
func Gate(provider cloudprovider.CloudProvider, suspended func() bool) cloudprovider.CloudProvider {
	return gate{CloudProvider: provider, suspended: suspended}
}

type gate struct {
	cloudprovider.CloudProvider
	suspended func() bool
}

// Create implements cloudprovider.CloudProvider.
func (g gate) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	if g.suspended() {
		return nil, cloudprovider.NewCreateError(ErrSuspended, ManagementUnreachableReason, ErrSuspended.Error())
	}
	return g.CloudProvider.Create(ctx, nodeClaim)
}

// Delete implements cloudprovider.CloudProvider.
func (g gate) Delete(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if g.suspended() {
		return ErrSuspended
	}
	return g.CloudProvider.Delete(ctx, nodeClaim)
}

// Get implements cloudprovider.CloudProvider.
func (g gate) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	if g.suspended() {
		return nil, ErrSuspended
	}
	return g.CloudProvider.Get(ctx, providerID)
}

// List implements cloudprovider.CloudProvider.
func (g gate) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	if g.suspended() {
		return nil, ErrSuspended
	}
	return g.CloudProvider.List(ctx)
}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (g gate) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	if g.suspended() {
		return nil, ErrSuspended
	}
	return g.CloudProvider.GetInstanceTypes(ctx, nodePool)
}

// IsDrifted implements cloudprovider.CloudProvider. No answer isn't the answer that nothing has drifted, which would take
// back what Karpenter knows already.
func (g gate) IsDrifted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (cloudprovider.DriftReason, error) {
	if g.suspended() {
		return "", ErrSuspended
	}
	return g.CloudProvider.IsDrifted(ctx, nodeClaim)
}
