// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

func TestDeadlinePassed(t *testing.T) {
	t.Run("When there is no machine in time, it should give up the NodeClaim, and the offering for a while", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.say(infrastructure(metav1.ConditionFalse, "WaitingForHost", "no host has answered yet"))
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(2 * time.Minute))
		r.Expect(r.unavailable.Entries()).To(HaveExactElements(And(HaveField("Key", onDemand), HaveField("Reason", nodeclaim.LaunchTimeoutReason))))
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
		r.Expect(r.recorder.Messages()[0]).To(And(
			ContainSubstring("no provider ID within 2m0s (on-demand c4-large in zone a)"),
			ContainSubstring("InfrastructureReady: WaitingForHost: no host has answered yet"),
			ContainSubstring("not tried again before")))
	})

	// kubernetes-sigs/cluster-api#7237
	t.Run("When its node has joined and the infrastructure reports no provider ID, it should report that", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.node("cloud://7")
		nodeClaim, _ := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(r.recorder.Messages()[0]).To(And(
			ContainSubstring("no provider ID within 2m0s"), ContainSubstring(`its Node has joined with the provider ID "cloud://7", the Machine has ""`)))
	})

	t.Run("When it is its bootstrap data that a machine waits for, it should not blame the offering", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.say(bootstrap("NotReady", "no token"))
		nodeClaim, _ := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(r.unavailable.Entries()).To(BeEmpty())
		r.Expect(r.recorder.Messages()[0]).To(ContainSubstring("BootstrapConfigReady: NotReady: no token"))
	})

	t.Run("When the node doesn't come in time, it should leave it to Karpenter, which counts it for the NodePool's health", func(t *testing.T) {
		r := newRace(t, minutes(15, 3))
		nodePool := &karpv1.NodePool{
			ObjectMeta: metav1.ObjectMeta{Name: r.Namespace},
			Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
				NodeClassRef: r.nodeClaim.Spec.NodeClassRef, Requirements: r.nodeClaim.Spec.Requirements,
			}}},
		}
		r.Expect(r.Admin.Create(t.Context(), nodePool)).To(Succeed())
		t.Cleanup(func() { _ = r.Admin.Delete(context.WithoutCancel(t.Context()), nodePool) })
		r.Settle(r.Guest, nodePool)
		nodeClaim := r.stored()
		nodeClaim.Labels[karpv1.NodePoolLabelKey] = nodePool.Name
		nodeClaim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: nodePool.Name, UID: nodePool.UID}}
		r.Expect(r.Admin.Update(t.Context(), nodeClaim)).To(Succeed())
		r.health.Update(nodePool.UID, false)

		r.until(time.Minute)
		r.say(provisioned("cloud://1"))
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(4 * time.Minute))
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.RegistrationTimeoutReason}))
		r.Expect(r.recorder.Messages()[0]).To(ContainSubstring("no registered node within 3m0s"))
		r.Expect(r.unavailable.Entries()).To(BeEmpty(), "one node that doesn't come proves nothing about the offering")
		r.Expect(r.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodePool), nodePool)).To(Succeed())
		r.Expect(nodePool.StatusConditions().Get(karpv1.ConditionTypeNodeRegistrationHealthy).IsFalse()).To(BeTrue())
	})

	t.Run("When the deadline has passed and Karpenter hasn't acted yet, it should say so once", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.clock.Step(3 * time.Minute)
		first := r.reconcile()
		second := r.reconcile()
		r.Expect(second.ResourceVersion).To(Equal(first.ResourceVersion))
		r.Expect(r.recorder.Reasons()).To(HaveLen(1))
		r.Expect(second.StatusConditions().Get(karpv1.ConditionTypeRegistered).Reason).To(Equal(nodeclaim.LaunchTimeoutReason))
	})
}
