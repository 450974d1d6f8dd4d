// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// HashVersion is the version of NodeClassHash's rule. It goes up whenever the rule gives the same node class another hash.
const HashVersion = "v1"

// NodeClassHash is of the fields of a node class that reach a node and that nothing else watches: the kubelet's settings.
// Selectors decide what is launched next, bootstrap and version have drift reasons of their own.
func NodeClassHash(nodeClass *v1alpha1.ClusterAPINodeClass) (string, error) {
	// JSON leaves out what isn't set and orders the keys of maps, so that a new optional field changes no hash.
	raw, err := json.Marshal(struct {
		Kubelet *v1alpha1.KubeletConfiguration `json:"kubelet,omitempty"`
	}{nodeClass.Spec.Kubelet})
	if err != nil {
		return "", fmt.Errorf("hashing node class %s: %w", nodeClass.Name, err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}
