// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestDeadline(t *testing.T) {
	ctx := t.Context()

	t.Run("When the deadline passes, it should let Karpenter terminate pods, once", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "forced")
		f.claim(ctx, g, "a")
		f.delete()
		f.reconcile(ctx, g)
		f.pass(drainTimeout - time.Minute)
		f.reconcile(ctx, g)
		g.Expect(f.event()).To(BeEmpty())
		f.pass(2 * time.Minute)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring("pods are terminated by force"))
		g.Expect(f.claimOf(ctx, g, "a").Annotations).To(HaveKeyWithValue(karpv1.NodeClaimTerminationTimestampAnnotationKey, f.clock.Now().UTC().Format(time.RFC3339)))
		g.Expect(f.event()).To(ContainSubstring(v1beta1.DrainForcedReason))
		f.pass(time.Minute)
		f.reconcile(ctx, g)
		g.Expect(f.event()).To(BeEmpty())
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
		expectNoRecord(ctx, g, f)
	})

	t.Run("When the operator was away until after the deadline, the nodes should still have their time to drain", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "away")
		f.claim(ctx, g, "a")
		f.delete()
		f.pass(5 * drainTimeout)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring("forced at " + f.deadline()))
		g.Expect(f.event()).To(BeEmpty())
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})

	t.Run("When Karpenter doesn't finish even by force, it should delete the Machines itself and write them down", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "stuck")
		f.claim(ctx, g, "a")
		f.delete()
		f.reconcile(ctx, g)
		f.pass(drainTimeout + time.Minute)
		f.reconcile(ctx, g)
		g.Expect(f.event()).To(ContainSubstring(v1beta1.DrainForcedReason))
		f.pass(5 * time.Minute)
		f.finishes(ctx, g)
		machine := f.machineOf(ctx, g, "a")
		g.Expect(machine.DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(machine.Annotations).To(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
		g.Expect(apierrors.IsNotFound(clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: "a"}, &corev1.Node{}))).To(BeTrue())
		record := expectRecord(ctx, g, f)
		g.Expect(record.Data).To(HaveKeyWithValue("machines", "a nodeClaim=a providerID=kwok://a\n"))
		g.Expect(record.Data).To(HaveKeyWithValue("nodeClaims", "a node=a\n"))
		g.Expect(f.event()).To(ContainSubstring(v1beta1.AbandonedReason))
		g.Expect(f.event()).To(BeEmpty())
		f.expectEquipment(ctx, g, false)
		f.clusterAPIRemoves(ctx, g, "a")
	})

	// kubernetes-sigs/cluster-api#7237
	t.Run("When a machine had joined and Karpenter hadn't registered it, its Node should not stay", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "joined")
		claim := f.claim(ctx, g, "a")
		claim.Status.NodeName = ""
		g.Expect(clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
		f.delete()
		f.reconcile(ctx, g)
		f.pass(drainTimeout + time.Minute)
		f.reconcile(ctx, g)
		f.pass(5 * time.Minute)
		f.finishes(ctx, g)
		g.Expect(apierrors.IsNotFound(clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: "a"}, &corev1.Node{}))).To(BeTrue())
		f.clusterAPIRemoves(ctx, g, "a")
	})
}
