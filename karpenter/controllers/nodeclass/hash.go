// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// ShapesHashAnnotation is on a node class: the hash of what its shapes are made of. It changes when nodes may have to be
// replaced for a changed template.
const ShapesHashAnnotation = v1alpha1.Group + "/shapes-hash"

// shapesHash is of the content of every shape's templates and of the images that its nodes would boot from, in whatever order the
// shapes are offered.
func shapesHash(snapshot *instancetype.Snapshot, images func(*template.Template) string) string {
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
