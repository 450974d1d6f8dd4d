// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
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
