// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestRepairPolicies(t *testing.T) {
	t.Run("When a list is right, it should be read", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(v1alpha1.ParseRepairPolicies(
			`[{"conditionType":"GPUHealthy","conditionStatus":"False","tolerationDuration":"10m"},
			  {"conditionType":"example.com/Disk","conditionStatus":"True","tolerationDuration":"168h"},
			  {"conditionType":"GPUHealthy","conditionStatus":"False","reason":"^Xid(79|119)$","tolerationDuration":"2m",
			   "terminationGracePeriod":"0s","priority":100,"action":"Reboot"}]`)).To(Equal([]v1alpha1.RepairPolicy{
			{ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, TolerationDuration: metav1.Duration{Duration: 10 * time.Minute}},
			{ConditionType: "example.com/Disk", ConditionStatus: corev1.ConditionTrue, TolerationDuration: metav1.Duration{Duration: 168 * time.Hour}},
			{
				ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, Reason: "^Xid(79|119)$",
				TolerationDuration: metav1.Duration{Duration: 2 * time.Minute}, TerminationGracePeriod: &metav1.Duration{},
				Priority: 100, Action: v1alpha1.RepairReboot,
			},
		}))
		g.Expect(v1alpha1.ParseRepairPolicies("")).To(BeEmpty())
	})
	entry := func(fields string) string { return "[{" + fields + "}]" }
	right := `"conditionType":"GPUHealthy","conditionStatus":"False","tolerationDuration":"10m"`
	for name, test := range map[string]struct{ text, want string }{
		"it is no list":                 {"{}", "isn't a JSON list"},
		"a field is unknown":            {entry(`"type":"GPUHealthy"`), `unknown field "type"`},
		"a duration is none":            {entry(`"tolerationDuration":"long"`), `invalid duration "long"`},
		"a type is missing":             {entry(`"conditionStatus":"False","tolerationDuration":"10m"`), `[0].conditionType: "": name part must be non-empty`},
		"a type is none of a condition": {entry(`"conditionType":"a b","conditionStatus":"False","tolerationDuration":"10m"`), `[0].conditionType: "a b"`},
		"a status is unknown":           {entry(`"conditionType":"A","conditionStatus":"Broken","tolerationDuration":"10m"`), `[0].conditionStatus: "Broken" is not one of True, False, Unknown`},
		"a duration is missing":         {entry(`"conditionType":"A","conditionStatus":"True"`), `[0].tolerationDuration: 0s is not between 1m0s and 168h0m0s`},
		"a duration is long":            {entry(`"conditionType":"A","conditionStatus":"True","tolerationDuration":"169h"`), `[0].tolerationDuration: 169h0m0s`},
		"nodes are ready":               {entry(`"conditionType":"Ready","conditionStatus":"True","tolerationDuration":"10m"`), `[0]: it would repair every node that is ready`},
		"a reason is no expression":     {entry(right + `,"reason":"Xid("`), "[0].reason: \"Xid(\" is not a regular expression: error parsing regexp: missing closing )"},
		"a reason looks ahead":          {entry(right + `,"reason":"(?!Xid)"`), `[0].reason: "(?!Xid)" is not a regular expression`},
		"a reason is long":              {entry(right + `,"reason":"` + strings.Repeat("a", 257) + `"`), "[0].reason: 257 bytes exceed the limit of 256"},
		"a grace period is negative":    {entry(right + `,"terminationGracePeriod":"-1s"`), "[0].terminationGracePeriod: -1s is not between 0s and 168h0m0s"},
		"a grace period is long":        {entry(right + `,"terminationGracePeriod":"169h"`), "[0].terminationGracePeriod: 169h0m0s is not between"},
		"a priority is negative":        {entry(right + `,"priority":-1`), "[0].priority: -1 is not between 0 and 100"},
		"a priority is high":            {entry(right + `,"priority":101`), "[0].priority: 101 is not between 0 and 100"},
		"an action is Karpenter's own":  {entry(right + `,"action":"RebootNode"`), `[0].action: "RebootNode" is not one of Replace, Reboot`},
		"two are about one reason":      {"[{" + right + `,"reason":"Xid"},{` + right + "},{" + right + `,"reason":"Xid"}]`, `[2]: the policy of GPUHealthy=False is in [0] too`},
		"two are about one condition":   {"[{" + right + "},{" + right + "}]", `[1]: the policy of GPUHealthy=False is in [0] too`},
		"there are many":                {"[" + strings.TrimSuffix(strings.Repeat("{"+right+"},", 33), ",") + "]", "33 entries exceed the limit of 32"},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			policies, err := v1alpha1.ParseRepairPolicies(test.text)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
			NewWithT(t).Expect(policies).To(BeEmpty())
		})
	}
}
