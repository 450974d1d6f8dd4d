// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// ConditionMachineProvisioned is True on a NodeClaim from when its machine has a provider ID. The node class's
// deadlines.registration counts from its transition.
const ConditionMachineProvisioned = "MachineProvisioned"

// identity replaces the synthetic provider ID once the real one is reported. Karpenter then finds the Node by it,
// whether the Node was created before or after. The ID comes from where CloudProvider.List takes it, so that List and
// the NodeClaim disagree only until this step has run.
type identity struct {
	Config
	// written has the resource versions of NodeClaims that were replaced by writing the provider ID, by UID. While the cache still has one, a
	// second write would be a conflict: the infrastructure, the Machine and the Node change in quick succession then.
	written *utilcache.Expiring
}

// lagLimit is for how long the cache may have a NodeClaim that was replaced.
const lagLimit = time.Minute

func (i *identity) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	conditions := nodeClaim.StatusConditions(status.WithClock(i.Clock))
	known := conditions.Get(ConditionMachineProvisioned).IsTrue() || conditions.Get(karpv1.ConditionTypeRegistered).IsTrue()
	providerID := i.Machines.InstanceID(ctx, m)
	if providerID == "" || nodeClaim.Status.ProviderID == providerID && known {
		return outcome{}, nil
	}
	current := nodeClaim.Status.ProviderID
	if _, synthetic := machine.ParseSyntheticProviderID(current); current != "" && current != providerID && !synthetic {
		// Another client has written it. No machine has this ID, so Karpenter's garbage collection deletes the
		// NodeClaim.
		return outcome{}, nil
	}
	if version, ok := i.written.Get(nodeClaim.UID); ok && version == nodeClaim.ResourceVersion {
		return outcome{done: true}, nil
	}
	stored := nodeClaim.DeepCopy()
	nodeClaim.Status.ProviderID = providerID
	conditions.SetTrue(ConditionMachineProvisioned)
	err := i.Guest.Status().Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The conflicting change triggers the next reconcile.
		return outcome{done: true}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("setting the provider ID of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	i.written.Set(nodeClaim.UID, stored.ResourceVersion, lagLimit)
	log.FromContext(ctx).Info("machine has a provider ID", "providerID", providerID)
	return outcome{}, nil
}
