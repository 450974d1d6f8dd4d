// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// NodeClassHashVersion is the version of the rule of ClusterAPINodeClass.Hash. Raise it whenever Hash returns another result for the
// same node class, so that existing nodes aren't replaced: the NodeClaims' hashes are migrated.
const NodeClassHashVersion = "v1"

// Hash returns a hash of the fields whose change requires new nodes and that no other check covers: spec.kubelet and
// spec.bootstrapPatches. Template, bootstrap and version are compared with the machine's record of them, and a changed
// selector doesn't invalidate a node.
func (in *ClusterAPINodeClass) Hash() string {
	// Unset fields are left out, so a new optional field changes no hash. JSON orders the keys of maps.
	hashed := struct {
		Kubelet          KubeletConfiguration `json:"kubelet"`
		BootstrapPatches []BootstrapPatches   `json:"bootstrapPatches,omitempty"`
	}{
		// Only patches of one kind have an order.
		BootstrapPatches: slices.SortedFunc(slices.Values(in.Spec.BootstrapPatches), func(a, b BootstrapPatches) int {
			return cmp.Or(cmp.Compare(a.APIGroup, b.APIGroup), cmp.Compare(a.Kind, b.Kind))
		}),
	}
	if in.Spec.Kubelet != nil {
		hashed.Kubelet = *in.Spec.Kubelet
	}
	raw, err := json.Marshal(hashed)
	if err != nil {
		// Marshaling numbers and strings can't fail. Without a hash nothing drifts.
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
