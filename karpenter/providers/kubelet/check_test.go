// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		version, settings string
		want              []string
	}{
		"no settings":                       {"1.36.3", `null`, nil},
		"typed fields":                      {"1.29.0", `{"maxPods": 20}`, nil},
		"other fields of their types":       {"1.36.3", `{"maxParallelImagePulls": 5, "shutdownGracePeriod": "30s", "logging": {"verbosity": 4}, "featureGates": {"A": true}}`, nil},
		"a number that is a text":           {"1.36.3", `{"maxParallelImagePulls": "5"}`, []string{"maxParallelImagePulls: maxParallelImagePulls is a string, and Kubernetes 1.36 has the type int32"}},
		"a nested text that is a number":    {"1.36.3", `{"featureGates": {"A": 1}}`, []string{"featureGates: featureGates is a number, and Kubernetes 1.36 has the type bool"}},
		"a number that is too large":        {"1.36.3", `{"registryBurst": 2147483648}`, []string{"registryBurst: registryBurst is a number 2147483648, and Kubernetes 1.36 has the type int32"}},
		"a time that is none":               {"1.36.3", `{"shutdownGracePeriod": "1d"}`, []string{`shutdownGracePeriod: time: unknown unit "d" in duration "1d"`}},
		"a field that the kubelet hasn't":   {"1.36.3", `{"maxpods": 20, "logging": {"level": 4}}`, []string{`logging: unknown field "logging.level" in Kubernetes 1.36`, `maxpods: unknown field "maxpods" in Kubernetes 1.36`}},
		"a field of a newer kubelet":        {"1.37.2", `{"defaultPodSysctls": []}`, []string{`defaultPodSysctls: unknown field "defaultPodSysctls" in Kubernetes 1.36`}},
		"a field that older kubelets don't": {"1.35.1", `{"memoryReservationPolicy": "None"}`, []string{"memoryReservationPolicy: kubelets have it since 1.36, and nodes have version 1.35.1"}},
		"no version yet":                    {"", `{"memoryReservationPolicy": "None"}`, nil},
		"kubelets without drop-in files":    {"1.29.4", `{"maxParallelImagePulls": 5}`, []string{"maxParallelImagePulls: kubelets have it since 1.30, and nodes have version 1.29.4"}},
		"a quantity without end":            {"1.36.3", `{"reservedMemory": [{"numaNode": 0, "limits": {"memory": "1e999999999"}}]}`, []string{"reservedMemory: a quantity has an exponent of more than two digits"}},
		"a value in many places":            {"1.36.3", `{"containerLogMaxSize": "` + strings.Repeat("9", 20000) + `", "logging": {}}`, []string{"containerLogMaxSize: the fields have more than 16384 bytes"}},
	} {
		t.Run("When a node class has "+name+", it should say what its kubelets don't take", func(t *testing.T) {
			g := NewWithT(t)
			var settings *v1alpha1.KubeletConfiguration
			g.Expect(json.Unmarshal([]byte(tc.settings), &settings)).To(Succeed())
			g.Expect(Check(settings, tc.version)).To(Equal(tc.want))
		})
	}
	t.Run("When a field has any value whatever, it should return", func(t *testing.T) {
		for _, field := range fields(reflect.TypeFor[kubeletconfig.KubeletConfiguration]()) {
			for _, value := range []string{`null`, `{}`, `[]`, `[null]`, `{"":null}`, `"1e9999"`, `-1`, `1e300`, `true`, `[{"limits":{"a":"1E-400"}}]`, ``, `{`} {
				Check(&v1alpha1.KubeletConfiguration{Other: map[string]apiextensionsv1.JSON{field: {Raw: []byte(value)}}}, "1.36.3")
			}
		}
	})
	t.Run("When a field is known to be newer, the kubelet should have it", func(t *testing.T) {
		for field := range since {
			NewWithT(t).Expect(otherFields).To(ContainElement(field))
		}
	})
}
