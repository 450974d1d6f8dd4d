// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	onDemand = karpv1.CapacityTypeOnDemand
	spot     = karpv1.CapacityTypeSpot
)

// prices of an instance type by capacity type, in USD per hour.
type prices map[string]float64

// spotProvider has instance types of 2 and of 8 CPUs, in one zone.
type spotProvider struct {
	classed
	c2, c8 prices
}

func (spotProvider) Name() string                                     { return "test" }
func (spotProvider) RepairPolicies() []karpcloudprovider.RepairPolicy { return nil }

func (p spotProvider) GetInstanceTypes(context.Context, *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	return []*karpcloudprovider.InstanceType{instanceType("c2", "2", p.c2), instanceType("c8", "8", p.c8)}, nil
}

func in(key string, values ...string) *karpscheduling.Requirement {
	return karpscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
}

func instanceType(name, cpus string, of prices) *karpcloudprovider.InstanceType {
	it := &karpcloudprovider.InstanceType{
		Name: name, Capacity: room(cpus), Overhead: &karpcloudprovider.InstanceTypeOverhead{},
		Requirements: karpscheduling.NewRequirements(in(corev1.LabelInstanceTypeStable, name), in(corev1.LabelArchStable, "amd64"), in(corev1.LabelOSStable, "linux"),
			in(corev1.LabelTopologyZone, "a"), in(karpv1.CapacityTypeLabelKey, onDemand, spot)),
	}
	for capacityType, price := range of {
		it.Offerings = append(it.Offerings, &karpcloudprovider.Offering{
			Requirements: karpscheduling.NewRequirements(in(corev1.LabelTopologyZone, "a"), in(karpv1.CapacityTypeLabelKey, capacityType)), Price: price, Available: true,
		})
	}
	return it
}

// immediate has core validate a consolidation without a delay.
type immediate struct{ clock.Clock }

func (immediate) After(time.Duration) <-chan time.Time {
	passed := make(chan time.Time, 1)
	passed <- time.Time{}
	return passed
}

// spotObjects are a node c8 on demand that has one small pod, and the NodePool.
func spotObjects(allowed []string, selector map[string]string) []client.Object {
	pool := newPool("1")
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: allowed}}
	pool.Spec.Disruption.ConsolidationPolicy, pool.Spec.Disruption.ConsolidateAfter = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, karpv1.MustParseNillableDuration("0s")
	node, claim := newNode("n", "c8", onDemand, room("8"), karpv1.ConditionTypeConsolidatable)
	pod := newPod("n", "web")
	pod.Spec.NodeSelector, pod.Spec.Containers = selector, requesting("1")
	return []client.Object{pool, node, claim, pod}
}

func TestOnDemand(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	both := []string{onDemand, spot}
	for name, tc := range map[string]struct {
		c2       prices
		allowed  []string
		selector map[string]string
		want     []string // of the replacement; nil for none
	}{
		"When spot is cheaper, it should require spot, as core does":                                    {c2: prices{onDemand: 0.07, spot: 0.02}, allowed: both, want: []string{spot}},
		"When on demand is cheaper than spot, it should require on demand":                              {c2: prices{onDemand: 0.05, spot: 0.1}, allowed: both, want: []string{onDemand}},
		"When only on demand is cheaper than the node, it should require on demand":                     {c2: prices{onDemand: 0.05, spot: 0.45}, allowed: both, want: []string{onDemand}},
		"When both cost the same, it should require on demand, which isn't interrupted":                 {c2: prices{onDemand: 0.05, spot: 0.05}, allowed: both, want: []string{onDemand}},
		"When the NodePool allows spot alone, it should require spot":                                   {c2: prices{onDemand: 0.05, spot: 0.1}, allowed: []string{spot}, want: []string{spot}},
		"When the pod wants spot, and that is dearer than on demand, it should leave the node as it is": {c2: prices{onDemand: 0.05, spot: 0.1}, allowed: both, selector: map[string]string{karpv1.CapacityTypeLabelKey: spot}},
		"When nothing is cheaper than the node, it should leave it as it is":                            {c2: prices{onDemand: 0.4, spot: 0.5}, allowed: both},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			all := spotObjects(tc.allowed, tc.selector)
			config := coreConfig{
				Guest: newGuest(all...), Recorder: &environment.Recorder{}, Clock: immediate{clocktesting.NewFakeClock(time.Now())},
				CloudProvider: methods.CheaperSpot(spotProvider{c2: tc.c2, c8: prices{onDemand: 0.4, spot: 0.45}}, offering.Closed),
			}
			core := newCore(t, config, all)
			unaltered := disruption.NewMethods(core.Context, core.Clock, core.State, core.Guest, core.Provisioner, core.CloudProvider, core.Recorder, core.Queue)
			commands := core.disrupt(t, methods.OnDemand(unaltered))
			if tc.want == nil {
				g.Expect(commands).To(BeEmpty())
				return
			}
			g.Expect(commands).To(HaveLen(1))
			list := &karpv1.NodeClaimList{}
			g.Expect(core.Guest.List(t.Context(), list)).To(Succeed())
			for _, claim := range list.Items {
				if claim.Name == "claim-n" {
					continue
				}
				requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
				g.Expect(requirements.Get(karpv1.CapacityTypeLabelKey).Values()).To(ConsistOf(tc.want))
				g.Expect(requirements.Get(corev1.LabelInstanceTypeStable).Values()).To(ConsistOf("c2"))
			}
		})
	}
}

// balancing is a method of core's that takes the totals of NodePools.
type balancing struct {
	disruption.Method
	totals map[string]disruption.NodePoolTotals
}

func (*balancing) ConsolidationType() string { return disruption.SingleNodeConsolidationType.Name }

func (b *balancing) SetNodePoolTotals(totals map[string]disruption.NodePoolTotals) { b.totals = totals }

func TestBalanced(t *testing.T) {
	t.Run("When core has the totals of NodePools, by which Balanced decides, its consolidation should still get them", func(t *testing.T) {
		g, core := NewWithT(t), &balancing{}
		setter, ok := methods.OnDemand([]disruption.Method{core})[0].(disruption.NodePoolTotalsSetter)
		g.Expect(ok).To(BeTrue())
		setter.SetNodePoolTotals(map[string]disruption.NodePoolTotals{"default": {TotalCost: 1}})
		g.Expect(core.totals).To(HaveKey("default"))
	})
}
