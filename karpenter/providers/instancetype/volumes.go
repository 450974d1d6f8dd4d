// SPDX-License-Identifier: Apache-2.0

package instancetype

import "github.com/autonode-io/autonode/karpenter/providers/template"

// volumeLimitsOf returns how many volumes can be attached to a node of any of the templates, by CSI driver; nil if none declares it.
func volumeLimitsOf(templates []*template.Template) map[string]int {
	var limits map[string]int
	for _, tmpl := range templates {
		for driver, limit := range tmpl.VolumeLimits {
			if limits == nil {
				limits = map[string]int{}
			}
			if least, ok := limits[driver]; !ok || limit < least {
				limits[driver] = limit
			}
		}
	}
	return limits
}
