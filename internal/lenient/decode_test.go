// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

func TestDecode(t *testing.T) {
	for name, test := range map[string]struct{ spec, path string }{
		"a duration overflows":              {`"template":{"spec":{"expireAfter":"999999999999999h"}}`, "spec.template.spec.expireAfter"},
		"a quantity isn't one":              {`"limits":{"cpu":"1e1.5"}`, "spec.limits.cpu"},
		"a list is a text":                  {`"disruption":{"budgets":"all"}`, "spec.disruption.budgets"},
		"a number is beyond its type's":     {`"weight":99999999999`, "spec.weight"},
		"a quantity is very small":          {`"limits":{"cpu":"1e-999999999"}`, "spec.limits.cpu"}, // kubernetes/kubernetes#106386
		"a quantity is very large":          {`"limits":{"cpu":"1E+999999999"}`, "spec.limits.cpu"},
		"a quantity is a number, and small": {`"limits":{"cpu":1e-999999999}`, "spec.limits.cpu"},
		"a quantity is in white space":      {`"limits":{"cpu":" 1e-999999999 "}`, "spec.limits.cpu"},
		"a quantity's digits are escaped":   {`"limits":{"cpu":"1\u0065-999999999"}`, "spec.limits.cpu"},
		"a quantity has many digits":        {`"limits":{"cpu":"` + strings.Repeat("9", 300) + `"}`, "spec.limits.cpu"},
		"a quantity's key is a path":        {`"limits":{"example.com/a":"1e9999"}`, "spec.limits.example.com/a"},
	} {
		t.Run("When "+name+", it should be left out and named, and the rest decoded", func(t *testing.T) {
			g := NewWithT(t)
			pool := &karpv1.NodePool{}
			_, problems, err := Decode([]byte(`{"metadata":{"name":"a"},"spec":{`+test.spec+`,"replicas":3}}`), pool, standard)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(problems).To(HaveExactElements(HavePrefix(test.path + ": ")))
			g.Expect(len(problems[0])).To(BeNumerically("<", 1024))
			g.Expect(pool.Spec.Replicas).To(HaveValue(BeEquivalentTo(3)))
			g.Expect(pool.Spec.Limits).To(BeEmpty())
		})
	}

	t.Run("When a time can't be decoded, it should be the one that is meant, or the present", func(t *testing.T) {
		g := NewWithT(t)
		pool := &karpv1.NodePool{}
		const conditions = `{"lastTransitionTime":"2026-12-01t06:00:00z"},{"lastTransitionTime":"never"}`
		_, problems, err := Decode([]byte(`{"status":{"conditions":[`+conditions+`]}}`), pool, standard)
		g.Expect(err).NotTo(HaveOccurred())
		const first, second = "status.conditions.0.lastTransitionTime: ", "status.conditions.1.lastTransitionTime: "
		g.Expect(problems).To(HaveExactElements(HavePrefix(first), HavePrefix(second)))
		g.Expect(pool.Status.Conditions[0].LastTransitionTime.UTC().Format(time.RFC3339)).To(Equal("2026-12-01T06:00:00Z"))
		g.Expect(pool.Status.Conditions[1].LastTransitionTime.Time).To(BeTemporally("~", time.Now(), time.Minute))
	})

	t.Run("When more values can't be decoded than are tried, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		limits := &strings.Builder{}
		for i := range maxProblems + 1 {
			fmt.Fprintf(limits, `"a%d":"x",`, i)
		}
		_, _, err := Decode([]byte(`{"spec":{"limits":{`+limits.String()+`"cpu":"1"}}}`), &karpv1.NodePool{}, standard)
		g.Expect(err).To(MatchError(ErrProblems))
		large := `{"spec":{"weight":"x","limits":{"cpu":"x"}},"status":{"a":"` + strings.Repeat("x", maxDecoded) + `"}}`
		_, _, err = Decode([]byte(large), &karpv1.NodePool{}, standard)
		g.Expect(err).To(MatchError(ErrProblems))
	})

	t.Run("When a type is skipped, its values should be absent, whatever they are", func(t *testing.T) {
		g := NewWithT(t)
		pool := &karpv1.NodePool{}
		_, problems, err := Decode([]byte(`{"metadata":{"name":"a","managedFields":[7]}}`), pool, Options(Skip[[]metav1.ManagedFieldsEntry]()))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(problems).To(BeEmpty())
		g.Expect(pool.ObjectMeta).To(Equal(metav1.ObjectMeta{Name: "a"}))
	})

	t.Run("When it isn't an object, it should say so", func(t *testing.T) {
		for _, raw := range []string{``, `{`, `[]`, `7`, `{"spec":{"weight":"x"}`, `{"spec":{},}`} {
			_, _, err := Decode([]byte(raw), &karpv1.NodePool{}, standard)
			NewWithT(t).Expect(err).To(HaveOccurred(), raw)
		}
	})
}

func TestCount(t *testing.T) {
	for name, test := range map[string]struct{ raw, why string }{
		"few values":                          {`{"a":[{},"[,[,[",7]}`, ""},
		"a list of many elements":             {`{"a":[` + strings.Repeat("{},", MaxElements) + `{}]}`, "4096 elements in one list"},
		"many lists":                          {`[` + strings.Repeat(`[`+strings.Repeat("7,", 20)+`7],`, 4000), "65536 values"},
		"an object of many fields":            {`{` + strings.Repeat(`"a":7,`, maxValues+1), "65536 values"},
		"values in values":                    {strings.Repeat(`{"a":`, maxDepth+1), "64 levels"},
		"many elements beside escaped quotes": {`{"\"":["\\",` + strings.Repeat("7,", MaxElements), "4096 elements in one list"},
	} {
		t.Run("When JSON has "+name+", it should be counted", func(t *testing.T) {
			g := NewWithT(t)
			_, err := Count([]byte(test.raw))
			if test.why == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError("more than " + test.why))
		})
	}
}

func TestSelector(t *testing.T) {
	exists := metav1.LabelSelectorRequirement{Key: "a", Operator: metav1.LabelSelectorOpExists}
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		matches  bool
		why      string
	}{
		"When there is no selector, it should match nothing":         {},
		"When a selector has as much as is allowed, it should match": {&metav1.LabelSelector{MatchExpressions: slices.Repeat([]metav1.LabelSelectorRequirement{exists}, 50)}, true, ""},
		"When it has more requirements, it should be rejected":       {&metav1.LabelSelector{MatchLabels: map[string]string{"a": "1"}, MatchExpressions: slices.Repeat([]metav1.LabelSelectorRequirement{exists}, 50)}, false, "more than 50"},
		"When a requirement has many values, it should match": {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "a", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"1"}, 1000),
		}}}, true, ""},
		"When its values are longer than is allowed, it should be rejected": {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "a", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"1"}, 2000),
		}}}, false, "4 KiB"},
		"When it is malformed, it should be rejected": {&metav1.LabelSelector{MatchLabels: map[string]string{"/": ""}}, false, "key"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			selector, err := Selector(test.selector)
			if test.why != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.why)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(selector.Matches(labels.Set{"a": "1"})).To(Equal(test.matches))
		})
	}
}
