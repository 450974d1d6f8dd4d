// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/payload"
)

// parseNodeImages reads the values of --node-image.
func parseNodeImages(values []string) (payload.NodeImages, error) {
	images := payload.NodeImages{}
	for _, value := range values {
		key, name, ok := strings.Cut(value, "=")
		architecture, place, ok2 := strings.Cut(key, "/")
		infrastructure, variant, hasVariant := strings.Cut(place, "/")
		if !ok || !ok2 || architecture == "" || infrastructure == "" || name == "" || hasVariant && variant == "" {
			return nil, fmt.Errorf("--node-image %q: must be ARCH/INFRASTRUCTURE[/VARIANT]=IMAGE, like amd64/aws/us-east-1=ami-0abc", value)
		}
		if images[architecture] == nil {
			images[architecture] = map[string]map[string]string{}
		}
		if images[architecture][infrastructure] == nil {
			images[architecture][infrastructure] = map[string]string{}
		}
		if _, ok := images[architecture][infrastructure][variant]; ok {
			return nil, fmt.Errorf("--node-image %s is given twice", key)
		}
		images[architecture][infrastructure][variant] = name
	}
	return images, nil
}

// nodeImages names one image where there is one, and how many there are where they differ by region or format: a payload of OpenShift's has
// hundreds.
func nodeImages(w io.Writer, images payload.NodeImages) *printer.Table {
	table := printer.NewTable(w, "NODE IMAGE", "INFRASTRUCTURE", "IMAGE")
	for _, architecture := range slices.Sorted(maps.Keys(images)) {
		for _, infrastructure := range slices.Sorted(maps.Keys(images[architecture])) {
			variants := images[architecture][infrastructure]
			image := fmt.Sprintf("%d, by region or format; see -o yaml", len(variants))
			if len(variants) == 1 {
				image = slices.Collect(maps.Values(variants))[0]
			}
			table.Row(architecture, infrastructure, image)
		}
	}
	return table
}
