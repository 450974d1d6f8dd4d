// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// limited is the fixture with an inventory.
func limited(t *testing.T) (*fixture, *inventory.Inventory) {
	t.Helper()
	f := newFixture(t)
	i := f.watch()
	f.store = instancetype.New(instancetype.Config{Templates: f.templates, Pricing: pricing.New(pricing.NewFile("")), Unavailable: f.unavailable, Inventory: i, Capacity: f.store.Capacity})
	config := f.provider.Config
	config.InstanceTypes, config.Inventory = f.store, i
	f.provider = cloudprovider.New(config)
	return f, i
}

// watch returns an inventory of the Machines and Nodes there are.
func (f *fixture) watch() *inventory.Inventory {
	f.t.Helper()
	i := inventory.New(inventory.Config{None: f.provider.Machines.None, Clock: clock.RealClock{}})
	f.Expect(i.Watch(f.t.Context(), f.Management.GetCache(), f.Guest.GetCache(), f.provider.Machines.Owns)).To(Succeed())
	f.Eventually(i.IsCounted).Should(BeTrue())
	return i
}

// createMany calls Create for many NodeClaims at once.
func (f *fixture) createMany(n int) (created []*karpv1.NodeClaim) {
	f.t.Helper()
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		nodeClaim := f.claim(fmt.Sprint("many-", i), nil)
		wg.Go(func() {
			c, err := f.provider.Create(f.ctx, nodeClaim)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			created = append(created, c)
		})
	}
	wg.Wait()
	f.Expect(errs).To(BeEmpty())
	return created
}

func TestMaximum(t *testing.T) {
	most := func(n int) func([]template.Template) {
		return func(templates []template.Template) { templates[0].MaxSize = &n }
	}
	count := func(nodeClaims []*karpv1.NodeClaim) map[string]int {
		counts := map[string]int{}
		for _, n := range nodeClaims {
			counts[n.Labels[corev1.LabelInstanceTypeStable]]++
		}
		return counts
	}
	t.Run("When a source has a maximum and many claims come at once, it should make exactly as many and the rest of the next cheapest", func(t *testing.T) {
		f, counted := limited(t)
		f.offer(most(3))
		created := f.createMany(30)
		f.Expect(count(created)).To(Equal(map[string]int{"c2-small": 3, "c4-large": 27}))
		machines := &clusterv1.MachineList{}
		f.Expect(f.Admin.List(t.Context(), machines, client.InNamespace(f.Namespace), client.MatchingLabels{corev1.LabelInstanceTypeStable: "c2-small"})).To(Succeed())
		f.Expect(machines.Items).To(HaveLen(3))
		its, err := f.store.InstanceTypes(f.nodeClass.Name)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(its).To(HaveLen(2))
		for _, it := range its {
			f.Expect(it.Offerings.Available()).To(HaveLen(map[string]int{"c2-small": 0, "c4-large": 4}[it.Name]), it.Name)
		}

		// One of them goes.
		f.Expect(f.Admin.Delete(t.Context(), &machines.Items[0])).To(Succeed())
		f.Eventually(func() bool { return counted.Full("TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large", 3) }).Should(BeFalse())
		_, another := f.launch("another", nil)
		f.Expect(another.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
	})
	t.Run("When two sources make the same offering and the cheaper one is full, it should take the other", func(t *testing.T) {
		f, _ := limited(t)
		f.offer(func(templates []template.Template) {
			templates[1].InstanceType, templates[1].SpotPrice, templates[1].Capacity = "c2-small", nil, templates[0].Capacity
			templates[0].MaxSize = ptr.To(2)
		})
		created := f.createMany(6)
		f.Expect(count(created)).To(Equal(map[string]int{"c2-small": 6}))
		f.Expect(f.Objects(t.Context(), clusterv1.GroupVersion.WithKind("Machine"))).To(HaveLen(6))
		machines := &clusterv1.MachineList{}
		f.Expect(f.Admin.List(t.Context(), machines, client.InNamespace(f.Namespace))).To(Succeed())
		sources := map[string]int{}
		for i := range machines.Items {
			sources[machines.Items[i].Annotations["karpenter.cluster.x-k8s.io/template-source"]]++
		}
		f.Expect(sources).To(Equal(map[string]int{
			"TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large":        2,
			"TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large-source": 4,
		}))
	})
	t.Run("When the provider restarts, it should count the existing Machines", func(t *testing.T) {
		f, _ := limited(t)
		f.offer(most(2))
		f.createMany(2)
		f.Eventually(func() (int, error) {
			machines, err := f.provider.Machines.List(t.Context())
			return len(machines), err
		}).Should(Equal(2))
		again := f.watch()
		f.Expect(again.Acquire("new", "TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large", 2)).To(MatchError(inventory.ErrFull))
	})
	for name, tc := range map[string]struct {
		lost bool
		want int
	}{
		"When a launch ends before its Machine was written, it should give its place to another":        {false, 0},
		"When a launch ends though its Machine was written, it should keep its place for what is there": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, counted := limited(t)
			f.offer(most(1))
			// Infrastructure and bootstrap config come before.
			f.provider.Machines = f.Machines(&environment.Faults{Client: f.Management.GetClient(), FailAt: 3, Lost: tc.lost})
			f.Expect(f.refused("ends", nil)).To(MatchError(ContainSubstring(environment.ErrFault.Error())))
			f.Expect(counted.Count("TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large")).To(Equal(tc.want))
		})
	}
}
