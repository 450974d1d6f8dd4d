// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func origin(instanceType string) Origin {
	return Origin{Source: "source", Key: offering.Key{InstanceType: instanceType, Zone: "a", CapacityType: "spot"}, Price: 0.1}
}

func TestOrigins(t *testing.T) {
	machines := New(Config{Clock: clocktesting.NewFakeClock(time.Now())})
	observe := func(nodeClaim types.UID, o Origin) { machines.ObserveMachine(nodeClaim, Machine{Origin: o}) }
	for _, step := range []struct {
		name    string
		do      func()
		want    []Origin
		changed bool
	}{
		{"When a machine comes, it should know its origin", func() { observe("1", origin("c4")) }, []Origin{origin("c4")}, true},
		{"When it is seen again, it should report no change", func() { observe("1", origin("c4")) }, []Origin{origin("c4")}, false},
		{"When another of the same origin comes, it should report no change", func() { observe("2", origin("c4")) }, []Origin{origin("c4")}, false},
		{"When one of another origin comes, it should know both, in order", func() { observe("3", origin("c2")) }, []Origin{origin("c2"), origin("c4")}, true},
		{"When one of two goes, it should still know the origin", func() { machines.ForgetMachine("1") }, []Origin{origin("c2"), origin("c4")}, false},
		{"When the last one goes, it should forget the origin", func() { machines.ForgetMachine("2") }, []Origin{origin("c2")}, true},
		{"When one goes that was never seen, it should report no change", func() { machines.ForgetMachine("9") }, []Origin{origin("c2")}, false},
		{"When one reports something else by now, it should follow", func() { observe("3", origin("c8")) }, []Origin{origin("c8")}, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := machines.Sequence()
			step.do()
			NewWithT(t).Expect(originsOf(machines)).To(BeComparableTo(step.want))
			if changed := machines.Sequence() != before; changed != step.changed {
				t.Errorf("changed %t, want %t", changed, step.changed)
			}
		})
	}
}

// originsOf returns the origins of all machines, in order.
func originsOf(machines *Inventory) (origins []Origin) {
	for _, instanceType := range slices.Sorted(slices.Values(machines.InstanceTypes())) {
		origins = append(origins, machines.Origins(instanceType)...)
	}
	return origins
}

func TestNodeZone(t *testing.T) {
	zoneless := origin("c4")
	zoneless.Zone = offering.DefaultZone
	in := func(o Origin, zone string) Origin {
		o.NodeZone = zone
		return o
	}
	for name, tc := range map[string]struct {
		machine Origin
		zones   []string // of the Node, one after the other
		want    Origin
	}{
		"When a machine without a zone has a Node without one, it should know none":                            {zoneless, []string{""}, zoneless},
		"When the Node has the zone that stands for none, it should know none":                                 {zoneless, []string{offering.DefaultZone}, zoneless},
		"When a cloud controller sets the Node's zone, it should know it":                                      {zoneless, []string{"", "eu-1a"}, in(zoneless, "eu-1a")},
		"When the Node's zone changes, it should follow":                                                       {zoneless, []string{"eu-1a", "eu-1b"}, in(zoneless, "eu-1b")},
		"When a machine was launched in a zone, it should believe that and not what its Node reports about it": {origin("c4"), []string{"eu-1a"}, origin("c4")},
	} {
		for _, machineFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s (machine first: %t)", name, machineFirst), func(t *testing.T) {
				machines := New(Config{Clock: clocktesting.NewFakeClock(time.Now())})
				observe := func() { machines.ObserveMachine("1", Machine{Origin: tc.machine, ProviderID: "one"}) }
				if machineFirst {
					observe()
				}
				for _, zone := range tc.zones {
					machines.ObserveNode("one", Node{ProviderID: "one", Zone: zone})
				}
				if !machineFirst {
					observe()
				}
				NewWithT(t).Expect(originsOf(machines)).To(BeComparableTo([]Origin{tc.want}))
				machines.ForgetMachine("1")
				if left := originsOf(machines); len(left) > 0 {
					t.Errorf("origins of no machine: %v", left)
				}
			})
		}
	}
}

func TestOriginOf(t *testing.T) {
	for name, tc := range map[string]struct {
		price string
		want  float64
	}{
		"When a Machine reports its price, it should take it":                   {"0.1", 0.1},
		"When a Machine reports no price, it should take none":                  {"", 0},
		"When the price is none that equals itself, it should take none":        {"NaN", 0},
		"When the price is more than can be computed with, it should ignore it": {"Inf", 0},
		"When the price is less than nothing, it should ignore it":              {"-1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := OriginOf(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{
					corev1.LabelInstanceTypeStable: "c4", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: "spot",
				},
				Annotations: map[string]string{v1alpha1.TemplateSourceAnnotation: "source", v1alpha1.PriceAnnotation: tc.price},
			}})
			want := origin("c4")
			want.Price = tc.want
			NewWithT(t).Expect(got).To(BeComparableTo(want))
		})
	}
}
