// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// capacityOf is the least capacity of the templates, as they declare it.
func (b *builder) capacityOf(templates []*template.Template) corev1.ResourceList {
	capacity := templates[0].Capacity.DeepCopy()
	for _, tmpl := range templates[1:] {
		for name, quantity := range capacity {
			other, ok := tmpl.Capacity[name]
			switch {
			case !ok:
				delete(capacity, name)
			case other.Cmp(quantity) < 0:
				capacity[name] = other.DeepCopy()
			}
		}
	}
	if slices.ContainsFunc(templates, func(tmpl *template.Template) bool { return tmpl.Bootstrap.Kubelet.NoLocalStorage }) {
		delete(capacity, corev1.ResourceEphemeralStorage)
	}
	pods := templates[0].MaxPods(b.Kubelet)
	for _, tmpl := range templates[1:] {
		pods = min(pods, tmpl.MaxPods(b.Kubelet))
	}
	capacity[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	return capacity
}

// Revision returns the revision of a template's nodes. nodeClassHash is in the annotation of the node class's machines.
func Revision(tmpl *template.Template, nodeClassHash string) inventory.Revision {
	return inventory.Revision{
		Source: tmpl.Source.Annotation(), ContentHash: tmpl.ContentHash, BootstrapHash: tmpl.Bootstrap.Hash, NodeClassHash: nodeClassHash,
	}
}

// expectMemory lowers the memory to the one that nodes have reported, and before that a nominal one to the one that nodes are
// assumed to have. It never raises it above the declared one.
func (b *builder) expectMemory(capacity corev1.ResourceList, templates []*template.Template) {
	for _, tmpl := range templates {
		bytes := tmpl.Capacity.Memory().Value()
		if overhead := b.memoryOverhead(tmpl); overhead > 0 {
			bytes = int64(float64(bytes)*(1-overhead)) >> 20 << 20
		}
		if report, known := b.Inventory.Capacity(Revision(tmpl, b.NodeClassHash)); known && !(report.Unconfirmed && report.Memory < bytes) {
			bytes = report.Memory
		}
		if bytes < capacity.Memory().Value() {
			capacity[corev1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
}

// memoryOverhead is the fraction of a template's declared memory that its nodes are assumed to lack.
func (b *builder) memoryOverhead(tmpl *template.Template) float64 {
	switch {
	case tmpl.MemoryOverhead != nil:
		return *tmpl.MemoryOverhead
	case tmpl.NominalMemory:
		return b.MemoryOverhead
	}
	return 0
}

// overheadOf is the most that the templates' kubelets reserve, and as much more as nodes have reported less than that leaves.
func (b *builder) overheadOf(capacity corev1.ResourceList, templates []*template.Template) *karpcloudprovider.InstanceTypeOverhead {
	var overhead *karpcloudprovider.InstanceTypeOverhead
	seen := ""
	for _, tmpl := range templates {
		kubelet := kubeletOf(tmpl)
		switch compute := b.reserved[kubelet].overhead; {
		case overhead == nil:
			overhead = compute(capacity)
		case kubelet != seen:
			overhead = maxOverhead(overhead, compute(capacity))
		}
		seen = kubelet
	}
	missing := corev1.ResourceList{}
	total := overhead.Total()
	for _, tmpl := range templates {
		report, known := b.Inventory.Allocatable(Revision(tmpl, b.NodeClassHash))
		if !known || report.Unconfirmed {
			continue
		}
		for name, reported := range report.Quantities() {
			less, ok := capacity[name]
			if !ok {
				continue
			}
			less.Sub(total[name])
			less.Sub(reported)
			if other := missing[name]; less.Cmp(other) > 0 {
				missing[name] = less
			}
		}
	}
	if len(missing) > 0 {
		overhead = &karpcloudprovider.InstanceTypeOverhead{
			KubeReserved: overhead.KubeReserved, SystemReserved: resources.Merge(overhead.SystemReserved, missing),
			EvictionThreshold: overhead.EvictionThreshold,
		}
	}
	return overhead
}
