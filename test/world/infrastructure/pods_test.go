// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestPodsOfAMachine(t *testing.T) {
	ns := newCluster(t)

	t.Run("When pods are bound to its node, it should run, complete and end them, even once the node was deleted", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "pods", machineOptions{})
		node := eventuallyReady(t, "pods")
		service := newPod(t, "pods", nil)
		job := newPod(t, "pods", []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "1"}})
		eventuallyPhase(t, service, corev1.PodRunning)
		eventuallyPhase(t, job, corev1.PodSucceeded)
		g.Expect(netip.MustParsePrefix("10.128.0.0/9").Contains(netip.MustParseAddr(service.Status.PodIP))).To(BeTrue())
		g.Expect(service.Status.PodIP).NotTo(Equal(job.Status.PodIP))

		g.Expect(guest.Delete(t.Context(), node)).To(Succeed())
		g.Expect(guest.Delete(t.Context(), service)).To(Succeed())
		eventuallyGone(t, guest, service)
		g.Expect(guest.Delete(t.Context(), job)).To(Succeed())
		eventuallyGone(t, guest, job)
	})

	t.Run("When pods ask to be late or unready, they should run accordingly, and end within their grace period", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "patient", machineOptions{})
		eventuallyReady(t, "patient")
		late := newPod(t, "patient", nil, func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"pod-delete.stage.kwok.x-k8s.io/delay": "300s"}
			pod.Spec.TerminationGracePeriodSeconds = new(int64(3))
		})
		unready := newPod(t, "patient", nil, func(pod *corev1.Pod) { pod.Labels = map[string]string{"kwok.x-k8s.io/stage": "unhealthy"} })
		eventuallyPhase(t, late, corev1.PodRunning)
		eventuallyPhase(t, unready, corev1.PodRunning)
		g.Expect(guest.Delete(t.Context(), late)).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(unready), unready)).To(Succeed())
			for _, condition := range unready.Status.Conditions {
				g.Expect(condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue).To(BeFalse(), "it is ready")
			}
		}, "1s", poll).Should(Succeed())
		eventuallyGone(t, guest, late)
	})
}
