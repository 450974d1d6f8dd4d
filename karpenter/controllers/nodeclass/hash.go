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

// ShapesHashAnnotation is on a node class: the hash of its shapes. It changes when a changed template may require new
// nodes.
const ShapesHashAnnotation = v1alpha1.Group + "/shapes-hash"

// shapesHash hashes every shape's templates and node images, independent of their order.
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
		// A hash's Write returns no error.
		_, _ = sum.Write([]byte(source + "=" + content[source] + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
