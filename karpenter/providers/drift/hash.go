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

// HashVersion is the version of Hash's rule. Raise it whenever Hash returns another result for the same node class,
// so that existing nodes aren't replaced: the NodeClaims' hashes are migrated.
const HashVersion = "v1"

// Hash hashes the node class fields whose change requires new nodes and that no other check covers: spec.kubelet and
// spec.bootstrapPatches. Template, bootstrap and version are compared with the machine's record of them, and a changed
// selector doesn't invalidate a node.
func Hash(nodeClass *v1alpha1.ClusterAPINodeClass) string {
	// Unset fields are left out, so a new optional field changes no hash. JSON orders the keys of maps.
	hashed := struct {
		Kubelet          v1alpha1.KubeletConfiguration `json:"kubelet"`
		BootstrapPatches []v1alpha1.BootstrapPatches   `json:"bootstrapPatches,omitempty"`
	}{
		// Only patches of one kind have an order.
		BootstrapPatches: slices.SortedFunc(slices.Values(nodeClass.Spec.BootstrapPatches), func(a, b v1alpha1.BootstrapPatches) int {
			return cmp.Or(cmp.Compare(a.APIGroup, b.APIGroup), cmp.Compare(a.Kind, b.Kind))
		}),
	}
	if nodeClass.Spec.Kubelet != nil {
		hashed.Kubelet = *nodeClass.Spec.Kubelet
	}
	raw, err := json.Marshal(hashed)
	if err != nil {
		// Marshaling numbers and strings can't fail. Without a hash nothing drifts.
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
