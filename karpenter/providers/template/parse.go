// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// quantity bounds the length and the exponent: a machine has no larger quantity.
var quantity = regexp.MustCompile(`^[0-9.]{1,24}([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// ParseQuantity reads a quantity that isn't negative, or says what is wrong with it. resource.ParseQuantity accepts exponents that
// take it minutes to compare.
func ParseQuantity(value string) (q resource.Quantity, problem string) {
	if !quantity.MatchString(value) {
		return q, "is not a quantity"
	}
	q, err := resource.ParseQuantity(value)
	switch {
	case err != nil:
		return q, "is not a quantity"
	case q.AsApproximateFloat64() > 1e18:
		return resource.Quantity{}, "is more than any machine has"
	}
	return q, ""
}

// ParsePercentage reads a percentage below 100, such as 7.5%, as a fraction. A number without its sign is refused: it could
// be meant as either.
func ParsePercentage(value string) (fraction float64, err error) {
	number, ok := strings.CutSuffix(value, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !decimal.MatchString(number) || percent >= 100 {
		return 0, errors.New("is not a percentage below 100%, such as 7.5%")
	}
	return percent / 100, nil
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
		case taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectPreferNoSchedule && taint.Effect != corev1.TaintEffectNoExecute,
			len(validation.IsQualifiedName(key)) > 0,
			len(validation.IsValidLabelValue(v)) > 0:
			return nil, fmt.Sprintf("is not a list of taints, such as dedicated=web:NoSchedule: %q is not a taint", part)
		}
		taints = append(taints, taint)
	}
	return taints, ""
}

// volumeLimitsProblem says what is wrong with driver=volumes,driver=volumes.
func volumeLimitsProblem(value string) string {
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		driver, volumes, _ := strings.Cut(part, "=")
		if n, err := strconv.ParseInt(volumes, 10, 32); err != nil || n < 0 || len(validation.IsDNS1123Subdomain(driver)) > 0 {
			return fmt.Sprintf("is not a list of volume limits, such as ebs.csi.aws.com=25: %q is not a volume limit", part)
		}
	}
	return ""
}

func labelValueProblem(value string) string {
	switch msgs := validation.IsValidLabelValue(value); {
	case value == "":
		return "is empty"
	case len(msgs) > 0:
		return "is not the value of a label: " + msgs[0]
	}
	return ""
}
