// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// TemplatesHashAnnotation is on a node class: the hash of its templates. It changes when a changed template may require new
// nodes.
const TemplatesHashAnnotation = v1alpha1.Group + "/templates-hash"

// templatesHash hashes the content, bootstrap and node images of every template, independent of their order.
func templatesHash(snapshot *instancetype.Snapshot, images func(*template.Template) string) string {
	content := map[string]string{}
	for tmpl := range snapshot.Templates() {
		content[tmpl.Source.Annotation()] = tmpl.ContentHash + "/" + tmpl.Bootstrap.Hash
		if tmpl.ImageVersion != "" {
			content[tmpl.Source.Annotation()] += fmt.Sprintf("/%s/%t/%t", tmpl.ImageVersion, tmpl.Outdated, tmpl.Ahead)
		}
		if hash := images(tmpl); hash != "" {
			content[tmpl.Source.Annotation()] += "/" + hash
		}
	}
	sum := sha256.New()
	for _, source := range slices.Sorted(maps.Keys(content)) {
		// A hash's Write returns no error.
		_, _ = sum.Write([]byte(source + "=" + content[source] + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
