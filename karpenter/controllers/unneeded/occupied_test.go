// SPDX-License-Identifier: Apache-2.0

package unneeded

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
)

func TestOccupied(t *testing.T) {
	ofDaemonSet := func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "agent"}}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		needed bool
	}{
		"runs a pod":                  {func(*corev1.Pod) {}, true},
		"runs a pod of a DaemonSet":   {ofDaemonSet, false},
		"runs a pod that has ended":   {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }, false},
		"runs no pod, another's does": {func(pod *corev1.Pod) { pod.Spec.NodeName = "other" }, false},
		"runs a pod of a DaemonSet that may not be disrupted": {func(pod *corev1.Pod) {
			ofDaemonSet(pod)
			pod.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
		}, true},
	} {
		t.Run("When a node that isn't initialized "+name+", it should count for what Karpenter would move", func(t *testing.T) {
			g := NewWithT(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			tc.change(pod)
			guest := fake.NewClientBuilder().WithObjects(pod).WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string {
				return []string{pod.(*corev1.Pod).Spec.NodeName}
			}).Build()
			claims := []*karpv1.NodeClaim{
				{ObjectMeta: metav1.ObjectMeta{Name: "joined"}, Status: karpv1.NodeClaimStatus{NodeName: "n"}}, {ObjectMeta: metav1.ObjectMeta{Name: "waits"}},
			}
			needed, err := occupied(t.Context(), guest, claims, clocktesting.NewFakeClock(time.Now()), &environment.Recorder{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(needed.Has("joined")).To(Equal(tc.needed))
			g.Expect(needed.Has("waits")).To(BeFalse())
		})
	}
}
