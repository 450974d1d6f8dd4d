// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// ErrSuspended is the error of a suspended cloud provider. Karpenter retries, and changes nothing meanwhile.
var ErrSuspended = errors.New("management cluster doesn't answer; Karpenter changes nothing until it does")

// ManagementUnreachableReason is the reason of the NodeClaim's condition Launched while the management cluster
// doesn't answer, so that its Machine can't be created. Karpenter retries.
const ManagementUnreachableReason = "ManagementUnreachable"

// Gate wraps the cloud provider: every call fails while suspended. Without instance types, Karpenter launches,
// consolidates and replaces nothing.
func Gate(provider karpcloudprovider.CloudProvider, suspended func() bool) karpcloudprovider.CloudProvider {
	return gate{CloudProvider: provider, suspended: suspended}
}

type gate struct {
	karpcloudprovider.CloudProvider
	suspended func() bool
}

// Create implements cloudprovider.CloudProvider.
func (g gate) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	if g.suspended() {
		return nil, karpcloudprovider.NewCreateError(ErrSuspended, ManagementUnreachableReason, ErrSuspended.Error())
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
func (g gate) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	if g.suspended() {
		return nil, ErrSuspended
	}
	return g.CloudProvider.GetInstanceTypes(ctx, nodePool)
}

// IsDrifted implements cloudprovider.CloudProvider. It returns an error while suspended: an empty reason would clear
// the condition Drifted.
func (g gate) IsDrifted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (karpcloudprovider.DriftReason, error) {
	if g.suspended() {
		return "", ErrSuspended
	}
	return g.CloudProvider.IsDrifted(ctx, nodeClaim)
}

// Reboot implements cloudprovider.CloudProvider.
func (g gate) Reboot(ctx context.Context, nodeClaim *karpv1.NodeClaim, operationID string) error {
	if g.suspended() {
		return ErrSuspended
	}
	return g.CloudProvider.Reboot(ctx, nodeClaim, operationID)
}
