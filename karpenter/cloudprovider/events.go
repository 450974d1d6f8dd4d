// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
)

// nodePoolWithoutNodeClass reports a NodePool whose node class doesn't exist.
func nodePoolWithoutNodeClass(nodePool *karpv1.NodePool, name string) events.Event {
	return events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         "NodeClassNotFound",
		Message:        "ClusterAPINodeClass " + name + " doesn't exist; create it, or correct spec.template.spec.nodeClassRef",
		DedupeValues:   []string{string(nodePool.UID), name},
	}
}

// instanceTypeDiffers reports an instance type that a NodePool doesn't get: which value its node would have isn't certain.
func instanceTypeDiffers(nodePool *karpv1.NodePool, d instancetype.Differing) events.Event {
	return events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         "InstanceTypeDiffers",
		Message: fmt.Sprintf("instance type %s isn't used: its templates %s and %s differ in label %s, which the NodePool requires; the platform can give one of them another instance type by annotation %s",
			d.InstanceType, d.One, d.Other, d.Key, v1alpha1.InstanceTypeAnnotation),
		DedupeValues: []string{string(nodePool.UID), d.InstanceType, d.Key},
	}
}
