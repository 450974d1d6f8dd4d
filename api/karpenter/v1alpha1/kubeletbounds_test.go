// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

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
	other := func(fields ...string) *v1alpha1.KubeletConfiguration {
		k := &v1alpha1.KubeletConfiguration{Other: map[string]apiextensionsv1.JSON{}}
		for _, field := range fields {
			k.Other[field] = apiextensionsv1.JSON{Raw: []byte("5")}
		}
		return k
	}
	allowed := &v1alpha1.KubeletBounds{AllowedFields: []string{"maxParallelImagePulls", "providerID"}}
	const unallowed = " is set, and the platform's kubeletBounds don't allow it"
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
		"another field is allowed":                 {allowed, other("maxParallelImagePulls"), nil},
		"no other field is allowed":                {bounds, other("maxParallelImagePulls"), []string{"maxParallelImagePulls" + unallowed}},
		"there are no bounds and another field":    {nil, other("maxpods"), []string{"maxpods" + unallowed}},
		"a field of the identity is allowed":       {allowed, other("providerID"), []string{"providerID" + unallowed}},
		"a field has a name that no field can":     {allowed, other("a\n" + strings.Repeat("b", 100)), []string{`"a\n` + strings.Repeat("b", 38) + `"` + unallowed}},
		"there are more such fields than are said": {nil, other(strings.Split("abcdefghij", "")...), append(each("abcdefgh", unallowed), "of 2 more fields the same is true")},
	} {
		t.Run("When "+name+", it should say what exceeds the bounds", func(t *testing.T) {
			if got := tc.bounds.Problems(tc.own); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func each(letters, suffix string) (texts []string) {
	for _, letter := range letters {
		texts = append(texts, string(letter)+suffix)
	}
	return texts
}

func TestOtherKubeletFields(t *testing.T) {
	t.Run("When a node class sets fields without a type, they should be kept as they are, and a field's case should count", func(t *testing.T) {
		const text = `{"MaxPods":"x","logging":{"verbosity":4},"maxPods":60,"shutdownGracePeriod":null}`
		k, empty := &v1alpha1.KubeletConfiguration{PodsPerCore: new(int32(7))}, &v1alpha1.KubeletConfiguration{}
		if err := json.Unmarshal([]byte(text), k); err != nil || *k.MaxPods != 60 || k.PodsPerCore != nil || len(k.Other) != 3 {
			t.Errorf("got %v, %v", k, err)
		}
		if raw, err := json.Marshal(k); err != nil || string(raw) != text {
			t.Errorf("got %s, %v", raw, err)
		}
		if got := k.Fields(); !slices.Equal(got, []v1alpha1.KubeletField{"MaxPods", "logging", "maxPods", "shutdownGracePeriod"}) {
			t.Errorf("got %v", got)
		}
		if err := json.Unmarshal([]byte(`{}`), empty); err != nil || empty.Other != nil {
			t.Errorf("got %v, %v", empty, err)
		}
	})
	t.Run("When a typed field has another type, the error should name it", func(t *testing.T) {
		for text, want := range map[string]string{`{"maxPods":"x"}`: "KubeletConfiguration.kubelet.maxPods of type", `"x"`: "KubeletConfiguration.kubelet of type"} {
			if err := json.Unmarshal([]byte(text), &v1alpha1.KubeletConfiguration{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("When the configuration has a typed field, it should be known as such", func(t *testing.T) {
		var names []v1alpha1.KubeletField
		for field := range reflect.TypeFor[v1alpha1.KubeletConfiguration]().Fields() {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
				names = append(names, v1alpha1.KubeletField(name))
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, v1alpha1.KubeletFields) {
			t.Errorf("got %v", names)
		}
	})
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
