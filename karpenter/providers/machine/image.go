// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/patch"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// imagesHashRule begins the hash of images. It has to be raised, to "v2:", whenever ImagesHash gives another result for the same
// images: hashes of different rules aren't compared. The first rule's is empty, because there are machines whose hashes have none.
const imagesHashRule = ""

// ImagesHash is of the images that a template's own patches and a node class's patches for its bootstrap config refer to; empty if they refer
// to none, or to one that isn't there, which missing names then.
func ImagesHash(patches []v1alpha1.BootstrapPatches, sh *template.Template, images nodeimage.Images) (hash, missing string) {
	sum := sha256.New()
	used := false
	for _, image := range imagesOf(patches, sh) {
		found, ok := images.Get(image.Infrastructure, image.Variant)
		if !ok {
			return "", image.String()
		}
		used = true
		// Writing to a hash never fails.
		_, _ = fmt.Fprintf(sum, "NodeImage%s=%s\n", strings.TrimPrefix(image.String(), "image"), found)
	}
	if !used {
		return "", ""
	}
	return imagesHashRule + hex.EncodeToString(sum.Sum(nil)[:8]), ""
}

// imagesOf is asked for every node whenever a pod changes: it parses only the patches that may refer to an image.
func imagesOf(patches []v1alpha1.BootstrapPatches, sh *template.Template) []patch.Image {
	images := sh.Patches.Images()
	if sh.Bootstrap.ConfigTemplate == nil {
		return images
	}
	for _, p := range patchesFor(patches, sh.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()) {
		if p.ValueFrom == nil || !strings.Contains(p.ValueFrom.Variable, "image") && !strings.Contains(p.ValueFrom.Template, "image") {
			continue
		}
		list, err := patch.Parse([]v1alpha1.JSONPatch{p})
		if err != nil {
			continue // CheckPatches says so
		}
		images = append(images, list.Images()...)
	}
	return images
}
