// SPDX-License-Identifier: Apache-2.0

package unneeded_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
)

// joined is a fixture whose node has just joined and waits for the removal of a startup taint. NodePools consolidate after half a minute.
func joined(t *testing.T, change func(*karpv1.NodePool, *corev1.Node)) *fixture {
	t.Helper()
	node := &corev1.Node{}
	f := newFixture(t, func(nodePool *karpv1.NodePool, _ *karpv1.NodeClaim) {
		nodePool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("30s")
		nodePool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
		node.Name = nodePool.Name
		if change != nil {
			change(nodePool, node)
		}
	})
	f.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
	t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), node) })
	f.nodeClaim.Status.NodeName = node.Name
	f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	f.nodeClaim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeInitialized, "StartupTaintsExist", `StartupTaint "cni:NoSchedule" still exists`)
	f.Expect(f.Admin.Status().Update(t.Context(), f.nodeClaim)).To(Succeed())
	return f
}

// Karpenter core removes an empty node only once it is initialized (kubernetes-sigs/karpenter#3242, aws/karpenter-provider-aws#6803).
func TestUninitialized(t *testing.T) {
	t.Run("When no pod needs a node that is never initialized, it should be given up after a quarter of an hour, and say what it waited for", func(t *testing.T) {
		f := joined(t, nil)
		f.pass(14 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
		f.pass(2 * time.Minute)
		f.Expect(f.gone()).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{unneeded.NotNeededReason}))
		f.Expect(f.recorder.Messages()).To(ConsistOf(ContainSubstring(`hasn't been initialized within 15m0s: StartupTaint "cni:NoSchedule" still exists`)))
	})

	t.Run("When its NodePool keeps empty nodes for longer, it should stay as long", func(t *testing.T) {
		f := joined(t, func(nodePool *karpv1.NodePool, _ *corev1.Node) {
			nodePool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("20m")
		})
		f.pass(19 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
		f.pass(2 * time.Minute)
		f.Expect(f.gone()).To(BeTrue())
	})

	t.Run("When its node has been initialized, it should stay: that is consolidation's", func(t *testing.T) {
		f := joined(t, nil)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		f.Expect(f.Admin.Status().Update(t.Context(), f.nodeClaim)).To(Succeed())
		f.pass(20 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
		f.Expect(f.asked).To(BeZero())
	})

	t.Run("When a pod needs it, it should stay", func(t *testing.T) {
		f := joined(t, nil)
		f.needed = sets.New(f.nodeClaim.Name)
		f.pass(20 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
		f.Expect(f.asked).NotTo(BeZero())
	})

	for name, change := range map[string]func(*karpv1.NodePool, *corev1.Node){
		"an annotation of its node forbids its disruption": func(_ *karpv1.NodePool, node *corev1.Node) {
			node.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
		},
		"its NodePool is static": func(p *karpv1.NodePool, _ *corev1.Node) { p.Spec.Replicas = ptr.To(int64(1)) },
		"no budget allows it":    func(p *karpv1.NodePool, _ *corev1.Node) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} },
		"a budget's schedule forbids it": func(p *karpv1.NodePool, _ *corev1.Node) {
			p.Spec.Disruption.Budgets = []karpv1.Budget{{
				Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty}, Schedule: ptr.To("* * * * *"), Duration: &metav1.Duration{Duration: time.Hour},
			}}
		},
	} {
		t.Run("When "+name+", it should stay", func(t *testing.T) {
			f := joined(t, change)
			f.pass(20 * time.Minute)
			f.Expect(f.gone()).To(BeFalse())
		})
	}

	t.Run("When a budget allows one of several, they should go one by one", func(t *testing.T) {
		f := joined(t, nil)
		other := f.NodeClaim(t.Context(), "waits-too")
		other.Labels[karpv1.NodePoolLabelKey] = f.nodeClaim.Labels[karpv1.NodePoolLabelKey]
		other.Finalizers = []string{karpv1.TerminationFinalizer}
		f.Expect(f.Admin.Update(t.Context(), other)).To(Succeed())
		other.Status = *f.nodeClaim.Status.DeepCopy()
		f.Expect(f.Admin.Status().Update(t.Context(), other)).To(Succeed())
		f.nodeClaim.Finalizers = []string{karpv1.TerminationFinalizer}
		f.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
		f.pass(20 * time.Minute)
		going := 0
		for _, nodeClaim := range []*karpv1.NodeClaim{f.nodeClaim, other} {
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
			if nodeClaim.DeletionTimestamp != nil {
				going++
			}
			nodeClaim.Finalizers = nil
			f.Expect(f.Admin.Update(t.Context(), nodeClaim)).To(Succeed())
		}
		f.Expect(going).To(Equal(1))
	})
}
