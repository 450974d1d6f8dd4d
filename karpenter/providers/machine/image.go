// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// imagesHashRule begins the hash of images. Raise it, to "v2:", whenever ImagesHash returns another result for the same
// images: hashes of different rules aren't compared. The first rule's is empty, because existing machines have hashes
// without one.
const imagesHashRule = ""

// ImagesHash hashes the images that a template's patches and the node class's patches for its bootstrap config refer
// to. It is empty if they refer to none, or to an image that the payload lacks, which it returns as missing.
func ImagesHash(patches []v1alpha1.BootstrapPatches, tmpl *template.Template, images nodeimage.Images) (hash, missing string) {
	used := imagesOf(patches, tmpl)
	if len(used) == 0 {
		return "", ""
	}
	sum := sha256.New()
	for _, image := range used {
		found, ok := images.Get(image.Infrastructure, image.Variant)
		if !ok {
			return "", image.String()
		}
		// Writing to a hash never fails.
		_, _ = fmt.Fprintf(sum, "NodeImage%s=%s\n", strings.TrimPrefix(image.String(), "image"), found)
	}
	return imagesHashRule + hex.EncodeToString(sum.Sum(nil)[:8]), ""
}

// imagesOf parses only the patches that may refer to an image: drift detection calls it for every node whenever a pod
// changes.
func imagesOf(patches []v1alpha1.BootstrapPatches, tmpl *template.Template) []patch.Image {
	images := tmpl.Patches.Images()
	if tmpl.Bootstrap.ConfigTemplate == nil {
		return images
	}
	for _, p := range patchesFor(patches, tmpl.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()) {
		if p.ValueFrom == nil || !strings.Contains(p.ValueFrom.Variable, "image") && !strings.Contains(p.ValueFrom.Template, "image") {
			continue
		}
		list, err := patch.Parse([]v1alpha1.JSONPatch{p})
		if err != nil {
			continue // CheckPatches reports it
		}
		images = append(images, list.Images()...)
	}
	return images
}
