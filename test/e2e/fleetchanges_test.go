// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// fleet is what shares the account of TestFleetCapacity. Its steps are TestFleetCapacity's.
type fleet struct {
	clusters   []*cluster
	management client.Client
	account    *autonodev1alpha1.CapacityAccount
}

// change changes the account.
func (f *fleet) change(t *testing.T, change func(*autonodev1alpha1.CapacityAccountSpec)) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		found := f.found(g, ctx)
		before := found.DeepCopy()
		change(&found.Spec)
		g.Expect(f.management.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func (f *fleet) found(g Gomega, ctx context.Context) *autonodev1alpha1.CapacityAccount {
	found := &autonodev1alpha1.CapacityAccount{}
	g.Expect(f.management.Get(ctx, client.ObjectKeyFromObject(f.account), found)).To(Succeed())
	return found
}

func (f *fleet) lease(g Gomega, ctx context.Context, c *cluster) *autonodev1alpha1.CapacityLease {
	lease := &autonodev1alpha1.CapacityLease{}
	g.Expect(f.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: autonodev1alpha1.LeaseName}, lease)).To(Succeed())
	return lease
}

// upgraded has the nodes of a cluster drift, of which each is in the reservation, while all clusters call for more reserved machines.
func (f *fleet) upgraded(t *testing.T) {
	g := NewWithT(t)
	reserved := func(g Gomega, ctx context.Context) map[string]int {
		machines := &clusterv1.MachineList{}
		g.Expect(f.management.List(ctx, machines, client.MatchingLabels{v1alpha1.ReservationIDLabel: f.account.Spec.Reservations[0].ID})).To(Succeed())
		counts := map[string]int{}
		for i := range machines.Items {
			counts[machines.Items[i].Namespace]++
		}
		return counts
	}
	before := reserved(g, t.Context())
	c := f.clusters[0]
	for _, other := range f.clusters {
		if before[other.namespace()] >= 2 && before[other.namespace()] < before[c.namespace()] {
			c = other // fewer nodes take less time
		}
	}
	old := map[string]bool{}
	for _, nodeClaim := range c.nodeClaims(g, t.Context()) {
		// Those that wait for capacity come and go, and have no node that a budget could keep.
		old[nodeClaim.Name] = nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue()
	}
	pool := &karpv1.NodePool{}
	g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: "shared"}, pool)).To(Succeed())
	patched := pool.DeepCopy()
	patched.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
	patched.Spec.Template.Annotations = map[string]string{"example.com/rollout": "2"}
	g.Expect(c.guest.Patch(t.Context(), patched, client.MergeFrom(pool))).To(Succeed())
	t.Logf("%s replaces %d nodes of %v", c.name, before[c.namespace()], before)
	said, strict := false, g
	g.Eventually(func(g Gomega, ctx context.Context) {
		replaced, leaving := 0, 0
		for _, nodeClaim := range c.nodeClaims(g, ctx) {
			switch initialized := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue(); {
			case old[nodeClaim.Name] && nodeClaim.DeletionTimestamp != nil:
				leaving++
			case !old[nodeClaim.Name] && initialized && nodeClaim.Annotations["example.com/rollout"] == "2":
				replaced++
			}
		}
		strict.Expect(leaving).To(BeNumerically("<=", 1), "the budget")
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
		said = said || pool.StatusConditions().Get(v1alpha1.TerminateFirstCondition).IsTrue()
		for namespace, count := range reserved(g, ctx) {
			strict.Expect(count).To(BeNumerically("<=", before[namespace]), "no cluster may take what is held for another one")
		}
		g.Expect(replaced).To(Equal(before[c.namespace()]))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(reserved(g, t.Context())).To(Equal(before))
	g.Expect(said).To(BeTrue(), "the NodePool declares that its nodes are terminated first")
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
		g.Expect(pool.StatusConditions().Get(v1alpha1.TerminateFirstCondition)).To(BeNil())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// expired ends the reservation while machines use it.
func (f *fleet) expired(t *testing.T) {
	g := NewWithT(t)
	// Two of the reservation are guaranteed to this cluster, which gives its machines back.
	late := f.clusters[0]
	late.scale(t, "web", 0)
	late.waitNothingLeft(t)
	reserved := func(g Gomega, ctx context.Context) (names []string) {
		machines := &clusterv1.MachineList{}
		g.Expect(f.management.List(ctx, machines, client.MatchingLabels{v1alpha1.ReservationIDLabel: f.account.Spec.Reservations[0].ID})).To(Succeed())
		for i := range machines.Items {
			names = append(names, machines.Items[i].Namespace+"/"+machines.Items[i].Name)
		}
		return names
	}
	before := reserved(g, t.Context())
	g.Expect(before).NotTo(BeEmpty())
	f.change(t, func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Reservations[0].Expires = new(scalar.Now()) })
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(f.lease(g, ctx, late).Spec.Pools).To(ContainElement(And(HaveField("Reservation", f.account.Spec.Reservations[0].ID), HaveField("Expires", Not(BeNil())))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	late.scale(t, "web", 2)
	late.waitRunning(t, "web")
	for _, node := range late.nodes(g, t.Context()) {
		g.Expect(node.Labels).To(HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
	}
	g.Expect(reserved(g, t.Context())).To(ConsistOf(before))
	for _, c := range f.clusters {
		for _, nodeClaim := range c.nodeClaims(g, t.Context()) {
			g.Expect(nodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue()).To(BeFalse(), "%s", nodeClaim.Name)
		}
	}
}

// committed has a cluster use another account, in which one machine of a dearer type is committed. The first account, which is deleted, may
// still count the machines that the cluster had: it no longer binds the cluster.
func (f *fleet) committed(t *testing.T) {
	g := NewWithT(t)
	c := f.clusters[2]
	g.Expect(f.management.Delete(t.Context(), f.account.DeepCopy())).To(Succeed())
	f.change(t, func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members = nil })
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, c := range f.clusters {
			g.Expect(f.lease(g, ctx, c).Spec).To(And(HaveField("Account", BeNil()), HaveField("Pools", BeEmpty())))
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	f.account = &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "committed"}, Spec: autonodev1alpha1.CapacityAccountSpec{
		Members: []autonodev1alpha1.CapacityMember{{HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: c.key().Namespace, Name: c.key().Name}}},
		Commitments: []autonodev1alpha1.CapacityCommitment{{
			Name: "reserved-instance", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "c4-large", Instances: new(int32(1)), Price: "0.01",
			SizeFlexibility: autonodev1alpha1.SizeFlexibilityOff,
			Selector:        autonodev1alpha1.CapacitySelector{CapacityTypes: []string{karpv1.CapacityTypeOnDemand}},
		}},
	}}
	g.Expect(f.management.Create(t.Context(), f.account)).To(Succeed())
	leased := func(machines ...any) {
		t.Helper()
		g.Eventually(func(g Gomega, ctx context.Context) {
			lease := f.lease(g, ctx, c)
			g.Expect(lease.Spec.Commitments).To(ConsistOf(HaveField("Instances", HaveValue(BeEquivalentTo(1)))))
			g.Expect(lease.Spec.Machines).To(ConsistOf(machines...))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
	runs := func(want ...string) {
		t.Helper()
		c.waitRunning(t, "committed")
		var types []string
		for _, node := range c.nodesOf(g, t.Context(), "committed") {
			types = append(types, node.Labels[corev1.LabelInstanceTypeStable])
		}
		g.Expect(types).To(ConsistOf(want))
	}
	c.nodePool(t, "committed", require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
		require(corev1.LabelInstanceTypeStable, "c4-large", "c4-arm"))
	leased()
	c.workload(t, "committed", 1, "3", onPool("committed"), apart)
	runs("c4-large")
	leased(And(HaveField("InstanceType", "c4-large"), HaveField("Count", int64(1))))
	c.scale(t, "committed", 2)
	runs("c4-large", "c4-arm")
	f.change(t, func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members = nil })
	g.Expect(f.management.Delete(t.Context(), f.account)).To(Succeed())
}
