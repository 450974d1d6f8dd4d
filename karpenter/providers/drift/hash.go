// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// HashVersion is the version of the rule that Hash follows. It has to be raised whenever Hash gives another result for
// the same node class, so that nodes that were made before aren't replaced for it: NodeClaims with another version are hashed
// anew.
const HashVersion = "v1"

// Hash is of the node class's fields that a node has to be replaced for when they change and that nothing else notices:
// spec.kubelet and spec.bootstrapPatches. Shape, bootstrap and version are compared by what a machine was made from, and a changed selector doesn't
// make a running node wrong.
func Hash(nodeClass *v1alpha1.ClusterAPINodeClass) string {
	// An empty struct is what no kubelet settings are, and a field that isn't set doesn't appear: a new optional field
	// changes no hash. Maps are written in the order of their keys.
	hashed := struct {
		Kubelet          v1alpha1.KubeletConfiguration `json:"kubelet"`
		BootstrapPatches []v1alpha1.BootstrapPatches   `json:"bootstrapPatches,omitempty"`
	}{
		// The patches of one kind have an order, the kinds have none.
		BootstrapPatches: slices.SortedFunc(slices.Values(nodeClass.Spec.BootstrapPatches), func(a, b v1alpha1.BootstrapPatches) int {
			return cmp.Or(cmp.Compare(a.APIGroup, b.APIGroup), cmp.Compare(a.Kind, b.Kind))
		}),
	}
	if nodeClass.Spec.Kubelet != nil {
		hashed.Kubelet = *nodeClass.Spec.Kubelet
	}
	raw, err := json.Marshal(hashed)
	if err != nil {
		// Numbers and strings: this can't fail, and no hash is no drift.
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
