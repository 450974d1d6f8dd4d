// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/shape"
)

// ShapesHashAnnotation is on a node class: the hash of what its shapes are made of. It changes when nodes may have to be
// replaced for a changed template.
const ShapesHashAnnotation = v1alpha1.Group + "/shapes-hash"

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

// shapesHash is of the content of every shape's templates and of the images that its nodes would boot from, in whatever order the
// shapes are offered.
func shapesHash(snapshot *instancetype.Snapshot, images func(*shape.Shape) string) string {
	content := map[string]string{}
	for sh := range snapshot.Shapes() {
		content[sh.Source.Annotation()] = sh.ContentHash + "/" + sh.Bootstrap.Hash
		if hash := images(sh); hash != "" {
			content[sh.Source.Annotation()] += "/" + hash
		}
	}
	sum := sha256.New()
	for _, source := range slices.Sorted(maps.Keys(content)) {
		// Writing to a hash never fails.
		_, _ = sum.Write([]byte(source + "=" + content[source] + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
