// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Placeholders of a zone's format.
const (
	regionPlaceholder = "{region}"
	domainPlaceholder = "{failureDomain}"
)

// nodeZone is how the kind's cloud controller manager names the zone of a node that is in a failure domain of Cluster API's. The zero value
// names both the same.
type nodeZone struct {
	// format of the zone, with the placeholder of the failure domain and perhaps that of the region.
	format string
	// values are zones by failure domain; they come first.
	values map[string]string
	// differs: nodes' zones have other names, which only the platform can declare.
	differs bool
}

func (z *nodeZone) isZero() bool { return z.format == "" && len(z.values) == 0 && !z.differs }

// resolve returns the zone, and the failure domain itself where nothing else is known. It is unknown if only the region is missing, or if
// only the platform can declare it. A zone stays as it is: a template's label names one.
func (z *nodeZone) resolve(failureDomain, region string) (zone string, known bool) {
	if zone, ok := z.values[failureDomain]; ok {
		return zone, true
	}
	if z.differs {
		return failureDomain, false
	}
	if z.format == "" || slices.Contains(slices.Collect(maps.Values(z.values)), failureDomain) {
		return failureDomain, true
	}
	if region == "" && strings.Contains(z.format, regionPlaceholder) {
		return failureDomain, false
	}
	before, after, _ := strings.Cut(strings.ReplaceAll(z.format, regionPlaceholder, region), domainPlaceholder)
	if len(failureDomain) > len(before)+len(after) && strings.HasPrefix(failureDomain, before) && strings.HasSuffix(failureDomain, after) {
		return failureDomain, true
	}
	return before + failureDomain + after, true
}

// NodeZone returns the value of the label topology.kubernetes.io/zone of a node whose machine is in a failure domain of Cluster API's. It
// is unknown, and the failure domain itself, if it has the region in it and region is empty.
func (k Kind) NodeZone(failureDomain, region string) (zone string, known bool) {
	if k.profile == nil {
		return failureDomain, true
	}
	return k.profile.nodeZone.resolve(failureDomain, region)
}

// ZonesDiffer reports whether nodes' zones have other names than failure domains, which only the platform can declare.
func (k Kind) ZonesDiffer() bool { return k.profile != nil && k.profile.nodeZone.differs }

// nodeZone reads how zones are named.
func (d *decoder) nodeZone(at string, item any) (z nodeZone) {
	d.fields(at, item, map[string]func(string, any){
		"format": func(at string, item any) {
			text := d.text(at, item)
			rest := strings.Replace(strings.ReplaceAll(text, regionPlaceholder, "r"), domainPlaceholder, "d", 1)
			switch {
			case text == "":
			case !strings.Contains(text, domainPlaceholder), len(validation.IsValidLabelValue(rest)) > 0:
				d.report(at, "%q is not a label's value with %s in it, and perhaps %s", shown(text), domainPlaceholder, regionPlaceholder)
			default:
				z.format = text
			}
		},
		"differs": func(at string, item any) {
			if differs, ok := item.(bool); ok {
				z.differs = differs
			} else {
				d.report(at, "is neither true nor false")
			}
		},
		"values": func(at string, item any) {
			object, ok := item.(map[string]any)
			if !ok {
				d.report(at, "is not an object")
				return
			}
			for _, domain := range slices.Sorted(maps.Keys(object)) {
				where := at + "." + shown(domain)
				zone := d.text(where, object[domain])
				switch {
				case zone == "":
				case len(validation.IsValidLabelValue(zone)) > 0:
					d.report(where, "%q is not the value of a label", shown(zone))
				case len(z.values) == maxEntries:
					d.report(at, "has more than %d items", maxEntries)
					return
				default:
					if z.values == nil {
						z.values = map[string]string{}
					}
					z.values[domain] = zone
				}
			}
		},
	})
	return z
}
