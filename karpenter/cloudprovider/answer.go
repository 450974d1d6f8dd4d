// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// answer returns a Machine as the NodeClaim that Create returns. A Machine of an earlier attempt has the offering that it was launched as,
// rather than the chosen one.
func (c *CloudProvider) answer(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, chosen *launch,
) (*karpv1.NodeClaim, error) {
	if m.DeletionTimestamp != nil {
		// The pods need another NodeClaim.
		return nil, karpcloudprovider.NewInsufficientCapacityError(fmt.Errorf("its Machine %s is being deleted", klog.KObj(m)))
	}
	origin := inventory.OriginOf(m)
	if chosen == nil || origin.Source != chosen.choice.Template.Source.Annotation() || origin.Key != chosen.choice.Key {
		chosen = c.launched(ctx, nodeClaim, origin)
	}
	result := nodeClaimOf(m)
	result.Status.ProviderID = machine.SyntheticProviderID(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
	for _, annotation := range []string{v1alpha1.NodeClassHashAnnotation, v1alpha1.NodeClassHashVersionAnnotation} {
		if value := m.Annotations[annotation]; value != "" {
			result.Annotations[annotation] = value
		}
	}
	if chosen == nil {
		// The Machine exists nevertheless. Until its node reports its capacity, assume the requested resources.
		result.Status.Capacity = nonZero(nodeClaim.Spec.Resources.Requests)
		result.Status.Allocatable = result.Status.Capacity
		return result, nil
	}
	result.Labels = chosen.labels
	result.Status.Capacity = nonZero(chosen.instanceType.Capacity)
	result.Status.Allocatable = nonZero(chosen.instanceType.Allocatable())
	return result, nil
}

// launched returns the launch by which a Machine was created; nil if the node class doesn't offer it any more.
func (c *CloudProvider) launched(ctx context.Context, nodeClaim *karpv1.NodeClaim, origin inventory.Origin) *launch {
	snapshot, choice, ok := c.resolve(nodeClaim.Spec.NodeClassRef.Name, origin.Key)
	if !ok {
		return nil
	}
	if tmpl, ok := snapshot.Template(origin.Source); ok {
		choice.Template = tmpl
	} else if origin.Source != "" && origin.Source != choice.Template.Source.Annotation() {
		choice.Template = &template.Template{} // its labels aren't known any more
	}
	l := launch{instanceType: choice.InstanceType, offering: choice.Offering, choice: choice}
	// Without the overlaid one, the instance type is as the template declares it.
	overlaid, err := c.overlaid(ctx, nodePoolOf(nodeClaim), []*karpcloudprovider.InstanceType{choice.InstanceType})
	if err == nil && len(overlaid) == 1 {
		l.instanceType = overlaid[0]
		for _, o := range overlaid[0].Offerings {
			if offering.KeyOf(origin.InstanceType, o) == origin.Key {
				l.offering = o
			}
		}
	}
	return l.label(nodeClaim)
}

func nonZero(list corev1.ResourceList) corev1.ResourceList {
	result := corev1.ResourceList{}
	for name, quantity := range list {
		if !resources.IsZero(quantity) {
			result[name] = quantity
		}
	}
	return result
}
