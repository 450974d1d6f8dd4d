// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
)

// variables of patches.
func variables(plan Plan, registration Registration) (patch.Values, error) {
	taints, err := encodeTaints(registration.Taints)
	if err != nil {
		return patch.Values{}, err
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
	args, argList := map[string]any{}, []any{}
	for _, name := range slices.Sorted(maps.Keys(registration.KubeletArgs)) {
		args[name] = registration.KubeletArgs[name]
		argList = append(argList, name+"="+registration.KubeletArgs[name])
	}
	return patch.Values{
		Variables: map[string]any{
			patch.Taints:             taints,
			patch.TaintList:          taintList,
			patch.TaintFlag:          joined(taintList),
			patch.Labels:             labels,
			patch.LabelList:          labelList,
			patch.LabelFlag:          labelFlag,
			patch.KubeletArgs:        args,
			patch.KubeletArgList:     argList,
			patch.KubeReservedFlag:   registration.KubeletArgs[flagKubeReserved],
			patch.SystemReservedFlag: registration.KubeletArgs[flagSystemReserved],
			patch.EvictionHardFlag:   registration.KubeletArgs[flagEvictionHard],
			patch.MaxPods:            int64(plan.MaxPods),
			patch.Version:            strings.TrimPrefix(plan.Version, "v"),
			patch.InstanceType:       plan.NodeLabels[corev1.LabelInstanceTypeStable],
			patch.Zone:               plan.NodeLabels[corev1.LabelTopologyZone],
			patch.CapacityType:       plan.NodeLabels[karpv1.CapacityTypeLabelKey],
			patch.ReservationID:      plan.NodeLabels[v1alpha1.ReservationIDLabel],
			patch.FailureDomain:      plan.FailureDomain,
			patch.NodeClaim:          plan.NodeClaim.Name,
		},
		Image: func(image patch.Image) (string, bool) {
			if plan.example {
				return image.String(), true
			}
			return plan.Images.Get(image.Infrastructure, image.Variant)
		},
	}, nil
}

func joined(list []any) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i], _ = item.(string)
	}
	return strings.Join(texts, ",")
}
