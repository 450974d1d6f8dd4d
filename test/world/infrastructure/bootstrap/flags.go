// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// kubeletLabels are the labels in the kubernetes.io and k8s.io name spaces that a kubelet may set on its Node; those under
// kubelet.kubernetes.io and node.kubernetes.io come on top. From k8s.io/kubelet/pkg/apis.
var kubeletLabels = sets.New(
	corev1.LabelHostname,
	corev1.LabelTopologyZone,
	corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType,
	corev1.LabelInstanceTypeStable,
	corev1.LabelOSStable,
	corev1.LabelArchStable,
	"beta.kubernetes.io/os",
	"beta.kubernetes.io/arch",
)

// label reads --node-labels and refuses what a kubelet refuses to start with.
func (k *Kubelet) label(flag string) error {
	labels, err := parseMap(flag, "=")
	if err != nil {
		return err
	}
	for _, key := range sortedKeys(labels) {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("%q: %s", key, strings.Join(problems, "; "))
		}
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			return fmt.Errorf("%s=%q: %s", key, labels[key], strings.Join(problems, "; "))
		}
		if !kubeletMaySet(key) {
			return fmt.Errorf("%q: a kubelet refuses to start with this label of the kubernetes.io or k8s.io name space", key)
		}
	}
	k.Labels = labels
	return nil
}

func kubeletMaySet(label string) bool {
	namespace, _, found := strings.Cut(label, "/")
	if !found || kubeletLabels.Has(label) {
		return true
	}
	within := func(domain string) bool { return namespace == domain || strings.HasSuffix(namespace, "."+domain) }
	if within(corev1.LabelNamespaceSuffixKubelet) || within(corev1.LabelNamespaceSuffixNode) {
		return true
	}
	return !within("kubernetes.io") && !within("k8s.io")
}

func validateTaint(taint corev1.Taint) error {
	if problems := validation.IsQualifiedName(taint.Key); len(problems) > 0 {
		return fmt.Errorf("key %q: %s", taint.Key, strings.Join(problems, "; "))
	}
	if problems := validation.IsValidLabelValue(taint.Value); len(problems) > 0 {
		return fmt.Errorf("value %q: %s", taint.Value, strings.Join(problems, "; "))
	}
	switch taint.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return nil
	}
	return fmt.Errorf("effect %q: NoSchedule, PreferNoSchedule or NoExecute is wanted", taint.Effect)
}

func parseQuantity(text string) (resource.Quantity, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return quantity, fmt.Errorf("%q is not a quantity", text)
	}
	if quantity.Sign() < 0 {
		return quantity, fmt.Errorf("%q is negative", text)
	}
	return quantity, nil
}

func parsePercent(text string) (float64, error) {
	percent, err := strconv.ParseFloat(text, 64)
	if err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q%% is not a percentage", text)
	}
	return percent / 100, nil
}

// parseMap reads `key<separator>value` items, separated by commas; empty ones count for nothing.
func parseMap(flag, separator string) (map[string]string, error) {
	values := map[string]string{}
	for item := range strings.SplitSeq(flag, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		key, value, found := strings.Cut(item, separator)
		if !found {
			return nil, fmt.Errorf("%q: key%svalue is wanted", item, separator)
		}
		values[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return values, nil
}
