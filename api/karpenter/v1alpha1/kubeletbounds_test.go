// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"slices"
	"testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestKubeletBounds(t *testing.T) {
	reserved := func(pairs ...string) map[string]v1alpha1.ReservedQuantity {
		result := map[string]v1alpha1.ReservedQuantity{}
		for i := 0; i < len(pairs); i += 2 {
			result[pairs[i]] = v1alpha1.ReservedQuantity(pairs[i+1])
		}
		return result
	}
	bounds := &v1alpha1.KubeletBounds{
		Forbidden: []v1alpha1.KubeletField{"clusterDNS", "cpuCFSQuota"},
		Max:       &v1alpha1.KubeletMaximums{MaxPods: new(int32(250)), PodPidsLimit: new(int64(4096))},
		Min:       &v1alpha1.KubeletMinimums{KubeReserved: reserved("cpu", "0"), SystemReserved: reserved("memory", "512Mi", "cpu", "0.1")},
	}
	for name, tc := range map[string]struct {
		bounds *v1alpha1.KubeletBounds
		own    *v1alpha1.KubeletConfiguration
		want   []string
	}{
		"nothing is bounded": {nil, &v1alpha1.KubeletConfiguration{MaxPods: new(int32(2500))}, nil},
		"the bounds are empty": {&v1alpha1.KubeletBounds{Max: &v1alpha1.KubeletMaximums{}, Min: &v1alpha1.KubeletMinimums{}}, &v1alpha1.KubeletConfiguration{
			MaxPods: new(int32(2500)), PodPidsLimit: new(int64(-1)), SystemReserved: reserved("cpu", "0"),
		}, nil},
		"a node class sets nothing":      {bounds, nil, nil},
		"a node class sets no field":     {bounds, &v1alpha1.KubeletConfiguration{}, nil},
		"values are as large as allowed": {bounds, &v1alpha1.KubeletConfiguration{MaxPods: new(int32(250)), PodPidsLimit: new(int64(4096))}, nil},
		"values are as small as allowed": {bounds, &v1alpha1.KubeletConfiguration{SystemReserved: reserved("memory", "0.5Gi", "cpu", "100m"), KubeReserved: reserved("memory", "1Gi")}, nil},
		"a value is too large":           {bounds, &v1alpha1.KubeletConfiguration{MaxPods: new(int32(251))}, []string{"maxPods is 251, and the platform allows at most 250"}},
		"processes have no limit":        {bounds, &v1alpha1.KubeletConfiguration{PodPidsLimit: new(int64(-1))}, []string{"podPidsLimit is -1, and the platform allows at most 4096"}},
		"a value is too small": {bounds, &v1alpha1.KubeletConfiguration{SystemReserved: reserved("memory", "511Mi", "cpu", "1")},
			[]string{"systemReserved[memory] is 511Mi, and the platform requires at least 512Mi"}},
		"a value is missing": {bounds, &v1alpha1.KubeletConfiguration{SystemReserved: reserved("cpu", "1")},
			[]string{"systemReserved[memory] isn't set, and the platform requires at least 512Mi"}},
		"a value is none": {bounds, &v1alpha1.KubeletConfiguration{SystemReserved: reserved("memory", "much", "cpu", "1")},
			[]string{"systemReserved[memory] is much, and the platform requires at least 512Mi"}},
		"fields are forbidden": {bounds, &v1alpha1.KubeletConfiguration{ClusterDNS: []string{"10.96.0.10"}, CPUCFSQuota: new(true)},
			[]string{"clusterDNS is set, and the platform forbids it", "cpuCFSQuota is set, and the platform forbids it"}},
	} {
		t.Run("When "+name+", it should say what exceeds the bounds", func(t *testing.T) {
			if got := tc.bounds.Problems(tc.own); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestImageGCThresholds(t *testing.T) {
	for name, tc := range map[string]struct {
		own       *v1alpha1.KubeletConfiguration
		high, low int32
		ok        bool
	}{
		"there is no configuration": {nil, 0, 0, false},
		"neither is set":            {&v1alpha1.KubeletConfiguration{}, 0, 0, false},
		"the high one is set":       {&v1alpha1.KubeletConfiguration{ImageGCHighThresholdPercent: new(int32(90))}, 90, 80, true},
		"the low one is set":        {&v1alpha1.KubeletConfiguration{ImageGCLowThresholdPercent: new(int32(0))}, 85, 0, true},
	} {
		t.Run("When "+name+", it should return both or none", func(t *testing.T) {
			if high, low, ok := tc.own.ImageGCThresholds(); high != tc.high || low != tc.low || ok != tc.ok {
				t.Errorf("got %d, %d, %t", high, low, ok)
			}
		})
	}
}
