// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

// atMost limits each template to some machines.
func atMost(n int) func([]template.Template) {
	return func(templates []template.Template) {
		for i := range templates {
			templates[i].MaxSize, templates[i].Source.ResourceVersions = ptr.To(n), fmt.Sprint(n)
		}
	}
}

func TestVacancies(t *testing.T) {
	f, counted := limited(t)
	f.offer(atMost(1))
	keeper := vacancy.New(vacancy.Config{Clock: f.clock, Capacity: f.provider.Capacity, Inventory: counted})
	f.Expect(keeper.Watch(t.Context(), f.Management.GetCache(), f.provider.Machines.Owns)).To(Succeed())
	f.provider.Vacancies = keeper
	small, _ := f.launch("small", nil)

	t.Run("When a source isn't full, no machine's removal should open anything", func(t *testing.T) {
		g := NewWithT(t)
		f.launch("large", needs3)
		f.offer(atMost(2))
		g.Eventually(func() error { _, err := f.provider.Machines.ForNodeClaim(f.ctx, small.UID); return err }).Should(Succeed())
		_, _, full := f.provider.Vacate(f.ctx, small)
		g.Expect(full).To(BeFalse())
		f.offer(atMost(1))
	})
	t.Run("When a source has its maximum size, a machine's removal should open its offerings, and no other's", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() []string { return f.launchable(f.ctx, "general") }).Should(BeEmpty())
		vacated, full, ok := f.provider.Vacate(f.ctx, small)
		g.Expect(ok).To(BeTrue())
		g.Expect(full).To(Equal(instancetype.FullSource))
		g.Expect(f.launchable(vacated, "general")).To(Equal([]string{"c2-small"}))
		g.Expect(f.launchable(f.ctx, "general")).To(BeEmpty())
	})
	keeper.Hold(small, "it is full", false)
	t.Run("When the Machine has gone, only its NodePool should get the vacancy, and the Machine say so", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { return f.provider.Delete(f.ctx, small) }).Should(Satisfy(karpcloudprovider.IsNodeClaimNotFoundError))
		g.Eventually(func() bool { return counted.Full("TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large", 1) }).Should(BeFalse())
		f.refused("greedy", func(n *karpv1.NodeClaim) { n.Labels[karpv1.NodePoolLabelKey] = "greedy" })
		next, created := f.launch("next", nil)
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		g.Expect(f.machine(next.Name).Annotations).To(HaveKeyWithValue(v1alpha1.ReplacesAnnotation, small.Name))
		g.Expect(keeper.Count("general")).To(Equal(1), "until the replacement is initialized")
	})
}
