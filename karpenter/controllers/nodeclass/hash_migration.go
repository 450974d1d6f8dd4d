// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// migrateHash writes the current rule's hash into the NodeClaims of a node class, after an upgrade of the provider
// that changed the rule. Their old hash can't be compared any more, so they count as up to date. A drifted NodeClaim
// keeps its old hash, which differs from any current one, so its replacement continues.
func (c *Controller) migrateHash(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) error {
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	count := 0
	for i := range nodeClaims.Items {
		nodeClaim := &nodeClaims.Items[i]
		old := nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation]
		if usedBy(nodeClaim) != nodeClass.Name || old == "" || old == v1alpha1.NodeClassHashVersion {
			continue
		}
		stored := nodeClaim.DeepCopy()
		nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] = v1alpha1.NodeClassHashVersion
		if !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() {
			nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation] = nodeClass.Hash()
		}
		if err := c.Guest.Patch(ctx, nodeClaim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing the hash of node class %s into NodeClaim %s: %w", nodeClass.Name, nodeClaim.Name, err)
		}
		count++
	}
	log.FromContext(ctx).Info("migrated the hashes of NodeClaims from before an upgrade", "hashVersion", v1alpha1.NodeClassHashVersion,
		"nodeClaims", count)
	return nil
}
