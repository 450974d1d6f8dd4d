// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

func TestAccounts(t *testing.T) {
	const label, name = "accounts.test", "banker"
	provide(t)
	removeAll(t, label)
	hosted(t, label, name, push(t, serveRegistry(t), "1.36.2"), clusters.Guest.Config)
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	spec := autonodev1alpha1.CapacityAccountSpec{
		Members:      []autonodev1alpha1.CapacityMember{{HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "clusters", Name: name}}},
		Reservations: []autonodev1alpha1.CapacityReservation{{ID: "cr-1", InstanceType: "m5.large", Zone: "a", Count: 10}},
	}
	account := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "banks", Labels: map[string]string{label: ""}}, Spec: spec}
	others := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "others"}, Spec: spec}
	for _, object := range []*autonodev1alpha1.CapacityAccount{account, others} {
		g.Expect(management.Create(ctx, object)).To(Succeed())
		t.Cleanup(func() {
			found, ctx := &autonodev1alpha1.CapacityAccount{}, context.Background()
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(object), found)).To(Succeed())
			found.Finalizers = nil
			g.Expect(management.Update(ctx, found)).To(Succeed())
			g.Expect(client.IgnoreNotFound(management.Delete(ctx, found))).To(Succeed())
		})
	}
	run(t, clusters.Management.Config, selecting(label))

	t.Run("When an account names a hosted cluster, it should have a lease when its Karpenter is installed", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega) {
			lease := scopetest.Get(ctx, g, management, "clusters-"+name, autonodev1alpha1.LeaseName, &autonodev1alpha1.CapacityLease{})
			g.Expect(lease.Spec.Account.Name).To(Equal("banks"))
			g.Expect(lease.Spec.Sequence).To(BeNumerically(">", 0))
		}).Should(Succeed())
	})
	t.Run("When Karpenter makes Machines, the account should count them", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine("clusters-"+name, name, "counted-1")
		maps.Copy(machine.Labels, map[string]string{corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "a", v1alpha1.ReservationIDLabel: "cr-1"})
		g.Expect(management.Create(ctx, machine)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(account), account)).To(Succeed())
			g.Expect(account.Status.FullestPool).To(Equal("reservation/cr-1 1/10"))
			g.Expect(meta.IsStatusConditionTrue(account.Status.Conditions, autonodev1alpha1.Ready)).To(BeTrue())
		}).Should(Succeed())
	})
	t.Run("When the selector doesn't match an account, it should be another operator's", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(others), others)).To(Succeed())
		g.Expect(others.Finalizers).To(BeEmpty())
		g.Expect(others.Status.ObservedGeneration).To(BeEquivalentTo(-1))
	})
}
