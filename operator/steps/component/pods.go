// SPDX-License-Identifier: Apache-2.0

package component

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/naming"
)

// PodSelector selects Karpenter's pods in every control-plane namespace.
var PodSelector = naming.Pods(v1beta1.DedicatedNames())

// podState holds the fields of a pod that may affect a condition of its component, or its message.
type podState struct {
	trouble, images  string
	finished, ending bool
}

func podStateOf(obj client.Object) podState {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return podState{}
	}
	t := podState{trouble: clusterstatus.PodTrouble(pod), finished: finished(pod), ending: !pod.DeletionTimestamp.IsZero()}
	for i := range pod.Spec.Containers {
		t.images += pod.Spec.Containers[i].Image + " "
	}
	return t
}

// PodChanged passes events of added and deleted pods, and of changes that may affect a condition of their component.
func PodChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return podStateOf(e.ObjectOld) != podStateOf(e.ObjectNew) },
	}
}

// ShrinkPod is a cache transform that keeps only the fields that are read.
func ShrinkPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		containers := make([]corev1.Container, 0, len(pod.Spec.Containers))
		for i := range pod.Spec.Containers {
			containers = append(containers, corev1.Container{Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image})
		}
		pod.ManagedFields, pod.Annotations = nil, nil
		pod.Spec = corev1.PodSpec{Containers: containers}
	}
	return object, nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// pods returns a component's pods, newest first: those are of the newest template.
func (c *Component) pods(ctx context.Context, s *scope.Scope) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := c.Management.List(ctx, pods, client.InNamespace(s.ControlPlaneNamespace),
		client.MatchingLabelsSelector{Selector: naming.Pods(s.Names())}); err != nil {
		return nil, fmt.Errorf("listing Karpenter's pods: %w", err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return pods.Items, nil
}

// finished reports whether none of a pod's containers runs or ever will, such as an evicted pod's.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// strayAmong returns a pod that stays and runs another image than the template's, or "".
func strayAmong(pods []corev1.Pod, template *corev1.PodSpec) string {
	for i := range pods {
		pod := &pods[i]
		if finished(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		for c := range pod.Spec.Containers {
			runs := &pod.Spec.Containers[c]
			at := slices.IndexFunc(template.Containers, func(wanted corev1.Container) bool { return wanted.Name == runs.Name })
			if at >= 0 && !sameImage(runs.Image, template.Containers[at].Image) {
				return fmt.Sprintf("Pod %s has image %s instead of %s; if it stays, find out what sets its image, and delete the pod",
					pod.Name, runs.Image, template.Containers[at].Image)
			}
		}
	}
	return ""
}

// sameImage compares digests, if both have one: admission may rewrite an image to a mirror.
func sameImage(a, b string) bool {
	_, digestA, pinnedA := strings.Cut(a, "@")
	_, digestB, pinnedB := strings.Cut(b, "@")
	return a == b || pinnedA && pinnedB && digestA == digestB
}

// terminating counts the terminating pods, which may still run.
func terminating(pods []corev1.Pod) int32 {
	count := int32(0)
	for i := range pods {
		if !pods[i].DeletionTimestamp.IsZero() && !finished(&pods[i]) {
			count++
		}
	}
	return count
}

// labelsFor returns the labels that map an object in a control-plane namespace to its HostedCluster.
func labelsFor(hostedCluster *v1beta1.HostedCluster) map[string]string {
	labels := map[string]string{
		v1beta1.HostedClusterLabel:          hostedCluster.Name,
		v1beta1.HostedClusterNamespaceLabel: hostedCluster.Namespace,
	}
	if names := hostedCluster.Names(); names.Shared() {
		labels[v1beta1.ClusterNameLabel] = names.Cluster
	}
	return labels
}
