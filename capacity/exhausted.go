// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"slices"
	"strings"
	"time"
)

const (
	// wholeZone is how many instance types of a zone have to be without capacity for all of them to be.
	wholeZone = 4
	// DefaultZone is the zone of machines without a failure domain. It isn't one place: it is all that there is.
	DefaultZone = "default"
)

// ZoneUntil returns until when a zone is without capacity for any instance type of one capacity type, by when each of the
// types that lack capacity is tried again: until fewer than four of them do. It returns false if they are too few.
func ZoneUntil(zone string, untils []time.Time) (time.Time, bool) {
	if zone == "" || zone == DefaultZone || len(untils) < wholeZone {
		return time.Time{}, false
	}
	latest := slices.SortedFunc(slices.Values(untils), func(a, b time.Time) int { return b.Compare(a) })
	return latest[wholeZone-1], true
}

// Family returns the family of an instance type, within which clouds count quotas: its instance-family label, otherwise the family in its
// name. An instance type whose name has none is a family of its own.
//
//	m5.large         m5                Amazon, and others that put the family first
//	n2-standard-4    n2                Google
//	Standard_D4s_v5  Standard_Ds_v5    Azure: all but the number of vCPUs
//	ecs.g7.xlarge    ecs.g7            a family is the first part that has a number
//	large            itself            no part of it has a number
func Family(label, instanceType string) string {
	if label != "" {
		return label
	}
	if family, ok := azureFamily(instanceType); ok {
		return family
	}
	for i := range len(instanceType) {
		if strings.IndexByte(".-_", instanceType[i]) < 0 {
			continue
		}
		if before := instanceType[:i]; strings.ContainsAny(before, digits) {
			return before
		}
	}
	return instanceType
}

const digits = "0123456789"

// azureFamily removes the number of vCPUs from the name of a size: the digits after the letters of the series, and the number that a
// size with fewer vCPUs has after a hyphen.
func azureFamily(name string) (family string, ok bool) {
	for _, tier := range []string{"Standard_", "Basic_"} {
		size, found := strings.CutPrefix(name, tier)
		start := strings.IndexAny(size, digits)
		if !found || start < 1 {
			continue
		}
		series, rest := size[:start], strings.TrimLeft(size[start:], digits)
		if constrained, found := strings.CutPrefix(rest, "-"); found {
			rest = strings.TrimLeft(constrained, digits)
		}
		return tier + series + rest, true
	}
	return "", false
}
