// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
)

// kubeletRules hold node classes to the platform's bounds of spec.kubelet, as v1alpha1.KubeletBounds.Problems does. What a node class had
// before they were set may stay: Karpenter launches nothing from it, and reports it in its conditions.
func (in Input) kubeletRules() (rules []admissionregistrationv1.Validation) {
	bounds, reason := in.KubeletBounds, metav1.StatusReasonForbidden
	// The guest's definition keeps unknown fields, and so does dyn.
	var known []any
	for _, field := range v1alpha1.KubeletFields {
		known = append(known, string(field))
	}
	if bounds != nil {
		for _, field := range slices.Sorted(slices.Values(bounds.AllowedFields)) {
			if bounds.Allows(field) {
				known = append(known, field)
			}
		}
	}
	const kubelet, former = "dyn(object).?spec.?kubelet", "dyn(oldObject).?spec.?kubelet"
	allowed := expression(known)
	rules = []admissionregistrationv1.Validation{{
		Expression: fmt.Sprintf("object == null || %[1]s.orValue({}).all(k, k in %[2]s || (oldObject != null && %[3]s[?k] == %[1]s[?k]))",
			kubelet, allowed, former),
		MessageExpression: fmt.Sprintf("'spec.kubelet has fields that the platform does not allow (' + "+
			"%s.orValue({}).filter(k, !(k in %s)).join(', ') + '): kubeletBounds.allowedFields of ' + variables.owner + ' decides it'",
			kubelet, allowed),
		Reason: &reason,
	}}
	if bounds == nil {
		return rules
	}
	// add a rule about a field that is set and changes. holds is about v, its value.
	add := func(field v1alpha1.KubeletField, holds, message string) {
		value := "object.?spec.?kubelet.?" + string(field)
		rules = append(rules, admissionregistrationv1.Validation{
			Expression: fmt.Sprintf("object == null || (oldObject != null && %s == oldObject.?spec.?kubelet.?%s) || %s.optMap(v, %s).orValue(true)",
				value, field, value, holds),
			MessageExpression: fmt.Sprintf("%s + variables.owner + ' bounds it'", message),
			Reason:            &reason,
		})
	}
	for _, field := range slices.Sorted(slices.Values(bounds.Forbidden)) {
		add(field, "false", strconv.Quote(fmt.Sprintf("spec.kubelet.%s is the platform's to set: ", field)))
	}
	if largest := bounds.Max; largest != nil {
		if largest.MaxPods != nil {
			add("maxPods", fmt.Sprintf("v <= %d", *largest.MaxPods), exceeds("maxPods", int64(*largest.MaxPods)))
		}
		if largest.PodPidsLimit != nil {
			add("podPidsLimit", fmt.Sprintf("v > 0 && v <= %d", *largest.PodPidsLimit), exceeds("podPidsLimit", *largest.PodPidsLimit))
		}
	}
	if bounds.Min == nil {
		return rules
	}
	for _, reserved := range []struct {
		field v1alpha1.KubeletField
		least map[string]v1alpha1.ReservedQuantity
	}{{"kubeReserved", bounds.Min.KubeReserved}, {"systemReserved", bounds.Min.SystemReserved}} {
		for _, name := range slices.Sorted(maps.Keys(reserved.least)) {
			least := string(reserved.least[name])
			if quantity, err := scalar.ParseQuantity(least); err != nil || quantity.Sign() <= 0 {
				continue // an expression that fails would refuse every node class
			}
			key := strconv.Quote(name)
			add(reserved.field,
				fmt.Sprintf("size(v) == 0 || %[1]s in v && isQuantity(v[%[1]s]) && !quantity(v[%[1]s]).isLessThan(quantity(%[2]s))",
					key, strconv.Quote(least)),
				strconv.Quote(fmt.Sprintf("spec.kubelet.%s[%s] has to be at least %s: ", reserved.field, name, least)))
		}
	}
	return rules
}

// exceeds is an expression of the message about a number.
func exceeds(field string, largest int64) string {
	return fmt.Sprintf("'spec.kubelet.%[1]s is ' + string(object.spec.kubelet.%[1]s) + ', and at most %[2]d is allowed: '", field, largest)
}
