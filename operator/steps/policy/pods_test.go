// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestPods(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	setUp(ctx, t)
	asKarpenter, admin := as(g, karpenter), as(g, "alice")
	stored := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "web", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "mine"},
			Finalizers:      []string{"example.com/last"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
	}
	g.Expect(clusters.Guest.Client.Create(ctx, stored)).To(Succeed())
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		g := NewWithT(t)
		before := stored.DeepCopy()
		stored.Finalizers = nil
		g.Expect(clusters.Guest.Client.Patch(ctx, stored, client.MergeFrom(before))).To(Succeed())
		g.Expect(clusters.Guest.Client.Delete(ctx, stored, client.GracePeriodSeconds(0))).To(Succeed())
	})
	change := func(c client.Client, change func(*corev1.Pod)) error {
		pod := stored.DeepCopy()
		change(pod)
		return c.Patch(ctx, pod, client.MergeFrom(stored), client.DryRunAll)
	}
	const refused = "Karpenter may change the annotation controller.kubernetes.io/pod-deletion-cost of a pod, and nothing else"
	costs := func(value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.PodDeletionCost, value) }
	}
	other := func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "registry.example/other:1" }
	g.Eventually(func() error { return change(asKarpenter, other) }).Should(MatchError(ContainSubstring(refused)), "the policy is in force a moment after it was made")

	t.Run("When Karpenter writes, changes and removes a pod's deletion cost, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(change(asKarpenter, costs("-3"))).To(Succeed())
		before := stored.DeepCopy()
		costs("5")(stored)
		g.Expect(clusters.Guest.Client.Patch(ctx, stored, client.MergeFrom(before))).To(Succeed())
		g.Expect(change(asKarpenter, costs("-2147483648"))).To(Succeed())
		g.Expect(change(asKarpenter, func(pod *corev1.Pod) { delete(pod.Annotations, corev1.PodDeletionCost) })).To(Succeed())
	})

	for name, edit := range map[string]func(*corev1.Pod){
		"an image":   other,
		"a deadline": func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To(int64(1)) },
		"a toleration": func(pod *corev1.Pod) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "a"})
		},
		"a label":                         func(pod *corev1.Pod) { pod.Labels["app"] = "other" },
		"its labels, to none":             func(pod *corev1.Pod) { pod.Labels = nil },
		"its owners":                      func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "2" },
		"its finalizers":                  func(pod *corev1.Pod) { pod.Finalizers = nil },
		"another annotation":              func(pod *corev1.Pod) { pod.Annotations["note"] = "yours" },
		"its annotations, to one more":    func(pod *corev1.Pod) { pod.Annotations["more"] = "yours" },
		"its annotations, to none":        func(pod *corev1.Pod) { pod.Annotations = nil },
		"an image with the deletion cost": func(pod *corev1.Pod) { costs("-1")(pod); other(pod) },
	} {
		t.Run("When Karpenter changes "+name+", it should be refused, and an admin let through", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(change(asKarpenter, edit)).To(MatchError(ContainSubstring(refused)))
			g.Expect(change(admin, edit)).To(Succeed())
		})
	}
}
