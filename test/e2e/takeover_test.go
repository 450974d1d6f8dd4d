// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/fault"
)

// takeover has two operators, of which the active one hangs in the middle of a write: the other takes over and does something else,
// and then the first one's write arrives, and it wakes up.
func (f *faults) takeover(t *testing.T) {
	g := NewWithT(t)
	elected := []string{"--leader-elect", "--leader-election-namespace=" + localworld.OperatorNamespace}
	first, err := f.world.StartOperator(localworld.OperatorConfig{Name: "first", Management: f.managementProxy.URL, Args: elected})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(first.Kill)
	before := ""
	g.Eventually(func(g Gomega, ctx context.Context) {
		before = f.leader(g, ctx)
		g.Expect(before).NotTo(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	f.enable(t, initialRelease)
	second, err := f.world.StartOperator(localworld.OperatorConfig{Name: "second", Args: elected})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(second.Kill)
	f.endsSettled(t, initialRelease, f.on)
	f.runWeb(t, 2)
	disrupted := f.watchDisruptions(t)
	hold := fault.NewHold(writesDeployment)
	f.managementProxy.Use(hold.Fault)
	defer f.managementProxy.Use(nil)

	t.Run("When the active operator hangs in the middle of a write, another should take over and complete the upgrade", func(t *testing.T) {
		g := NewWithT(t)
		f.upgradeTo(t, upgradedRelease)
		g.Eventually(hold.Arrived()).WithTimeout(eventually).Should(BeClosed())
		g.Expect(first.Freeze()).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.leader(g, ctx)).NotTo(Or(Equal(before), BeEmpty()))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		f.waitSettled(t, upgradedRelease, f.on)
	})

	t.Run("When the first one's write arrives late and it wakes up, it should end, and what the other one did should stand", func(t *testing.T) {
		g := NewWithT(t)
		f.upgradeTo(t, initialRelease)
		f.waitSettled(t, initialRelease, f.on)
		wanted := f.karpenter(t)
		g.Expect(hold.Release(t.Context())).To(Succeed())
		g.Expect(first.Thaw()).To(Succeed())
		g.Eventually(first.Done()).WithTimeout(eventually).Should(BeClosed(), "its Lease is another's")
		g.Eventually(func(g Gomega) {
			g.Expect(f.karpenter(t).Generation).To(BeNumerically(">", wanted.Generation), "the late write has to have changed something")
			g.Expect(f.karpenter(t).Spec.Template.Spec.Containers).To(Equal(wanted.Spec.Template.Spec.Containers))
		}).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
	expectUndisturbed(t, disrupted)
}

// leader is who holds the operators' Lease.
func (f *faults) leader(g Gomega, ctx context.Context) string {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: localworld.OperatorNamespace, Name: "autonode-operator"}
	g.Expect(client.IgnoreNotFound(f.management.Get(ctx, key, lease))).To(Succeed())
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
