// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestUnreachable(t *testing.T) {
	ctx := t.Context()

	t.Run("When the guest is unreachable until the deadline, it should delete the Machines through management and write them down", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "unreachable")
		f.claim(ctx, g, "a")
		// What a person has made from a copy of ours is the person's.
		copied := f.machineOf(ctx, g, "a").DeepCopy()
		copied.ObjectMeta = metav1.ObjectMeta{Namespace: copied.Namespace, Name: "copied", Labels: copied.Labels}
		g.Expect(clusters.Management.Client.Create(ctx, copied)).To(Succeed())
		t.Cleanup(func() { _ = clusters.Management.Client.Delete(ctx, copied) })
		f.delete()
		f.unreachable()
		result := f.reconcile(ctx, g)
		g.Expect(result.Message).To(Equal("the guest can't be reached (https://blue has stopped answering); given up at " + f.deadline() + ", with 1 Machine"))
		g.Expect(result.Wait).To(BeTrue())
		f.pass(drainTimeout - time.Minute)
		g.Expect(f.reconcile(ctx, g).Wait).To(BeTrue())
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
		f.pass(2 * time.Minute)
		g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{}))
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeFalse())
		record := expectRecord(ctx, g, f)
		g.Expect(record.OwnerReferences).To(BeEmpty(), "it outlives the HostedCluster")
		g.Expect(record.Data["reason"]).To(HavePrefix("the guest can't be reached (https://blue has stopped answering); the deletion waited for it for 30m0s"))
		g.Expect(f.event()).To(ContainSubstring(v1beta1.AbandonedReason))
		f.clusterAPIRemoves(ctx, g, "a")
		g.Expect(f.machineOf(ctx, g, "copied").DeletionTimestamp.IsZero()).To(BeTrue())
	})

	t.Run("When the operator restarts after the deadline and has no connection yet, it should give nothing up", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "restarted")
		f.claim(ctx, g, "a")
		f.delete()
		f.unreachable()
		f.pass(5 * drainTimeout)
		g.Expect(f.reconcile(ctx, g).Wait).To(BeTrue())
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
		f.pass(4 * time.Minute)
		f.reachable()
		f.reconcile(ctx, g) // one answer restarts the timeout
		f.unreachable()
		f.pass(2 * time.Minute)
		g.Expect(f.reconcile(ctx, g).Wait).To(BeTrue())
		g.Expect(f.event()).To(BeEmpty())
		f.reachable()
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})

	t.Run("When the guest answers with an error and the operator was away until after the deadline, it should say so, give nothing up, and leave the nodes their time to drain", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "failing")
		f.claim(ctx, g, "a")
		f.delete()
		f.pass(5 * drainTimeout)
		f.Guest.Live = failing{f.Guest.Live}
		g.Expect(f.reconcile(ctx, g)).To(And(HaveField("Message", ContainSubstring(errBroken.Error())), HaveField("RequeueAfter", 5*time.Second)))
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
		f.reachable()
		f.pass(5 * time.Second)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring("forced at " + f.deadline()))
		g.Expect(f.event()).To(BeEmpty())
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})
}
