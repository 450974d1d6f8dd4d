// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

const loginFailed = "Cannot complete login due to an incorrect user name or password."

// infrastructure gives the Cluster a condition, and waits until the cache has it.
func (f *fixture) infrastructure(status metav1.ConditionStatus, reason, message string) {
	f.t.Helper()
	g := NewWithT(f.t)
	g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.Cluster), f.Cluster)).To(Succeed())
	f.Cluster.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.ClusterInfrastructureReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}
	g.Expect(f.Admin.Status().Update(f.t.Context(), f.Cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		cached := &clusterv1.Cluster{}
		g.Expect(f.Management.GetClient().Get(f.t.Context(), client.ObjectKeyFromObject(f.Cluster), cached)).To(Succeed())
		g.Expect(cached.ResourceVersion).To(Equal(f.Cluster.ResourceVersion))
	}).Should(Succeed())
}

func TestClusterReady(t *testing.T) {
	f := newFixture(t)
	f.launched()
	f.settled()
	sentence := "the infrastructure of Cluster " + f.Namespace + "/" + f.Cluster.Name + " isn't ready: VCenterUnreachable: " + loginFailed
	t.Run("When the infrastructure is ready, it should write nothing", func(t *testing.T) {
		g := NewWithT(t)
		f.infrastructure(metav1.ConditionTrue, "Ready", "")
		before, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(before.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)).To(BeNil())
	})
	t.Run("When the provider can't log in, the NodeClaim should have its sentence after one reconciliation, written once", func(t *testing.T) {
		g := NewWithT(t)
		f.infrastructure(metav1.ConditionFalse, "VCenterUnreachable", loginFailed)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", nodeclaim.ClusterNotReadyReason), HaveField("Message", sentence)))
		again, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.ResourceVersion).To(Equal(after.ResourceVersion))
	})
	t.Run("When the launch times out meanwhile, it should say so and not blame the offering", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.Step(3 * time.Hour)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.StatusConditions().Get(karpv1.ConditionTypeRegistered)).To(And(
			HaveField("Reason", nodeclaim.LaunchTimeoutReason), HaveField("Message", HaveSuffix("; "+sentence))))
		g.Expect(f.unavailable.Entries()).To(BeEmpty())
	})
	t.Run("When the infrastructure is ready again, it should take the sentence back", func(t *testing.T) {
		g := NewWithT(t)
		f.infrastructure(metav1.ConditionTrue, "Ready", "")
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned).Status).To(Equal(metav1.ConditionUnknown))
	})
}

func TestDeletionHangs(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.launched()
	f.say(func(m *clusterv1.Machine) { m.Finalizers = append(m.Finalizers, "example.com/held") })
	g.Expect(f.Admin.Delete(t.Context(), f.nodeClaim)).To(Succeed())
	g.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
	g.Eventually(func(g Gomega) { // the environment takes Cluster API's finalizer
		cached := &clusterv1.Machine{}
		g.Expect(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.machine), cached)).To(Succeed())
		g.Expect(cached.DeletionTimestamp).NotTo(BeNil())
		g.Expect(cached.Finalizers).To(ConsistOf("example.com/held"))
		f.machine = cached
	}).Should(Succeed())
	looks := func() time.Duration {
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.nodeClaim), f.nodeClaim)).To(Succeed())
		result, err := f.controller.Reconcile(t.Context(), f.nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		return result.RequeueAfter
	}
	t.Run("When the deletion has just begun, the offering should be open, and it should look again", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.SetTime(f.machine.DeletionTimestamp.Time)
		g.Expect(looks()).To(Equal(2 * time.Minute))
		g.Expect(f.unavailable.Entries()).To(BeEmpty())
	})
	t.Run("When the deletion hangs, the offering should stay closed for as long, by one failure", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.Step(2 * time.Minute)
		for range 90 {
			f.clock.Step(looks())
			g.Expect(f.unavailable.Entries()).To(ConsistOf(And(HaveField("Reason", nodeclaim.DeletionHangsReason), HaveField("Key", onDemand), HaveField("Failures", 0))))
		}
	})
	t.Run("When the Machine is gone, the offering should open", func(t *testing.T) {
		g := NewWithT(t)
		released := f.machine.DeepCopy()
		released.Finalizers = nil
		g.Expect(f.Admin.Patch(t.Context(), released, client.MergeFrom(f.machine))).To(Succeed())
		g.Eventually(func() error {
			return f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.machine), &clusterv1.Machine{})
		}).ShouldNot(Succeed())
		g.Expect(looks()).To(BeZero())
		f.clock.Step(2 * time.Minute)
		g.Expect(f.unavailable.Entries()).To(BeEmpty())
	})
}
