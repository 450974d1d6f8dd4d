// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
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
	// written has the NodeClaims that got a provider ID. While the cache has an older one, a second write would fail: the infrastructure, the
	// Machine and the Node change in quick succession then.
	written *reconciler.Ledger
}

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
	if i.written.Lacks(nodeClaim) {
		return outcome{done: true}, nil
	}
	sharing := &karpv1.NodeClaimList{}
	if err := i.Guest.List(ctx, sharing, nodeclaimutils.ForProviderID(providerID), client.UnsafeDisableDeepCopy); err != nil {
		return outcome{}, fmt.Errorf("finding the NodeClaims of instance %s: %w", providerID, err)
	}
	if len(sharing.Items) > 0 && sharing.Items[0].UID != nodeClaim.UID {
		i.Recorder.Publish(warning(nodeClaim, InstanceSharedReason,
			"the infrastructure has given Machine %s the instance %s of NodeClaim %s, whose node it can't share; "+
				"check how the template names instances",
			m.Name, providerID, sharing.Items[0].Name))
		return outcome{requeueAfter: time.Minute}, nil
	}
	stored := nodeClaim.DeepCopy()
	nodeClaim.Status.ProviderID = providerID
	conditions.SetTrue(ConditionMachineProvisioned)
	patch, err := identityPatch(stored, nodeClaim)
	if err != nil {
		return outcome{}, fmt.Errorf("computing a patch of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	err = i.Guest.Status().Patch(ctx, nodeClaim, patch)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err) && i.hasChanged(ctx, stored):
		// The change that the cache doesn't have triggers the next reconcile.
		return outcome{done: true}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("setting the provider ID of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	i.written.Note(nodeClaim)
	log.FromContext(ctx).Info("machine has a provider ID", "providerID", providerID)
	return outcome{}, nil
}

// provisioned reports whether a machine has a provider ID. Cluster API may take minutes to copy it into the Machine.
func (c Config) provisioned(ctx context.Context, m *clusterv1.Machine) bool {
	return c.Machines.InstanceID(ctx, m) != ""
}

// hasChanged reports whether a NodeClaim differs from the API server's. A policy that denies a write may call it invalid, as the API server
// calls a patch whose test fails.
func (i *identity) hasChanged(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
	current := &karpv1.NodeClaim{}
	err := i.GuestLive.Get(ctx, client.ObjectKeyFromObject(nodeClaim), current)
	return apierrors.IsNotFound(err) || err == nil && current.ResourceVersion != nodeClaim.ResourceVersion
}

// identityPatch writes the provider ID and the condition of a NodeClaim, if it still has the provider ID and the condition that it was
// read with. Karpenter core changes NodeClaims several times a second while they launch. A lock on the resource version would fail until
// the cache has the last of these changes, and a node can't register before.
func identityPatch(stored, nodeClaim *karpv1.NodeClaim) (client.Patch, error) {
	if stored.Status.ProviderID == "" {
		// A JSON patch can't test for a field that is missing.
		return client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}), nil
	}
	operations := []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": stored.UID},
		{"op": "test", "path": "/status/providerID", "value": stored.Status.ProviderID},
		{"op": "replace", "path": "/status/providerID", "value": nodeClaim.Status.ProviderID},
	}
	condition := nodeClaim.StatusConditions().Get(ConditionMachineProvisioned)
	isProvisioned := func(c status.Condition) bool { return c.Type == ConditionMachineProvisioned }
	if index := slices.IndexFunc(stored.Status.Conditions, isProvisioned); index < 0 {
		// The API server rejects a second condition of a type.
		operations = append(operations, map[string]any{"op": "add", "path": "/status/conditions/-", "value": condition})
	} else {
		path := fmt.Sprintf("/status/conditions/%d", index)
		operations = append(operations, map[string]any{"op": "test", "path": path + "/type", "value": ConditionMachineProvisioned},
			map[string]any{"op": "replace", "path": path, "value": condition})
	}
	data, err := json.Marshal(operations)
	return client.RawPatch(types.JSONPatchType, data), err
}
