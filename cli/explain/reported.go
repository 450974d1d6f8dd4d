// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
)

// maxReported is how many templates a node class's status has at most.
const maxReported = 100

// Reported is a cloud provider that has what the status of node classes reports about their templates: less than Karpenter, which reads the
// management cluster.
type Reported struct {
	karpcloudprovider.CloudProvider // nil: a simulation calls the methods below only
	guest                           *Snapshot
}

// ReportedBy returns the provider, and what it has less of than Karpenter.
func ReportedBy(guest *Snapshot) (Reported, []string) {
	missing := []string{
		"Instance types come from the status of the node classes: capacity, architecture, zones and prices. Labels and taints of templates, " +
			"and what a node keeps for the system, aren't known without the management cluster (--management-kubeconfig)",
	}
	for _, class := range list[*v1alpha1.ClusterAPINodeClass](guest) {
		if len(class.Status.Templates) >= maxReported {
			missing = append(missing, fmt.Sprintf("The status of node class %s lists its %d cheapest templates, no more", class.Name, maxReported))
		}
	}
	return Reported{guest: guest}, missing
}

// Name implements cloudprovider.CloudProvider.
func (Reported) Name() string { return "clusterapi" }

// RepairPolicies implements cloudprovider.CloudProvider.
func (Reported) RepairPolicies() []karpcloudprovider.RepairPolicy { return nil }

// Reboot implements cloudprovider.CloudProvider. A simulation reboots nothing.
func (Reported) Reboot(context.Context, *karpv1.NodeClaim, string) error {
	return karpcloudprovider.NewNodeRebootNotImplementedError()
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (Reported) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (r Reported) GetInstanceTypes(_ context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	name := nodePool.Spec.Template.Spec.NodeClassRef.Name
	class := named[*v1alpha1.ClusterAPINodeClass](r.guest, name)
	if class == nil {
		return nil, fmt.Errorf("node class %s doesn't exist; NodePool %s names it", name, nodePool.Name)
	}
	var types []*karpcloudprovider.InstanceType
	for i := range class.Status.Templates {
		t := &class.Status.Templates[i]
		// Templates of one instance type are listed cheapest first.
		if !slices.ContainsFunc(types, func(it *karpcloudprovider.InstanceType) bool { return it.Name == t.InstanceType }) {
			types = append(types, ReportedType(t))
		}
	}
	return types, nil
}

// ReportedType returns an instance type that the status of a node class lists.
func ReportedType(t *v1alpha1.TemplateStatus) *karpcloudprovider.InstanceType {
	zones := t.Zones
	if len(zones) == 0 {
		zones = []string{"default"}
	}
	cpu, memory := t.CPU.Amount(), t.Memory.Amount()
	it := &karpcloudprovider.InstanceType{
		Name: t.InstanceType, Overhead: &karpcloudprovider.InstanceTypeOverhead{},
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory, corev1.ResourcePods: *resource.NewQuantity(t.Pods, resource.DecimalSI),
		},
	}
	for name, quantity := range t.GPU {
		it.Capacity[corev1.ResourceName(name)] = quantity.Amount()
	}
	var capacityTypes []string
	for _, offered := range []struct{ capacityType, price string }{{karpv1.CapacityTypeOnDemand, t.Price},
		{karpv1.CapacityTypeSpot, t.SpotPrice}} {
		price, err := strconv.ParseFloat(offered.price, 64)
		if err != nil {
			continue // it isn't offered as such, or has no price
		}
		capacityTypes = append(capacityTypes, offered.capacityType)
		for _, zone := range zones {
			it.Offerings = append(it.Offerings, &karpcloudprovider.Offering{
				Requirements: karpscheduling.NewLabelRequirements(map[string]string{
					corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: offered.capacityType,
				}),
				Price: price, Available: t.Unavailable == "",
			})
		}
	}
	it.Requirements = karpscheduling.NewRequirements(
		karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, t.InstanceType),
		karpscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, t.Architecture),
		karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
		karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityTypes...),
		karpscheduling.NewRequirement(wellknown.InstanceCPULabel, corev1.NodeSelectorOpIn, strconv.FormatInt(cpu.MilliValue()/1000, 10)),
		karpscheduling.NewRequirement(wellknown.InstanceMemoryLabel, corev1.NodeSelectorOpIn, strconv.FormatInt(memory.Value()>>20, 10)),
	)
	return it
}
