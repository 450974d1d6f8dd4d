// SPDX-License-Identifier: Apache-2.0

// Package capacity describes machines and offerings as quotas, reservations and prices count them. It is pure, for all programs and for
// profiles of infrastructure.
package capacity

import (
	"regexp"
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
	if parts := azureSize.FindStringSubmatch(instanceType); parts != nil {
		return parts[1] + parts[2]
	}
	if at := strings.IndexAny(instanceType, "0123456789"); at >= 0 {
		if end := strings.IndexAny(instanceType[at:], ".-_"); end >= 0 {
			return instanceType[:at+end]
		}
	}
	return instanceType
}

// azureSize matches a size of Azure: the letters of its series, the number of vCPUs, the number that is left of them, and the rest.
var azureSize = regexp.MustCompile(`^((?:Standard|Basic)_[^0-9]+)[0-9]+(?:-[0-9]*)?(.*)$`)
