// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// MachineGoneAnnotation is set when the Machine is gone: on its Node if that is being deleted, else on the NodeClaim.
// The update makes Karpenter reconcile at once instead of after five seconds.
const MachineGoneAnnotation = v1alpha1.Group + "/machine-gone"

// finalization triggers Karpenter when a Machine that it waits for is gone.
type finalization struct{ Config }

func (f *finalization) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInstanceTerminating).IsTrue() {
		// Karpenter is still draining the node and hasn't deleted the Machine.
		return nil
	}
	if _, err := f.Machines.ForNodeClaim(ctx, nodeClaim.UID); !errors.Is(err, machine.ErrNotFound) {
		return err
	}
	var waiting client.Object = nodeClaim
	if name := nodeClaim.Status.NodeName; name != "" {
		node := &corev1.Node{}
		switch err := f.Guest.Get(ctx, types.NamespacedName{Name: name}, node); {
		case err == nil && node.Spec.ProviderID == nodeClaim.Status.ProviderID:
			waiting = node
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("reading Node %s: %w", name, err)
		}
	}
	annotations := waiting.GetAnnotations()
	if _, ok := annotations[MachineGoneAnnotation]; ok || waiting.GetDeletionTimestamp() == nil {
		return nil
	}
	stored, _ := waiting.DeepCopyObject().(client.Object)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[MachineGoneAnnotation] = "true"
	waiting.SetAnnotations(annotations)
	if err := f.Guest.Patch(ctx, waiting, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting that the Machine of NodeClaim %s is gone: %w", nodeClaim.Name, err)
	}
	return nil
}
