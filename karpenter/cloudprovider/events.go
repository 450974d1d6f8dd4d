// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"fmt"
	"strings"
	"time"

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

// dottedAgain is how often an event repeats that about a NodePool's name. The name can't change.
const dottedAgain = time.Hour

// nodePoolDotted reports a NodePool whose machines may have another host name than their nodes need: a machine is called like
// its NodeClaim, and host names end at the first dot.
func nodePoolDotted(nodePool *karpv1.NodePool) events.Event {
	host, _, _ := strings.Cut(nodePool.Name, ".")
	return events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         "NodePoolNameDotted",
		Message: fmt.Sprintf("machines get names such as %s-4qmgt, and most images end a host name at the first dot: "+
			"a kubelet that registers as %s can't join; "+
			"create a NodePool whose name has no dots, unless the bootstrap sets the node's name", nodePool.Name, host),
		DedupeValues:  []string{string(nodePool.UID)},
		DedupeTimeout: dottedAgain,
	}
}

// instanceTypeDiffers reports an instance type that a NodePool doesn't get: which value its node would have isn't certain.
func instanceTypeDiffers(nodePool *karpv1.NodePool, d instancetype.Differing) events.Event {
	return events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         "InstanceTypeDiffers",
		Message: fmt.Sprintf("instance type %s isn't used: its templates %s and %s differ in label %s, which the NodePool requires; "+
			"the platform can give one of them another instance type by annotation %s",
			d.InstanceType, d.One, d.Other, d.Key, v1alpha1.InstanceTypeAnnotation),
		DedupeValues: []string{string(nodePool.UID), d.InstanceType, d.Key},
	}
}
