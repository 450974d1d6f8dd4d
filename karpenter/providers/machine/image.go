// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
)

// imagePrefix begins the variables that are node images: NodeImage.<infrastructure>, and .<region or format> behind that.
const imagePrefix = "NodeImage."

// imagesHashRule begins the hash of images. It has to be raised, to "v2:", whenever ImagesHash gives another result for the same
// images: hashes of different rules aren't compared. The first rule's is empty, because there are machines whose hashes have none.
const imagesHashRule = ""

func imageOf(variable string) (infrastructure, variant string, ok bool) {
	rest, ok := strings.CutPrefix(variable, imagePrefix)
	infrastructure, variant, _ = strings.Cut(rest, ".")
	return infrastructure, variant, ok
}

// ImagesHash is of the images that the patches for a bootstrap config (or its template) of that kind refer to; empty if they refer to none,
// or to one that isn't there, which missing names then.
func ImagesHash(patches []v1alpha1.BootstrapPatches, kind schema.GroupKind, images nodeimage.Images) (hash, missing string) {
	sum := sha256.New()
	used := false
	for _, patch := range patchesFor(patches, kind) {
		parts, err := parseValue(patch.Value)
		if err != nil {
			continue // whoever applies it says so
		}
		for _, p := range parts {
			infrastructure, variant, ok := imageOf(p.variable)
			if !ok {
				continue
			}
			image, found := images.Get(infrastructure, variant)
			if !found {
				return "", "$(" + p.variable + ")"
			}
			used = true
			// Writing to a hash never fails.
			_, _ = fmt.Fprintf(sum, "%s=%s\n", p.variable, image)
		}
	}
	if !used {
		return "", ""
	}
	return imagesHashRule + hex.EncodeToString(sum.Sum(nil)[:8]), ""
}
