// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// answer returns a Machine as the NodeClaim that Create returns. made is the offering that it was launched as; nil if
// unknown.
func answer(nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, made *launch) (*karpv1.NodeClaim, error) {
	if m.DeletionTimestamp != nil {
		// The pods need another NodeClaim.
		return nil, karpcloudprovider.NewInsufficientCapacityError(fmt.Errorf("its Machine %s is being deleted", klog.KObj(m)))
	}
	result := nodeClaimOf(m)
	result.Status.ProviderID = machine.SyntheticProviderID(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
	for _, annotation := range []string{v1alpha1.NodeClassHashAnnotation, v1alpha1.NodeClassHashVersionAnnotation} {
		if value := m.Annotations[annotation]; value != "" {
			result.Annotations[annotation] = value
		}
	}
	if made == nil {
		// The Machine exists nevertheless. Until its node reports its capacity, assume the requested resources.
		result.Status.Capacity = nonZero(nodeClaim.Spec.Resources.Requests)
		result.Status.Allocatable = result.Status.Capacity
		return result, nil
	}
	result.Labels = nodeLabels(nodeClaim, *made)
	result.Status.Capacity = nonZero(made.instanceType.Capacity)
	result.Status.Allocatable = nonZero(made.instanceType.Allocatable())
	return result, nil
}

// answerExisting returns the Machine of an earlier attempt, with the offering that it was launched as rather than the
// current choice.
func (c *CloudProvider) answerExisting(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, m *clusterv1.Machine) (*karpv1.NodeClaim, error) {
	origin := inventory.OriginOf(m)
	key := origin.Key
	snapshot, err := c.InstanceTypes.Cached(nodeClass.Name)
	if err != nil {
		return answer(nodeClaim, m, nil)
	}
	choice, ok := snapshot.ResolveKey(key)
	if !ok {
		return answer(nodeClaim, m, nil)
	}
	if own, ok := snapshot.Template(origin.Source); ok {
		choice.Template = own
	} else if origin.Source != choice.Template.Source.Annotation() {
		choice.Template = &template.Template{} // its labels aren't known any more
	}
	made := &launch{instanceType: choice.InstanceType, offering: choice.Offering, choice: choice}
	if overlaid, err := c.overlaid(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey], []*karpcloudprovider.InstanceType{choice.InstanceType}); err == nil && len(overlaid) == 1 {
		made.instanceType = overlaid[0]
		for _, o := range overlaid[0].Offerings {
			if offering.KeyOf(key.InstanceType, o) == key {
				made.offering = o
			}
		}
	}
	return answer(nodeClaim, m, made)
}

// made reports whether a Machine was made from the chosen template and offering.
func (l launch) made(m *clusterv1.Machine) bool {
	origin := inventory.OriginOf(m)
	return origin.Source == l.choice.Template.Source.Annotation() && origin.Key == l.choice.Key
}

// nodeLabels are the node's labels: the NodeClaim's override the template's, which override those of the chosen
// offering.
func nodeLabels(nodeClaim *karpv1.NodeClaim, chosen launch) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, chosen.choice.Template.Labels)
	for _, requirements := range []karpscheduling.Requirements{chosen.instanceType.Requirements, chosen.offering.Requirements} {
		for key, requirement := range requirements {
			if requirement.Operator() == corev1.NodeSelectorOpIn && requirement.Len() == 1 && key != v1alpha1.ReservationIDLabel {
				labels[key] = requirement.Any()
			}
		}
	}
	if reservation := offering.ReservationOf(chosen.offering); reservation != "" {
		labels[v1alpha1.ReservationIDLabel] = reservation
	}
	labels[v1alpha1.NodePriceLabel] = formatPrice(chosen.price())
	maps.Copy(labels, nodeClaim.Labels)
	return labels
}

func formatPrice(price float64) string {
	return strconv.FormatFloat(price, 'f', -1, 64)
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
