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
	"k8s.io/utils/ptr"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// defaultEvictionHard are the kubelet's default hard eviction thresholds, which apply if evictionHard is unset.
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds
func defaultEvictionHard(os string) map[string]v1alpha1.EvictionThreshold {
	memory := v1alpha1.EvictionThreshold("100Mi")
	if os == string(corev1.Windows) {
		memory = "500Mi"
	}
	return map[string]v1alpha1.EvictionThreshold{"memory.available": memory, "nodefs.available": "10%"}
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

// reserved has a kubelet's reservations.
type reserved struct {
	kube, system corev1.ResourceList
	eviction     map[corev1.ResourceName]threshold
}

// parseReserved parses the settings of a template's kubelets, over which those of the node class win. os is the value of
// kubernetes.io/os. It reports and skips a malformed value that passed admission. Values of the template are reported as those of
// place.
func parseReserved(nodeClass *v1alpha1.KubeletConfiguration, template kubelet.Settings, os, place string) (r reserved, problems []error) {
	settings := template.Over(nodeClass)
	class := ptr.Deref(nodeClass, v1alpha1.KubeletConfiguration{})
	field := func(name string, inNodeClass bool) string {
		if inNodeClass {
			return "spec.kubelet." + name
		}
		return place + ": " + name
	}
	var errs []error
	r.kube, errs = parseQuantities(field("kubeReserved", len(class.KubeReserved) > 0), settings.KubeReserved)
	problems = append(problems, errs...)
	r.system, errs = parseQuantities(field("systemReserved", len(class.SystemReserved) > 0), settings.SystemReserved)
	problems = append(problems, errs...)
	if settings.ReservedCPUs != nil {
		delete(r.kube, corev1.ResourceCPU)
		r.system[corev1.ResourceCPU] = *resource.NewQuantity(*settings.ReservedCPUs, resource.DecimalSI)
	}
	defaults := defaultEvictionHard(os)
	evictionHard := settings.EvictionHard
	switch {
	case evictionHard == nil:
		evictionHard = defaults
	case settings.MergeEvictionDefaults:
		evictionHard = maps.Clone(defaults)
		maps.Copy(evictionHard, settings.EvictionHard)
	}
	r.eviction = map[corev1.ResourceName]threshold{}
	if settings.IgnoreEviction {
		return r, problems
	}
	for _, signal := range slices.Sorted(maps.Keys(evictionHard)) {
		name, ok := evictionResources[signal]
		if !ok {
			continue
		}
		t, err := parseThreshold(string(evictionHard[signal]))
		if err != nil {
			problems = append(problems, fmt.Errorf("%s[%s]: %w", field("evictionHard", len(class.EvictionHard) > 0), signal, err))
			// A too small allocatable is safer than a too large one.
			if t, err = parseThreshold(string(defaults[signal])); err != nil {
				continue
			}
		}
		r.eviction[name] = t
	}
	return r, problems
}

// maxOverhead returns the element-wise maximum, for the templates of one instance type.
func maxOverhead(a, b *karpcloudprovider.InstanceTypeOverhead) *karpcloudprovider.InstanceTypeOverhead {
	return &karpcloudprovider.InstanceTypeOverhead{
		KubeReserved:      resources.MaxResources(a.KubeReserved, b.KubeReserved),
		SystemReserved:    resources.MaxResources(a.SystemReserved, b.SystemReserved),
		EvictionThreshold: resources.MaxResources(a.EvictionThreshold, b.EvictionThreshold),
	}
}

// overhead returns the overhead of a machine with this capacity. The part that doesn't depend on it is shared.
func (r reserved) overhead(capacity corev1.ResourceList) *karpcloudprovider.InstanceTypeOverhead {
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
	return &karpcloudprovider.InstanceTypeOverhead{
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
		if value == "100%" {
			return threshold{}, nil // for the kubelet it is no threshold, as 0%
		}
		return threshold{fraction: p / 100}, nil
	}
	quantity, problem := template.ParseQuantity(value)
	if problem != "" || quantity.IsZero() { // no kubelet starts with a threshold of 0
		return threshold{}, fmt.Errorf("%q is neither a positive quantity, such as 100Mi, nor a percentage, such as 5%%", value)
	}
	return threshold{quantity: quantity}, nil
}

// reservedOf reads the kubelets' reservations in each bootstrap.
func reservedOf(in Input) (result map[string]reserved, problems []error) {
	result = map[string]reserved{}
	for i := range in.Templates {
		bootstrap, kubelet := &in.Templates[i].Bootstrap, kubeletOf(&in.Templates[i])
		if _, ok := result[kubelet]; ok {
			continue
		}
		place := ""
		if bootstrap.ConfigTemplate != nil {
			place = bootstrap.ConfigTemplate.GetKind() + " " + bootstrap.ConfigTemplate.GetName()
		}
		var errs []error
		result[kubelet], errs = parseReserved(in.Kubelet, bootstrap.Kubelet, in.Templates[i].OS, place)
		for _, err := range errs {
			// The node class's values are wrong with every bootstrap.
			if !slices.ContainsFunc(problems, func(other error) bool { return other.Error() == err.Error() }) {
				problems = append(problems, err)
			}
		}
	}
	return result, problems
}

// kubeletOf identifies the settings of a template's kubelets: those of its bootstrap, its instance type and its operating
// system, unless a node class's patches depend on the template.
func kubeletOf(tmpl *template.Template) string {
	kubelet := tmpl.Bootstrap.Hash + tmpl.OverheadHash + "/" + tmpl.OS
	if tmpl.Bootstrap.Patched {
		return kubelet + "/" + tmpl.Source.Annotation()
	}
	return kubelet
}
