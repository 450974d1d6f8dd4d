// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/autonode-io/autonode/catalog"
)

// ParseQuantity is catalog.ParseQuantity.
func ParseQuantity(value string) (q resource.Quantity, problem string) {
	return catalog.ParseQuantity(value)
}

// ParsePercentage is catalog.ParsePercentage.
func ParsePercentage(value string) (fraction float64, err error) {
	return catalog.ParsePercentage(value)
}

// parseLabels reads key=value,key=value.
func parseLabels(value string) (set map[string]string, problem string) {
	set = map[string]string{}
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		key, v, ok := strings.Cut(part, "=")
		key, v = strings.TrimSpace(key), strings.TrimSpace(v)
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(v)) > 0 {
			return nil, fmt.Sprintf("is not a list of labels, such as team=web,tier=front: %q is not a label", part)
		}
		set[key] = v
	}
	return set, ""
}

// parseTaints reads key=value:effect,key:effect.
func parseTaints(value string) (taints []corev1.Taint, problem string) {
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		rest, effect, _ := strings.Cut(part, ":")
		key, v, _ := strings.Cut(rest, "=")
		taint := corev1.Taint{Key: key, Value: v, Effect: corev1.TaintEffect(effect)}
		switch {
		case taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectPreferNoSchedule &&
			taint.Effect != corev1.TaintEffectNoExecute,
			len(validation.IsQualifiedName(key)) > 0,
			len(validation.IsValidLabelValue(v)) > 0:
			return nil, fmt.Sprintf("is not a list of taints, such as dedicated=web:NoSchedule: %q is not a taint", part)
		}
		taints = append(taints, taint)
	}
	return taints, ""
}

// parseVolumeLimits reads driver=volumes,driver=volumes.
func parseVolumeLimits(value string) (limits map[string]int, problem string) {
	limits = map[string]int{}
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		driver, volumes, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(volumes, 10, 32)
		if err != nil || n < 0 || catalog.CSIDriverProblem(driver) != "" {
			return nil, fmt.Sprintf("is not a list of volume limits, such as ebs.csi.aws.com=25: %q is not a volume limit", part)
		}
		limits[driver] = int(n)
	}
	return limits, ""
}
