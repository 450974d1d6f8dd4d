// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
)

// variables are what a patch's value can refer to; v1alpha1.BootstrapPatch documents them. A list is a []any, an object a
// map[string]any and a number an int64, as in an unstructured object.
func variables(plan Plan, registration Registration) (map[string]any, error) {
	taints, err := encodeTaints(registration.Taints)
	if err != nil {
		return nil, err
	}
	taintList := make([]any, 0, len(registration.Taints))
	for i := range registration.Taints {
		taintList = append(taintList, registration.Taints[i].ToString())
	}
	labels := map[string]any{}
	for key, value := range registration.Labels {
		labels[key] = value
	}
	labelList := []any{}
	labelFlag := mergeNodeLabels("", registration.Labels)
	if labelFlag != "" {
		for pair := range strings.SplitSeq(labelFlag, ",") {
			labelList = append(labelList, pair)
		}
	}
	return map[string]any{
		"Taints":             taints,
		"TaintList":          taintList,
		"TaintFlag":          joined(taintList),
		"Labels":             labels,
		"LabelList":          labelList,
		"LabelFlag":          labelFlag,
		"KubeReservedFlag":   registration.KubeletArgs["kube-reserved"],
		"SystemReservedFlag": registration.KubeletArgs["system-reserved"],
		"EvictionHardFlag":   registration.KubeletArgs["eviction-hard"],
		"MaxPods":            int64(plan.MaxPods),
		"MaxPodsFlag":        registration.KubeletArgs["max-pods"],
		"Version":            strings.TrimPrefix(plan.Version, "v"),
		"InstanceType":       plan.NodeLabels[corev1.LabelInstanceTypeStable],
		"Zone":               plan.NodeLabels[corev1.LabelTopologyZone],
		"CapacityType":       plan.NodeLabels[karpv1.CapacityTypeLabelKey],
		"NodeClaim":          plan.NodeClaim.Name,
	}, nil
}

func joined(list []any) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i], _ = item.(string)
	}
	return strings.Join(texts, ",")
}

// part of a value: a text, or a variable's name.
type part struct{ text, variable string }

// parseValue splits a value into texts and variables. $(name) is a variable, $$( is a text $(, and any other $ is itself.
func parseValue(value string) ([]part, error) {
	var parts []part
	text := strings.Builder{}
	for value != "" {
		before, rest, found := strings.Cut(value, "$(")
		text.WriteString(before)
		if !found {
			break
		}
		if escaped := strings.HasSuffix(before, "$"); escaped {
			// The dollar that escapes has been written as the one that is meant.
			text.WriteString("(")
			value = rest
			continue
		}
		name, after, found := strings.Cut(rest, ")")
		if !found {
			return nil, fmt.Errorf("$(%s has no closing parenthesis", rest)
		}
		if text.Len() > 0 {
			parts = append(parts, part{text: text.String()})
			text.Reset()
		}
		parts = append(parts, part{variable: name})
		value = after
	}
	if text.Len() > 0 || len(parts) == 0 {
		parts = append(parts, part{text: text.String()})
	}
	return parts, nil
}

// expand fills variables in. A value that is one variable and nothing else keeps its type, any other is a string. Empty says
// that it has variables and that none of them has anything to say.
func expand(value string, values map[string]any, images nodeimage.Images) (expanded any, empty bool, err error) {
	parts, err := parseValue(value)
	if err != nil {
		return nil, false, err
	}
	text, empty, used := strings.Builder{}, true, 0
	for _, p := range parts {
		if p.variable == "" {
			text.WriteString(p.text)
			continue
		}
		used++
		v, known := values[p.variable]
		if infrastructure, variant, isImage := imageOf(p.variable); isImage && !known {
			image, found := images.Get(infrastructure, variant)
			if !found {
				return nil, false, fmt.Errorf("$(%s): the release payload names no such image for the machine's architecture", p.variable)
			}
			v, known = image, true
		}
		if !known {
			return nil, false, fmt.Errorf("$(%s) isn't a variable", p.variable)
		}
		empty = empty && isEmpty(v)
		if len(parts) == 1 {
			// Later patches may write into it.
			return runtime.DeepCopyJSONValue(v), empty, nil
		}
		switch v := v.(type) {
		case string:
			text.WriteString(v)
		case int64:
			text.WriteString(strconv.FormatInt(v, 10))
		default:
			return nil, false, fmt.Errorf("$(%s) is a %s and can't be part of a text", p.variable, kindOf(v))
		}
	}
	return text.String(), empty && used > 0, nil
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case string:
		return v == ""
	case int64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return value == nil
}

func kindOf(value any) string {
	switch value.(type) {
	case []any:
		return "list"
	case map[string]any:
		return "object"
	case string:
		return "string"
	case bool:
		return "boolean"
	}
	return "number"
}
