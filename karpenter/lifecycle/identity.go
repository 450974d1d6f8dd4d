// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// identity replaces the synthetic provider ID by the real one as soon as the Machine has it. Karpenter then finds the Node by
// it, whether the Node came before or comes after. It takes the ID from the Machine and not from the infrastructure, so that
// CloudProvider.List and the NodeClaim never disagree about it for longer than this step takes.
type identity struct{ Config }

func (i *identity) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (bool, error) {
	if m.Spec.ProviderID == "" || nodeClaim.Status.ProviderID == m.Spec.ProviderID {
		return false, nil
	}
	stored := nodeClaim.DeepCopy()
	nodeClaim.Status.ProviderID = m.Spec.ProviderID
	err := i.Guest.Status().Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The change that came between triggers the next reconcile.
		return true, nil
	case err != nil:
		return false, fmt.Errorf("giving NodeClaim %s its provider ID: %w", nodeClaim.Name, err)
	}
	log.FromContext(ctx).Info("machine has a provider ID", "providerID", m.Spec.ProviderID)
	return false, nil
}
