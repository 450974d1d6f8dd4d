// SPDX-License-Identifier: Apache-2.0

package guestclient

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// leaveLabels removes labels from a new NodeClaim whose value no requirement determines and whose key is declared by a template of the node
// class. The cloud provider adds them when it launches the machine.
//
// Upstream gap: for a requirement that allows several values, such as In [ssd, hdd], Exists or Gt, Karpenter core gives a new
// NodeClaim one of them, at random, before a machine is chosen, and that value wins over the one of the machine. It does so for
// each label that isn't well-known, and well-known are only those that a program has when it starts
// (docs/internals/upstream/provider-registration.md).
func (r *ruled) leaveLabels(nodeClaim *karpv1.NodeClaim) {
	if nodeClaim.Spec.NodeClassRef == nil {
		return
	}
	nodeClaim.Labels = maps.Clone(nodeClaim.Labels) // core's own template of the NodeClaim has the same map
	for _, requirement := range nodeClaim.Spec.Requirements {
		determines := requirement.Operator == corev1.NodeSelectorOpIn && len(requirement.Values) == 1
		if !determines && r.Declares(nodeClaim.Spec.NodeClassRef.Name, requirement.Key) {
			delete(nodeClaim.Labels, requirement.Key)
		}
	}
}

// deletesNode reports whether a user has deleted the NodeClaim's Node, which deletes the NodeClaim too. While suspended, no other
// NodeClaim is deleted: Karpenter core expires NodeClaims by the clock and repairs unhealthy nodes without asking the cloud provider. It
// would drain their nodes while no replacement can be launched. A user who deletes a NodeClaim or a Node uses another client.
func (r *ruled) deletesNode(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
	if nodeClaim.Status.NodeName == "" {
		return false
	}
	node := &corev1.Node{}
	err := r.Get(ctx, types.NamespacedName{Name: nodeClaim.Status.NodeName}, node)
	return err == nil && node.DeletionTimestamp != nil && node.Spec.ProviderID == nodeClaim.Status.ProviderID
}

// checkTermination rejects a termination timestamp while suspended. Karpenter sets it just before it deletes the NodeClaim of an unhealthy
// node; left on a NodeClaim that isn't deleted, it would make every later drain a forced one.
func (r *ruled) checkTermination(nodeClaim *karpv1.NodeClaim, change map[string]any) error {
	err := r.Suspended()
	_, sets, _ := unstructured.NestedFieldNoCopy(change, "metadata", "annotations", karpv1.NodeClaimTerminationTimestampAnnotationKey)
	if err == nil || !sets || nodeClaim.DeletionTimestamp != nil {
		return nil
	}
	return fmt.Errorf("setting the termination timestamp of NodeClaim %s: %w", nodeClaim.Name, err)
}

// writesObject reports whether a patch has more than the status, which the API server takes only from another patch.
//
// Upstream gap: after each pass over a NodeClaim, core patches it first and its status then, also if only the status has changed
// (docs/internals/upstream/repeated-passes.md).
func writesObject(change map[string]any) bool {
	_, status := change["status"]
	return change == nil || len(change) > 1 || len(change) == 1 && !status
}

// checkProviderID returns a conflict if a patch of a status would replace the provider ID that another client has written during the
// launch. Core then reads the NodeClaim again.
//
// Upstream gap: core writes the result of a launch without an optimistic lock (docs/internals/upstream/status-write-lost.md).
func (r *ruled) checkProviderID(ctx context.Context, nodeClaim *karpv1.NodeClaim, patch client.Patch) error {
	if nodeClaim.Status.ProviderID == "" {
		return nil
	}
	current := &karpv1.NodeClaim{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(nodeClaim), current, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return err
	}
	// Nearly always the two are the same, or the NodeClaim has none yet.
	if current.Status.ProviderID == "" || current.Status.ProviderID == nodeClaim.Status.ProviderID {
		return nil
	}
	change, err := decode(nodeClaim, patch)
	if written, _, _ := unstructured.NestedString(change, "status", "providerID"); err == nil && written != "" {
		return apierrors.NewConflict(schema.GroupResource{Group: apis.Group, Resource: "nodeclaims"}, nodeClaim.Name,
			fmt.Errorf("it got the provider ID %s while %s was launched", current.Status.ProviderID, written))
	}
	return err
}
