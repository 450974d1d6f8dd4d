// SPDX-License-Identifier: Apache-2.0

package component

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// PodSelector selects Karpenter's pods in every control-plane namespace; the Deployment asset's selector says the same.
var PodSelector = labels.SelectorFromSet(labels.Set{"app.kubernetes.io/name": "karpenter", "app.kubernetes.io/component": "autonode"})

// PodTroubled passes events of pods that began, or ceased, to be in trouble.
func PodTroubled() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return troubleOf(e.Object) != "" },
		DeleteFunc: func(event.DeleteEvent) bool { return false }, // the Deployment's status tells
		UpdateFunc: func(e event.UpdateEvent) bool { return troubleOf(e.ObjectOld) != troubleOf(e.ObjectNew) },
	}
}

// ShrinkPod is a cache's transform that keeps what is looked at.
func ShrinkPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Annotations = nil, nil
		pod.Spec = corev1.PodSpec{}
	}
	return object, nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// trouble says what keeps the first of a component's pods from running, or nothing.
func (c *Component) trouble(ctx context.Context, namespace string) (string, error) {
	pods := &corev1.PodList{}
	if err := c.Management.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: PodSelector}); err != nil {
		return "", fmt.Errorf("listing Karpenter's pods: %w", err)
	}
	// The newest pods are those of the newest template.
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range pods.Items {
		if trouble := troubleOf(&pods.Items[i]); trouble != "" {
			return fmt.Sprintf("Pod %s: %s", pods.Items[i].Name, trouble), nil
		}
	}
	return "", nil
}

// maxTrouble bounds what is quoted from a pod's status, in bytes.
const maxTrouble = 300

// troubleOf says why a pod doesn't run, or nothing. It counts nothing that changes all the time, such as restarts.
func troubleOf(obj client.Object) string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || !pod.DeletionTimestamp.IsZero() {
		return ""
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return join(condition.Reason, condition.Message)
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing" {
			// What a crashed container said last is worth more than for how long it is held back.
			if ended := container.LastTerminationState.Terminated; ended != nil {
				return join(waiting.Reason, fmt.Sprintf("exit code %d", ended.ExitCode), lastLine(ended.Message))
			}
			return join(waiting.Reason, waiting.Message)
		}
	}
	return ""
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func join(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	joined := strings.Join(parts, ": ")
	return strings.ToValidUTF8(joined[:min(len(joined), maxTrouble)], "")
}

// labelsFor are what leads from an object in a control-plane namespace to its HostedCluster.
func labelsFor(hostedCluster *v1beta1.HostedCluster) map[string]string {
	return map[string]string{
		v1beta1.HostedClusterLabel:          hostedCluster.Name,
		v1beta1.HostedClusterNamespaceLabel: hostedCluster.Namespace,
	}
}
