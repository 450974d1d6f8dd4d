// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// The kubelet's default hard eviction thresholds on Linux, which apply if evictionHard is unset.
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds
var defaultEvictionHard = map[string]v1alpha1.EvictionThreshold{
	"memory.available": "100Mi",
	"nodefs.available": "10%",
}

// evictionResources are the eviction signals that reduce a node's allocatable.
var evictionResources = map[string]corev1.ResourceName{
	"memory.available": corev1.ResourceMemory,
	"nodefs.available": corev1.ResourceEphemeralStorage,
}

// threshold is a quantity, or a fraction of the capacity.
type threshold struct {
	quantity resource.Quantity
	fraction float64
}

// reserved is what a kubelet reserves.
type reserved struct {
	kube, system corev1.ResourceList
	eviction     map[corev1.ResourceName]threshold
}

// parseReserved parses a node class's kubelet settings. It reports and skips a malformed value that passed admission.
func parseReserved(kubelet *v1alpha1.KubeletConfiguration) (r reserved, problems []error) {
	evictionHard := defaultEvictionHard
	if kubelet != nil {
		var errs []error
		r.kube, errs = parseQuantities("spec.kubelet.kubeReserved", kubelet.KubeReserved)
		problems = append(problems, errs...)
		r.system, errs = parseQuantities("spec.kubelet.systemReserved", kubelet.SystemReserved)
		problems = append(problems, errs...)
		if len(kubelet.EvictionHard) > 0 {
			evictionHard = kubelet.EvictionHard
		}
	}
	r.eviction = map[corev1.ResourceName]threshold{}
	for _, signal := range slices.Sorted(maps.Keys(evictionHard)) {
		name, ok := evictionResources[signal]
		if !ok {
			continue
		}
		t, err := parseThreshold(string(evictionHard[signal]))
		if err != nil {
			problems = append(problems, fmt.Errorf("spec.kubelet.evictionHard[%s]: %w", signal, err))
			// A too small allocatable is safer than a too large one.
			if t, err = parseThreshold(string(defaultEvictionHard[signal])); err != nil {
				continue
			}
		}
		r.eviction[name] = t
	}
	return r, problems
}

// overhead returns the overhead of a machine with this capacity. The part that doesn't depend on it is shared.
func (r reserved) overhead(capacity corev1.ResourceList) *cloudprovider.InstanceTypeOverhead {
	eviction := corev1.ResourceList{}
	for name, t := range r.eviction {
		quantity, ok := capacity[name]
		if !ok {
			continue
		}
		if t.fraction > 0 {
			eviction[name] = *resource.NewQuantity(int64(float64(quantity.Value())*t.fraction), resource.BinarySI)
			continue
		}
		eviction[name] = t.quantity.DeepCopy()
	}
	return &cloudprovider.InstanceTypeOverhead{
		KubeReserved:      r.kube,
		SystemReserved:    r.system,
		EvictionThreshold: eviction,
	}
}

func parseQuantities(field string, values map[string]v1alpha1.ReservedQuantity) (list corev1.ResourceList, problems []error) {
	list = corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		// A node doesn't allocate process IDs.
		if name == "pid" {
			continue
		}
		quantity, problem := template.ParseQuantity(string(values[name]))
		if problem != "" {
			problems = append(problems, fmt.Errorf("%s[%s]: %q is not a quantity, such as 100m or 256Mi", field, name, values[name]))
			continue
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list, problems
}

func parseThreshold(value string) (threshold, error) {
	if percent, ok := strings.CutSuffix(value, "%"); ok {
		p, err := strconv.ParseFloat(percent, 64)
		// This form rejects NaN too.
		if err != nil || !(p >= 0 && p <= 100) {
			return threshold{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%", value)
		}
		return threshold{fraction: p / 100}, nil
	}
	quantity, problem := template.ParseQuantity(value)
	if problem != "" {
		return threshold{}, fmt.Errorf("%q is neither a quantity, such as 100Mi, nor a percentage, such as 5%%", value)
	}
	return threshold{quantity: quantity}, nil
}
