// SPDX-License-Identifier: Apache-2.0

package offering_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func TestReadNotice(t *testing.T) {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	midnight := time.Date(2030, 1, 1, 23, 59, 0, 0, time.UTC)
	c4 := offering.Key{InstanceType: "c4.large", Zone: "eu-1a", CapacityType: "on-demand"}
	soon := offering.RetryNotice(noon.Add(3 * time.Minute))
	for name, test := range map[string]struct {
		message string
		at      time.Time
		want    offering.Notice
	}{
		"When an offering had no capacity, it should be that one, whatever the infrastructure reports": {
			"no capacity for " + c4.Description() + ": no spot instance left" + soon, noon, offering.Notice{Key: c4, Until: noon.Add(3 * time.Minute)},
		},
		"When one NodePool's machines are rejected, it should be for that one": {
			"no machine of " + c4.Description() + ": denied" + soon + " for NodePool general", noon, offering.Notice{Key: c4, Until: noon.Add(3 * time.Minute), NodePool: "general"},
		},
		"When another launch came first, it should be the one that isn't tried": {
			"spot c2 in zone b came sooner than " + c4.Description() + soon + " for NodePool general", noon, offering.Notice{Key: c4, Until: noon.Add(3 * time.Minute), NodePool: "general"},
		},
		"When the offering has no zone, it should have none": {
			"no capacity for " + offering.Key{InstanceType: "small", CapacityType: "spot", Zone: offering.DefaultZone}.Description() + ": x" + soon, noon,
			offering.Notice{Key: offering.Key{InstanceType: "small", CapacityType: "spot"}, Until: noon.Add(3 * time.Minute)},
		},
		"When the back-off ends tomorrow, it should be tomorrow": {
			"no capacity for " + c4.Description() + ": x" + offering.RetryNotice(midnight.Add(3*time.Minute)), midnight, offering.Notice{Key: c4, Until: midnight.Add(3 * time.Minute)},
		},
		"When there is no back-off, it should be nothing":              {"Machine failed (" + c4.Description() + "): x; launching a replacement", noon, offering.Notice{}},
		"When no offering is named, it should be nothing":              {"something failed" + soon, noon, offering.Notice{}},
		"When the time can't be a back-off's, it should be nothing":    {"no capacity for " + c4.Description() + ": x; not tried again before 14:00:00 UTC", noon, offering.Notice{}},
		"When the time isn't one, it should be nothing":                {"no capacity for " + c4.Description() + ": x; not tried again before 29:00:00 UTC", noon, offering.Notice{}},
		"When others wrote something like it, it should be nothing":    {"no capacity for " + c4.Description() + ": x; not tried again before 12:03:00 UTC, they say", noon, offering.Notice{}},
		"When the capacity type is another word, it should be nothing": {"no capacity for demand c4" + soon, noon, offering.Notice{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := offering.ReadNotice(test.message, test.at)
			g := NewWithT(t)
			g.Expect(got).To(Equal(test.want))
			g.Expect(ok).To(Equal(test.want != offering.Notice{}))
		})
	}
}
