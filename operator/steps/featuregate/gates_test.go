// SPDX-License-Identifier: Apache-2.0

package featuregate

import (
	"flag"
	"reflect"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/assets/crds"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
)

func TestGates(t *testing.T) {
	for _, gate := range gates {
		t.Run("When "+gate.name+" is set, Karpenter core should have it", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(core(t, g, gate, &corev1.Container{})).To(Equal(gate.on), "its default")
			for _, on := range []bool{true, false} {
				container := &corev1.Container{}
				Write(container, map[string]bool{gate.name: on})
				g.Expect(core(t, g, gate, container)).To(Equal(on))
				g.Expect(slices.Contains(Enabled(container), gate.name)).To(Equal(on))
			}
		})
	}

	t.Run("When gates are listed, they should be sorted", func(t *testing.T) {
		NewWithT(t).Expect(slices.IsSorted(Names())).To(BeTrue())
	})
	t.Run("When gates need definitions, they should be those that a guest has on demand", func(t *testing.T) {
		g := NewWithT(t)
		definitions, err := crds.Gated()
		g.Expect(err).NotTo(HaveOccurred())
		found := map[string][]string{}
		for _, definition := range definitions {
			for _, version := range definition.Spec.Versions {
				found[definition.Name] = append(found[definition.Name], version.Name)
			}
		}
		for _, gate := range gates {
			if gate.definition != "" {
				g.Expect(found[gate.definition]).To(ContainElement(gate.version))
				delete(found, gate.definition)
			}
		}
		g.Expect(found).To(BeEmpty())
	})
}

// core returns what Karpenter core makes of a gate in the container's environment.
func core(t *testing.T, g *WithT, gate gate, container *corev1.Container) bool {
	t.Helper()
	for _, v := range container.Env {
		t.Setenv(v.Name, v.Value)
	}
	flags := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	parsed := &options.Options{}
	parsed.AddFlags(flags)
	g.Expect(parsed.Parse(flags)).To(Succeed())
	if gate.name == DynamicResourceAllocation {
		return !parsed.IgnoreDRARequests
	}
	return reflect.ValueOf(parsed.FeatureGates).FieldByName(gate.name).Bool()
}

func TestWrite(t *testing.T) {
	deployment, err := karpenterassets.Deployment()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	byDefault := []string{"NodeOverlay", "NodeRepair", "ReservedCapacity", "StaticCapacity", "TerminateFirstDrift", "TerminateFirstRepair"}
	for _, test := range []struct {
		name string
		set  map[string]bool
		want []string
	}{
		{"When nothing is set, it should leave the defaults", nil, byDefault},
		{"When a gate is turned on, it should add it", map[string]bool{CapacityBuffer: true}, append([]string{CapacityBuffer}, byDefault...)},
		{"When the gate with a variable of its own is turned on, it should set that", map[string]bool{DynamicResourceAllocation: true}, append([]string{DynamicResourceAllocation}, byDefault...)},
		{"When gates are turned off, it should leave the others", map[string]bool{"NodeOverlay": false, "ReservedCapacity": false}, []string{"NodeRepair", "StaticCapacity", "TerminateFirstDrift", "TerminateFirstRepair"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			container := deployment.Spec.Template.Spec.Containers[0].DeepCopy()
			variables := len(container.Env)
			Write(container, test.set)
			if test.set[DynamicResourceAllocation] {
				g.Expect(container.Env[variables:]).To(ConsistOf(corev1.EnvVar{Name: "IGNORE_DRA_REQUESTS", Value: "false"}))
				variables++
			}
			g.Expect(container.Env).To(HaveLen(variables))
			g.Expect(Enabled(container)).To(Equal(test.want))
		})
	}
}

func TestRules(t *testing.T) {
	t.Run("When no gate is on that needs permissions, it should grant none", func(t *testing.T) {
		rules, err := Rules(sets.New("NodeOverlay", "unknown"))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(rules).To(BeEmpty())
	})
	for _, test := range []struct {
		gate   string
		writes []string
	}{
		{CapacityBuffer, []string{"capacitybuffers/status"}},
		{DynamicResourceAllocation, nil},
		{PodDeletionCostManagement, []string{"pods"}},
	} {
		t.Run("When "+test.gate+" is on, it should grant what it needs, and patches of nothing else", func(t *testing.T) {
			g := NewWithT(t)
			rules, err := Rules(sets.New(test.gate))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rules).NotTo(BeEmpty())
			var patched []string
			for _, rule := range rules {
				if slices.Equal(rule.Verbs, []string{"patch"}) {
					patched = append(patched, rule.Resources...)
				} else {
					g.Expect(rule.Verbs).To(ConsistOf("list", "watch"))
				}
			}
			g.Expect(patched).To(Equal(test.writes))
		})
	}
}
