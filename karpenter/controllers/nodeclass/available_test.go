// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		lacks  []offering.Lack
		quotas bool
		want   string
	}{
		"When all lacked capacity, it should be NoCapacity":                          {[]offering.Lack{offering.LackOfCapacity, offering.LackOfCapacity}, false, v1alpha1.NoCapacityReason},
		"When all lacked quota, it should be NoQuota":                                {[]offering.Lack{offering.LackOfQuota}, false, v1alpha1.NoQuotaReason},
		"When some failed otherwise, it should be LaunchesFail":                      {[]offering.Lack{offering.LackOfQuota, ""}, false, v1alpha1.LaunchesFailReason},
		"When quotas close all of them, it should be NoQuota":                        {nil, true, v1alpha1.NoQuotaReason},
		"When quotas close some and others lack capacity, it should be LaunchesFail": {[]offering.Lack{offering.LackOfCapacity}, true, v1alpha1.LaunchesFailReason},
	} {
		t.Run(name, func(t *testing.T) {
			var entries []offering.Entry
			for _, lack := range test.lacks {
				entries = append(entries, offering.Entry{Lacks: lack})
			}
			NewWithT(t).Expect(reasonOf(entries, test.quotas)).To(Equal(test.want))
		})
	}
}
