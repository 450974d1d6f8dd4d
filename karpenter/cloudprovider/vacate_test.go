// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
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

// memory is what outlives a process.
type memory struct {
	text string
	err  error
}

func (m *memory) Vacancies(context.Context) (string, error) { return m.text, m.err }

func (m *memory) RememberVacancies(_ context.Context, text string) error {
	if m.err == nil {
		m.text = text
	}
	return m.err
}

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
	remembered := &memory{}
	keeper := vacancy.New(vacancy.Config{Clock: f.clock, Capacity: f.provider.Reservations.Capacity, Inventory: counted, Memory: remembered})
	f.Expect(keeper.Watch(t.Context(), f.Management.GetCache(), f.provider.Machines.Owns)).To(Succeed())
	f.Expect(keeper.Load(t.Context())).To(Succeed())
	f.provider.Reservations.Vacancies = keeper
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
	small.Annotations = map[string]string{v1alpha1.TerminateFirstAnnotation: "source-full: it is full"}
	t.Run("When the vacancy can't be written down, the Machine should stay", func(t *testing.T) {
		g := NewWithT(t)
		remembered.err = errors.New("the management cluster is away")
		g.Expect(f.provider.Delete(f.ctx, small)).To(MatchError(ContainSubstring("is away")))
		g.Expect(f.machine(small.Name).DeletionTimestamp).To(BeNil())
		remembered.err = nil
	})
	t.Run("When the Machine has gone, only its NodePool should get the vacancy, and the Machine say so", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { return f.provider.Delete(f.ctx, small) }).Should(Satisfy(karpcloudprovider.IsNodeClaimNotFoundError))
		g.Expect(remembered.text).To(ContainSubstring(small.Name))
		g.Eventually(func() bool { return counted.Full("TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large", 1) }).Should(BeFalse())
		f.refused("greedy", func(n *karpv1.NodeClaim) { n.Labels[karpv1.NodePoolLabelKey] = "greedy" })
		next, created := f.launch("next", nil)
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		g.Expect(f.machine(next.Name).Annotations).To(HaveKeyWithValue(v1alpha1.ReplacesAnnotation, small.Name))
		own, _ := keeper.Count("general")
		g.Expect(own).To(Equal(1), "until the replacement is initialized")
		keeper.End(small.Name)
		g.Expect(keeper.Save(t.Context())).To(Succeed())
		g.Expect(remembered.text).To(BeEmpty())
	})
}
