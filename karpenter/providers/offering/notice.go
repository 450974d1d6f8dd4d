// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"regexp"
	"strings"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Notice is what the message of an event on a NodeClaim reports about an offering.
type Notice struct {
	// Key of the offering, without its reservation; without its zone if it has none.
	Key Key
	// Until is when the offering is tried again.
	Until time.Time
	// NodePool that the offering is unavailable to; empty for all.
	NodePool string
}

const label = `[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`

var (
	described = regexp.MustCompile(`\b(` + karpv1.CapacityTypeOnDemand + `|` + karpv1.CapacityTypeSpot + `|` + karpv1.CapacityTypeReserved +
		`) (` + label + `)(?: in zone (` + label + `))?`)
	noticed = regexp.MustCompile(`; not tried again before ([0-2][0-9]:[0-5][0-9]:[0-5][0-9]) UTC(?: for NodePool (` + label + `))?$`)
)

// ReadNotice reads a message that has Description and ends with RetryNotice, of an event from a time; false for any other. It is the only
// way to learn of an offering in back-off from outside of Karpenter's process.
func ReadNotice(message string, at time.Time) (Notice, bool) {
	ending := noticed.FindStringSubmatchIndex(message)
	if ending == nil {
		return Notice{}, false
	}
	text, clock, nodePool := message[:ending[0]], message[ending[2]:ending[3]], ""
	if ending[4] >= 0 {
		nodePool = message[ending[4]:ending[5]]
	}
	found := described.FindAllStringSubmatch(text, -1)
	if found == nil {
		return Notice{}, false
	}
	// What the infrastructure reports comes behind the offering, unless nothing comes behind it.
	match := found[0]
	if last := found[len(found)-1]; strings.HasSuffix(text, last[0]) {
		match = last
	}
	parsed, err := time.Parse(time.TimeOnly, clock)
	if err != nil {
		return Notice{}, false
	}
	at = at.UTC()
	until := time.Date(at.Year(), at.Month(), at.Day(), parsed.Hour(), parsed.Minute(), parsed.Second(), 0, time.UTC)
	if until.Before(at.Truncate(time.Second)) {
		until = until.AddDate(0, 0, 1)
	}
	if until.Sub(at) > MaxTTL+time.Minute { // the event was written a little later
		return Notice{}, false
	}
	return Notice{Key: Key{InstanceType: match[2], Zone: match[3], CapacityType: match[1]}, Until: until, NodePool: nodePool}, true
}
