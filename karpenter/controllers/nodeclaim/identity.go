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
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
	// written has the resource versions that NodeClaims got by writing the provider ID, by UID. While the cache has an older one, a
	// second write would fail: the infrastructure, the Machine and the Node change in quick succession then.
	written *utilcache.Expiring
}

// lagLimit is for how long the cache may have an older NodeClaim than was written.
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
	if i.lags(nodeClaim) {
		return outcome{done: true}, nil
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
	case apierrors.IsInvalid(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The change that the cache doesn't have triggers the next reconcile.
		log.FromContext(ctx).V(1).Info("the NodeClaim has changed; its provider ID has to wait", "error", err.Error())
		return outcome{done: true}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("setting the provider ID of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	i.written.Set(nodeClaim.UID, nodeClaim.ResourceVersion, lagLimit)
	log.FromContext(ctx).Info("machine has a provider ID", "providerID", providerID)
	return outcome{}, nil
}

// lags reports whether a NodeClaim is older than the one that was written.
func (i *identity) lags(nodeClaim *karpv1.NodeClaim) bool {
	written, ok := i.written.Get(nodeClaim.UID)
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(nodeClaim.ResourceVersion, written.(string))
	return err == nil && order < 0
}

// identityPatch writes the provider ID and the condition of a NodeClaim, if it still has the provider ID and the condition that it was read with.
// Karpenter core changes NodeClaims several times a second while they launch. A lock on the resource version would fail until the cache
// has the last of these changes, and a node can't register before.
func identityPatch(stored, nodeClaim *karpv1.NodeClaim) (client.Patch, error) {
	if stored.Status.ProviderID == "" {
		return client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}), nil // a JSON patch can't test for a field that is missing
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	operations := []operation{
		{"test", "/metadata/uid", stored.UID},
		{"test", "/status/providerID", stored.Status.ProviderID},
		{"replace", "/status/providerID", nodeClaim.Status.ProviderID},
	}
	condition := nodeClaim.StatusConditions().Get(ConditionMachineProvisioned)
	if index := slices.IndexFunc(stored.Status.Conditions, func(c status.Condition) bool { return c.Type == ConditionMachineProvisioned }); index < 0 {
		// The API server rejects a second condition of a type.
		operations = append(operations, operation{"add", "/status/conditions/-", condition})
	} else {
		path := fmt.Sprintf("/status/conditions/%d", index)
		operations = append(operations, operation{"test", path + "/type", ConditionMachineProvisioned}, operation{"replace", path, condition})
	}
	data, err := json.Marshal(operations)
	return client.RawPatch(types.JSONPatchType, data), err
}
