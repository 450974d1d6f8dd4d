// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	accounts "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
)

// die kills a cluster's active Karpenter and both operators while some of the reserved machines are there.
func (f *fleet) die(t *testing.T, reserved *reservations) {
	t.Helper()
	g, c := NewWithT(t), f.clusters[2]
	count := 0
	g.Eventually(func(g Gomega) {
		count, _, _ = reserved.now()
		g.Expect(count).To(BeNumerically(">", 0))
	}).WithTimeout(eventually).WithPolling(interval / 10).Should(Succeed())
	g.Expect(count).To(BeNumerically("<", 10), "it has to be the middle")
	lease, operators := c.lease(g, t.Context()), &corev1.PodList{}
	leader := client.ObjectKey{Namespace: c.namespace(), Name: lease.Labels[v1alpha1.LeaderPodLabel]}
	g.Expect(c.world.Agent().Kill(t.Context(), leader, v1beta1.KarpenterComponent)).To(Succeed())
	g.Expect(f.management.List(t.Context(), operators, client.InNamespace(localworld.OperatorNamespace))).To(Succeed())
	g.Expect(operators.Items).NotTo(BeEmpty())
	for _, pod := range operators.Items {
		g.Expect(c.world.Agent().Kill(t.Context(), client.ObjectKeyFromObject(&pod), pod.Spec.Containers[0].Name)).To(Succeed())
	}
	after, _, _ := reserved.now()
	t.Logf("%d of ten were in use when the first was killed, and %d when all were", count, after)
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.lease(g, ctx).Spec.HolderIdentity).NotTo(Equal(lease.Spec.HolderIdentity), "another Karpenter takes over")
		for _, pod := range operators.Items {
			was := pod.Status.ContainerStatuses[0].RestartCount
			now := &corev1.Pod{}
			g.Expect(f.management.Get(ctx, client.ObjectKeyFromObject(&pod), now)).To(Succeed())
			g.Expect(now.Status.ContainerStatuses[0].RestartCount).To(Equal(was+1), "%s was killed", pod.Name)
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// sells lets the NodePools have machines of these capacity types. Pods that find none wait.
func (f *fleet) sells(t *testing.T, capacityTypes ...string) {
	t.Helper()
	for _, c := range f.clusters {
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			pool := &karpenterv1.NodePool{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: "shared"}, pool)).To(Succeed())
			before := pool.DeepCopy()
			pool.Spec.Template.Spec.Requirements = nil
			require(karpenterv1.CapacityTypeLabelKey, capacityTypes...)(pool)
			g.Expect(c.guest.Patch(ctx, pool, client.MergeFrom(before))).To(Succeed())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
}

// bought waits until as many nodes are reserved, and all others on demand.
func (f *fleet) bought(t *testing.T, reserved, onDemand int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		nodes := map[string]int{}
		for _, c := range f.clusters {
			for _, node := range c.nodes(g, ctx) {
				nodes[node.Labels[karpenterv1.CapacityTypeLabelKey]]++
			}
		}
		g.Expect(nodes).To(Equal(map[string]int{karpenterv1.CapacityTypeReserved: reserved, karpenterv1.CapacityTypeOnDemand: onDemand}))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// malformed writes what can't be meant into the account: what can't be read is refused, or named beside the others.
func (f *fleet) malformed(t *testing.T) {
	g := NewWithT(t)
	for message, change := range map[string]func(*accounts.CapacityAccountSpec){
		"spec.reservations[0].count": func(spec *accounts.CapacityAccountSpec) { spec.Reservations[0].Count = -1 },
		"Duplicate value": func(spec *accounts.CapacityAccountSpec) {
			spec.Reservations = append(spec.Reservations, spec.Reservations[0])
		},
	} {
		found := f.found(g, t.Context())
		before := found.DeepCopy()
		change(&found.Spec)
		g.Expect(f.management.Patch(t.Context(), found, client.MergeFrom(before))).To(MatchError(ContainSubstring(message)))
	}
	f.change(t, func(spec *accounts.CapacityAccountSpec) {
		spec.Members = append([]accounts.CapacityMember{{HostedCluster: &accounts.HostedClusterReference{Namespace: "clusters", Name: "absent"}}}, spec.Members...)
		spec.Members = append(spec.Members, accounts.CapacityMember{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"example.com/none": ""}}})
		spec.Reservations = append(spec.Reservations, accounts.CapacityReservation{
			ID: "block-0", InstanceType: "k4", Zone: "a", Count: 3, Expires: new(scalar.NewTime(time.Now().Add(-time.Hour))),
		})
		spec.Quotas = append(spec.Quotas, accounts.CapacityQuota{Name: "many", Limits: accounts.CapacityAmounts{"cpu": scalar.Text("many")}})
	})
	g.Eventually(func(g Gomega, ctx context.Context) {
		status := f.found(g, ctx).Status
		g.Expect(meta.FindStatusCondition(status.Conditions, accounts.Ready)).To(HaveValue(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Reason", accounts.SomeUnusableReason))))
		g.Expect(status.Unusable).To(ConsistOf(
			HaveField("Field", "members[clusters/absent]"), HaveField("Field", "members[4]"),
			HaveField("Field", "reservations[block-0].expires"), HaveField("Field", "quotas[many].limits.cpu"),
		))
		for _, c := range f.clusters {
			lease := f.lease(g, ctx, c)
			g.Expect(lease.Spec.Pools).To(ContainElement(HaveField("Reservation", "block-0")), "it is the changed account's")
			g.Expect(lease.Status.AcknowledgedSequence).To(Equal(lease.Spec.Sequence))
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// corrected removes what malformed has written.
func (f *fleet) corrected(t *testing.T) {
	f.change(t, func(spec *accounts.CapacityAccountSpec) { *spec = *f.account.Spec.DeepCopy() })
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		status := f.found(g, ctx).Status
		g.Expect(status.Unusable).To(BeEmpty())
		g.Expect(meta.FindStatusCondition(status.Conditions, accounts.Ready)).To(HaveValue(HaveField("Reason", accounts.AsExpectedReason)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}
