// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/scalar"
)

// ImageGCThresholds returns both thresholds of the image garbage collection if one is set: an unset one has the kubelet's default.
func (k *KubeletConfiguration) ImageGCThresholds() (high, low int32, ok bool) {
	if k == nil || k.ImageGCHighThresholdPercent == nil && k.ImageGCLowThresholdPercent == nil {
		return 0, 0, false
	}
	high, low = DefaultImageGCHighThresholdPercent, DefaultImageGCLowThresholdPercent
	if k.ImageGCHighThresholdPercent != nil {
		high = *k.ImageGCHighThresholdPercent
	}
	if k.ImageGCLowThresholdPercent != nil {
		low = *k.ImageGCLowThresholdPercent
	}
	return high, low, true
}

// Fields are those that are set, sorted. The receiver may be nil.
func (k *KubeletConfiguration) Fields() (fields []KubeletField) {
	// Numbers, truth values, strings and maps of strings always encode.
	raw, _ := json.Marshal(k)
	set := map[KubeletField]json.RawMessage{}
	_ = json.Unmarshal(raw, &set)
	return slices.Sorted(maps.Keys(set))
}

// KubeletField is a field of spec.kubelet.
//
// +kubebuilder:validation:Enum=clusterDNS;maxPods;podsPerCore;kubeReserved;systemReserved;evictionHard;evictionSoft;evictionSoftGracePeriod;evictionMaxPodGracePeriod;imageGCHighThresholdPercent;imageGCLowThresholdPercent;cpuCFSQuota;podPidsLimit
type KubeletField string

// KubeletBounds bound spec.kubelet of node classes. A field that a node class doesn't set has the bootstrap template's value, independent
// of the bounds.
type KubeletBounds struct {
	// forbidden are the fields that no node class may set. Set them in the bootstrap template.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=13
	Forbidden []KubeletField `json:"forbidden,omitempty"`
	// max has the largest values that node classes may set.
	// +optional
	Max *KubeletMaximums `json:"max,omitempty"`
	// min has the smallest values that node classes may set.
	// +optional
	Min *KubeletMinimums `json:"min,omitempty"`
}

// KubeletMaximums are the largest values of fields of spec.kubelet.
type KubeletMaximums struct {
	// maxPods is the largest maxPods.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2500
	MaxPods *int32 `json:"maxPods,omitempty"`
	// podPidsLimit is the largest podPidsLimit; -1, which is no limit, exceeds it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4194304
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`
}

// KubeletMinimums are the smallest values of fields of spec.kubelet.
type KubeletMinimums struct {
	// kubeReserved is the minimum for node classes that set kubeReserved: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="kubeReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="kubeReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`
	// systemReserved is the minimum for node classes that set systemReserved.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="systemReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="systemReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`
}

// Problems returns a node class's settings beyond the bounds, as "maxPods is 300, and the platform allows at most 250". Both may be nil.
func (b *KubeletBounds) Problems(kubelet *KubeletConfiguration) (problems []string) {
	if b == nil || kubelet == nil {
		return nil
	}
	for _, field := range kubelet.Fields() {
		if slices.Contains(b.Forbidden, field) {
			problems = append(problems, string(field)+" is set, and the platform forbids it")
		}
	}
	if largest := b.Max; largest != nil {
		if n := kubelet.MaxPods; n != nil && largest.MaxPods != nil && *n > *largest.MaxPods {
			problems = append(problems, fmt.Sprintf("maxPods is %d, and the platform allows at most %d", *n, *largest.MaxPods))
		}
		if n := kubelet.PodPidsLimit; n != nil && largest.PodPidsLimit != nil && (*n > *largest.PodPidsLimit || *n <= 0) {
			problems = append(problems, fmt.Sprintf("podPidsLimit is %d, and the platform allows at most %d", *n, *largest.PodPidsLimit))
		}
	}
	if b.Min != nil {
		problems = append(problems, tooLittle("kubeReserved", kubelet.KubeReserved, b.Min.KubeReserved)...)
		problems = append(problems, tooLittle("systemReserved", kubelet.SystemReserved, b.Min.SystemReserved)...)
	}
	return problems
}

// tooLittle compares a node class's reservations with the minimum. Without a value the bootstrap's counts.
func tooLittle(field string, reserved, least map[string]ReservedQuantity) (problems []string) {
	if len(reserved) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		wanted, err := scalar.ParseQuantity(string(least[name]))
		if err != nil {
			continue // the schema refuses it
		}
		value, set := reserved[name]
		switch got, err := scalar.ParseQuantity(string(value)); {
		case !set:
			if wanted.Sign() > 0 {
				problems = append(problems, fmt.Sprintf("%s[%s] isn't set, and the platform requires at least %s", field, name, least[name]))
			}
		case err != nil || got.Cmp(wanted) < 0:
			problems = append(problems, fmt.Sprintf("%s[%s] is %s, and the platform requires at least %s", field, name, value, least[name]))
		}
	}
	return problems
}
