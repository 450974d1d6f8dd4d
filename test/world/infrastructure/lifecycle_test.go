// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/infrastructure"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

func TestStart(t *testing.T) {
	for name, test := range map[string]struct {
		management *rest.Config
		want       string
	}{
		"When no management cluster is given, it should say so":                 {nil, "Config.Management is missing"},
		"When the CRDs aren't there, it should say so and how they get there":   {guestConfig, "looking for kind KwokCluster (its CRD is one of CRDs): "},
		"When the management cluster doesn't answer, it should say so and fail": {&rest.Config{Host: "https://127.0.0.1:1"}, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := infrastructure.Start(t.Context(), infrastructure.Config{Management: test.management})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestStop(t *testing.T) {
	t.Run("When it is stopped in the middle of its work, nothing should go on", func(t *testing.T) {
		g := NewWithT(t)
		ns := newClusterWithoutProvider(t)
		before := goleak.IgnoreCurrent()
		provider := startProvider(t)
		provisionCluster(t, ns)
		machine := newMachine(t, ns, "stopped", machineOptions{})
		eventuallyReady(t, "stopped")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		for range 20 {
			newPod(t, "stopped")
		}
		g.Expect(provider.Stop()).To(Succeed())
		g.Expect(provider.Stop()).To(Succeed(), "a second time")
		g.Eventually(func() error {
			return goleak.Find(before,
				// Connections are kept for a while, by this test's own clients too.
				goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
				goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
				goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
				goleak.IgnoreAnyFunction("net/http.(*http2clientConnReadLoop).run"),
				// kwok has no means to end its queues.
				goleak.IgnoreAnyFunction("sigs.k8s.io/kwok/pkg/utils/queue.(*weightDelayingQueue[...]).loopWorker"),
				goleak.IgnoreAnyFunction("github.com/autonode-io/autonode/test/world/infrastructure_test.(*proxy).mend.func1.1"),
			)
		}, wait, 200*time.Millisecond).Should(Succeed())
	})

	t.Run("When it is started again, it should serve the machines that run, and only those", func(t *testing.T) {
		g := NewWithT(t)
		ns := newClusterWithoutProvider(t)
		provider := startProvider(t)
		provisionCluster(t, ns)
		machine := newMachine(t, ns, "again", machineOptions{})
		dead := newMachine(t, ns, "again-dead", machineOptions{annotations: map[string]string{infrav1.FaultDies: "true"}})
		eventuallyReady(t, "again")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		eventuallyCondition(t, dead, infrav1.ConditionJoined, infrav1.ReasonDead)
		g.Expect(provider.Stop()).To(Succeed())
		pod, ofDead := newPod(t, "again"), newPod(t, "again-dead")
		startProvider(t)
		eventuallyPhase(t, pod, corev1.PodRunning)
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(ofDead), ofDead)).To(Succeed())
			g.Expect(ofDead.Status.Phase).To(Equal(corev1.PodPending))
		}, "500ms", poll).Should(Succeed())
	})
}

func TestGuest(t *testing.T) {
	ns := newCluster(t)
	newMachine(t, ns, "old", machineOptions{})
	eventuallyReady(t, "old")

	t.Run("When a pod was marked not ready, its kubelet should report that it is", func(t *testing.T) {
		g := NewWithT(t)
		pod := newPod(t, "old")
		eventuallyPhase(t, pod, corev1.PodRunning)
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == corev1.PodReady {
				pod.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		// As the node lifecycle controller does when the kubelet was silent.
		g.Expect(guest.Status().Update(t.Context(), pod)).To(Succeed())
		marked := pod.ResourceVersion
		g.Eventually(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.ResourceVersion).NotTo(Equal(marked))
			g.Expect(pod.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))
		}, wait, poll).Should(Succeed())
	})

	t.Run("When the way to a guest changes, its running nodes should move over", func(t *testing.T) {
		g := NewWithT(t)
		second, err := newProxy(guestConfig.Host)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { second.cut(); g.Expect(guestProxy.mend()).To(Succeed()) })
		moved, err := encodeKubeconfig(guestConfig, second.address)
		g.Expect(err).NotTo(HaveOccurred())
		secret := &corev1.Secret{}
		g.Expect(management.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: clusterName + "-kubeconfig"}, secret)).To(Succeed())
		secret.Data["value"] = moved
		g.Expect(management.Update(t.Context(), secret)).To(Succeed())
		guestProxy.cut()
		newMachine(t, ns, "new", machineOptions{})
		eventuallyReady(t, "new")
		eventuallyPhase(t, newPod(t, "old"), corev1.PodRunning)

		cluster := &clusterv1.Cluster{}
		g.Expect(management.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: clusterName}, cluster)).To(Succeed())
		g.Expect(management.Delete(t.Context(), cluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			pod := newPod(t, "old")
			g.Consistently(func(g Gomega) {
				g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
				g.Expect(pod.Status.Phase).To(Equal(corev1.PodPending))
			}, "300ms", poll).Should(Succeed())
		}, wait, poll).Should(Succeed(), "the kubelets of a deleted cluster end")
	})

	t.Run("When there is no kubeconfig, or a broken one, a machine should say so", func(t *testing.T) {
		g := NewWithT(t)
		ns := newClusterWithoutProvider(t)
		provisionCluster(t, ns)
		key := types.NamespacedName{Namespace: ns, Name: clusterName + "-kubeconfig"}
		secret := &corev1.Secret{}
		g.Expect(management.Get(t.Context(), key, secret)).To(Succeed())
		good := secret.Data["value"]
		secret.Data = map[string][]byte{"value": []byte("{")}
		g.Expect(management.Update(t.Context(), secret)).To(Succeed())
		machine := newMachine(t, ns, "unreachable", machineOptions{})
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonGuestUnreachable)
		g.Expect(condition.Message).To(HavePrefix("reading the guest's kubeconfig: "))
		secret.Data = nil
		g.Expect(management.Update(t.Context(), secret)).To(Succeed())
		g.Eventually(func() string {
			return eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonGuestUnreachable).Message
		}, wait, poll).Should(ContainSubstring(`missing key "value"`))
		secret.Data = map[string][]byte{"value": good}
		g.Expect(management.Update(t.Context(), secret)).To(Succeed())
		eventuallyReady(t, "unreachable")
	})
}

func TestSchema(t *testing.T) {
	t.Run("When a machine is malformed, the API server should name the field", func(t *testing.T) {
		ns := newClusterWithoutProvider(t)
		for name, test := range map[string]struct {
			edit func(*infrav1.KwokMachine)
			want string
		}{
			"without-memory": {func(m *infrav1.KwokMachine) { delete(m.Spec.Capacity, "memory") }, "must name cpu and memory"},
			"hurried":        {func(m *infrav1.KwokMachine) { m.Spec.ProvisioningDelay = &metav1.Duration{Duration: -time.Second} }, `spec.provisioningDelay: Invalid value: "-1s": may not be negative`},
			"strange":        {func(m *infrav1.KwokMachine) { m.Spec.Architecture = "vax" }, "spec.architecture: Unsupported value"},
		} {
			machine := kwokMachine(ns, name)
			test.edit(machine)
			NewWithT(t).Expect(management.Create(t.Context(), machine)).To(MatchError(ContainSubstring(test.want)))
		}
	})
}
