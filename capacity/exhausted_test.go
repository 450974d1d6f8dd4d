// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"testing"
	"time"
)

func TestFamily(t *testing.T) {
	for _, tc := range []struct{ name, label, instanceType, want string }{
		{"When a label declares it, it should be that", "general", "m5.large", "general"},
		{"When it is Amazon's, it should be before the dot", "", "m5.large", "m5"},
		{"When another family begins alike, it should be another one", "", "m5d.large", "m5d"},
		{"When Amazon's has a hyphen, it should be before that", "", "u7i-12tb.224xlarge", "u7i"},
		{"When it is Google's, it should be before the first hyphen", "", "n2-standard-4", "n2"},
		{"When it is another of Google's family, it should be the same", "", "n2-highmem-8", "n2"},
		{"When it is Azure's, it should be all but the vCPUs", "", "Standard_D4s_v5", "Standard_Ds_v5"},
		{"When it is a larger one of Azure's, it should be the same", "", "Standard_D96s_v5", "Standard_Ds_v5"},
		{"When it is of another generation of Azure's, it should be another one", "", "Standard_D4s_v4", "Standard_Ds_v4"},
		{"When it is Azure's with fewer vCPUs, it should be that of the whole one", "", "Standard_E4-2s_v5", "Standard_Es_v5"},
		{"When it is Azure's with a GPU, it should name that", "", "Standard_NC24ads_A100_v4", "Standard_NCads_A100_v4"},
		{"When it is Azure's of the first generation, it should be the letters", "", "Basic_A1", "Basic_A"},
		{"When it is no size of Azure's, it should be the whole name", "", "Standard_", "Standard_"},
		{"When it is an OpenStack flavor with a dot, it should be before that", "", "m1.small", "m1"},
		{"When an OpenStack flavor has no generation, it should be a family of its own", "", "gpu.large", "gpu.large"},
		{"When it is IBM's, it should be before the hyphen", "", "bx2-4x16", "bx2"},
		{"When it is Alibaba's, it should have the prefix that all have", "", "ecs.g7.xlarge", "ecs.g7"},
		{"When it is Oracle's, it should be before the size", "", "VM.Standard.E4.Flex", "VM.Standard.E4"},
		{"When the only number is that of vCPUs, it should be a family of its own", "", "c-4", "c-4"},
		{"When it has no parts, it should be a family of its own", "", "cx22", "cx22"},
		{"When it has no name, it should be none", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Family(tc.label, tc.instanceType); got != tc.want {
				t.Errorf("the family of %q is %q, want %q", tc.instanceType, got, tc.want)
			}
		})
	}
}

func TestZoneUntil(t *testing.T) {
	noon := time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)
	in := func(minutes ...int) (untils []time.Time) {
		for _, m := range minutes {
			untils = append(untils, noon.Add(time.Duration(m)*time.Minute))
		}
		return untils
	}
	for _, tc := range []struct {
		name, zone string
		untils     []time.Time
		// want is in minutes; 0 is a zone that has capacity.
		want int
	}{
		{"When three types lack capacity, it should say nothing of the zone", "a", in(3, 3, 3), 0},
		{"When four types lack capacity, it should be until the first is tried again", "a", in(9, 3, 6, 12), 3},
		{"When more types lack capacity, it should be until fewer than four do", "a", in(3, 9, 6, 12, 5, 4), 5},
		{"When machines have no zone, it should say nothing of all of them", DefaultZone, in(3, 3, 3, 3), 0},
		{"When the zone isn't known, it should say nothing", "", in(3, 3, 3, 3), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			until, ok := ZoneUntil(tc.zone, tc.untils)
			if ok != (tc.want > 0) || ok && !until.Equal(noon.Add(time.Duration(tc.want)*time.Minute)) {
				t.Errorf("until %s, %t; want %d minutes after noon", until, ok, tc.want)
			}
		})
	}
}
