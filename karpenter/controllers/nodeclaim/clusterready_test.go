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
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.Cluster), f.Cluster)).To(Succeed())
	f.Cluster.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.ClusterInfrastructureReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}
	f.Expect(f.Admin.Status().Update(f.t.Context(), f.Cluster)).To(Succeed())
	f.Settle(f.Management, f.Cluster)
}

func TestClusterReady(t *testing.T) {
	t.Run("When the provider can't log in, the NodeClaim should have its sentence until it can, also when the launch times out meanwhile", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.settled()
		sentence := "the infrastructure of Cluster " + f.Namespace + "/" + f.Cluster.Name + " isn't ready: VCenterUnreachable: " + loginFailed
		f.infrastructure(metav1.ConditionTrue, "Ready", "")
		f.Expect(f.reconcile().StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)).To(BeNil())

		f.infrastructure(metav1.ConditionFalse, "VCenterUnreachable", loginFailed)
		after := f.reconcile()
		f.Expect(after.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", nodeclaim.ClusterNotReadyReason), HaveField("Message", sentence)))
		f.Expect(f.reconcile().ResourceVersion).To(Equal(after.ResourceVersion), "it was written again")

		f.clock.Step(3 * time.Hour)
		f.Expect(f.reconcile().StatusConditions().Get(karpv1.ConditionTypeRegistered)).To(And(
			HaveField("Reason", nodeclaim.LaunchTimeoutReason), HaveField("Message", HaveSuffix("; "+sentence))))
		f.Expect(f.unavailable.Entries()).To(BeEmpty(), "the offering isn't to blame")

		f.infrastructure(metav1.ConditionTrue, "Ready", "")
		f.Expect(f.reconcile().StatusConditions().Get(nodeclaim.ConditionMachineProvisioned).Status).To(Equal(metav1.ConditionUnknown))
	})
}

func TestDeletionHangs(t *testing.T) {
	t.Run("When the deletion of a Machine hangs, its offering should be closed from the second minute until the Machine is gone, by one failure", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Finalizers = append(m.Finalizers, "example.com/held") })
		f.Expect(f.Admin.Delete(t.Context(), f.nodeClaim)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
		f.Eventually(func() []string { // the environment takes Cluster API's finalizer
			f.settled()
			return f.machine.Finalizers
		}).Should(ConsistOf("example.com/held"))
		looks := func() time.Duration {
			result, err := f.controller.Reconcile(t.Context(), f.stored())
			f.Expect(err).NotTo(HaveOccurred())
			return result.RequeueAfter
		}
		f.clock.SetTime(f.machine.DeletionTimestamp.Time)
		f.Expect(looks()).To(Equal(2 * time.Minute))
		f.Expect(f.unavailable.Entries()).To(BeEmpty())

		f.clock.Step(2 * time.Minute)
		for range 90 {
			f.clock.Step(looks())
			f.Expect(f.unavailable.Entries()).To(ConsistOf(And(HaveField("Reason", nodeclaim.DeletionHangsReason), HaveField("Key", onDemand), HaveField("Failures", 0))))
		}

		released := f.machine.DeepCopy()
		released.Finalizers = nil
		f.Expect(f.Admin.Patch(t.Context(), released, client.MergeFrom(f.machine))).To(Succeed())
		f.SettleGone(f.Management, f.machine)
		f.Expect(looks()).To(BeZero())
		f.clock.Step(2 * time.Minute)
		f.Expect(f.unavailable.Entries()).To(BeEmpty())
	})
}
