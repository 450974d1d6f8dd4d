// SPDX-License-Identifier: Apache-2.0

// Package instancetype turns shapes into Karpenter's instance types, and keeps the result until something that it was built
// from changes.
package instancetype

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/offering"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/shape"
)

// Input is everything that a snapshot is built from.
type Input struct {
	// Kubelet is the node class's; nil means the kubelet's own defaults.
	Kubelet *v1alpha1.KubeletConfiguration
	// Shapes in the order that decides where they contradict each other: the first one wins.
	Shapes []shape.Shape
	// Cluster's failure domains are the zones of every shape that isn't bound to its own. While it is paused nothing is
	// available.
	Cluster shape.Cluster
	// Pricing answers for every on-demand offering.
	Pricing pricing.Source
	// Unavailable may be nil.
	Unavailable *offering.Unavailable
}

// Choice is one offering with the shape behind it.
type Choice struct {
	// Shape to make the machine from. It is shared: never change it.
	Shape *shape.Shape
	// InstanceType and Offering as Karpenter sees them. They are shared: never change them.
	InstanceType *cloudprovider.InstanceType
	Offering     *cloudprovider.Offering
	// FailureDomain for the Machine; empty where there are no failure domains, although the offering has a zone.
	FailureDomain string

	place
}

// Snapshot is what one node class offers at one time. It is never changed once built.
type Snapshot struct {
	// InstanceTypes ordered by name, with unavailable offerings too.
	InstanceTypes []*cloudprovider.InstanceType
	// Problems are the shapes and settings that were left out of the snapshot.
	Problems []error

	choices map[offering.Key]*Choice
	shapes  map[string]*shape.Shape
	// taints of the types of which at least one shape has any, by name.
	taints map[string][]corev1.Taint
}

// Resolve finds the offering and the shape behind it.
func (s *Snapshot) Resolve(instanceType, zone, capacityType string) (Choice, bool) {
	choice, ok := s.choices[offering.Key{InstanceType: instanceType, Zone: zone, CapacityType: capacityType}]
	if !ok {
		return Choice{}, false
	}
	return *choice, true
}

// Shape finds the shape of a source, by shape.Source's Annotation.
func (s *Snapshot) Shape(source string) (*shape.Shape, bool) {
	sh, ok := s.shapes[source]
	return sh, ok
}

// Choices returns every offering with its shape, cheapest first.
func (s *Snapshot) Choices() []Choice {
	keys := slices.SortedFunc(maps.Keys(s.choices), func(a, b offering.Key) int {
		return cmp.Or(cmp.Compare(s.choices[a].Offering.Price, s.choices[b].Offering.Price), a.Compare(b))
	})
	choices := make([]Choice, len(keys))
	for i, key := range keys {
		choices[i] = *s.choices[key]
	}
	return choices
}

// Tolerating returns the instance types whose nodes have no other taints than these. Karpenter's scheduler expects a node to
// have the NodePool's taints, so a type with more would be launched for pods that then can't run there. Where no shape has
// taints, which is nearly always, it returns InstanceTypes itself.
func (s *Snapshot) Tolerating(taints ...[]corev1.Taint) []*cloudprovider.InstanceType {
	if len(s.taints) == 0 {
		return s.InstanceTypes
	}
	all := slices.Concat(taints...)
	return slices.DeleteFunc(slices.Clone(s.InstanceTypes), func(it *cloudprovider.InstanceType) bool {
		return slices.ContainsFunc(s.taints[it.Name], func(taint corev1.Taint) bool {
			return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
				!slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value })
		})
	})
}

// Build makes a snapshot. Shapes that share an instance type's name become one type with the offerings of all; it promises
// the least that any of them has. Of two offerings that Karpenter couldn't tell apart, the cheaper one stays.
//
// Requirements that are equal are shared between offerings and types: Karpenter never changes those of an instance type.
func Build(in Input) *Snapshot {
	b := builder{Input: in, offerings: map[place]scheduling.Requirements{}, without: map[string]*scheduling.Requirement{}}
	for key := range karpv1.WellKnownLabels {
		// The NodePool isn't a property of the type: DoesNotExist would rule out every NodePool.
		if key != karpv1.NodePoolLabelKey {
			b.without[key] = scheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist)
		}
	}
	return b.build()
}

// place is where and how a machine is bought.
type place struct{ zone, capacityType string }

type builder struct {
	Input
	// offerings are the requirements of every place.
	offerings map[place]scheduling.Requirements
	// without says that a type doesn't have a well-known label.
	without map[string]*scheduling.Requirement
}

func (b builder) build() *Snapshot {
	in := b.Input
	s := &Snapshot{choices: map[offering.Key]*Choice{}, shapes: map[string]*shape.Shape{}, taints: map[string][]corev1.Taint{}}
	reserved, problems := parseReserved(in.Kubelet)
	s.Problems = append(s.Problems, problems...)

	zones, problems := zonesOf(in.Cluster.FailureDomains)
	s.Problems = append(s.Problems, problems...)

	groups := map[string][]*shape.Shape{}
	for i := range in.Shapes {
		sh := &in.Shapes[i]
		if first := groups[sh.InstanceType]; len(first) > 0 && (first[0].Arch != sh.Arch || first[0].OS != sh.OS) {
			s.Problems = append(s.Problems, &shape.InvalidError{Source: sh.Source, Problem: fmt.Sprintf(
				"instance type %s is %s/%s already, by %s; this one is %s/%s and needs a name of its own, by annotation %s",
				sh.InstanceType, first[0].OS, first[0].Arch, first[0].Source, sh.OS, sh.Arch, v1alpha1.InstanceTypeAnnotation)})
			continue
		}
		groups[sh.InstanceType] = append(groups[sh.InstanceType], sh)
		s.shapes[sh.Source.Annotation()] = sh
	}

	for _, name := range slices.Sorted(maps.Keys(groups)) {
		it := &cloudprovider.InstanceType{
			Name:     name,
			Capacity: capacityOf(groups[name], in.Kubelet),
		}
		it.Overhead = reserved.overhead(it.Capacity)
		offerings := make(map[offering.Key]*Choice, len(groups[name])*2*max(len(zones), 1))
		for _, sh := range groups[name] {
			s.taints[name] = append(s.taints[name], sh.Taints...)
			for _, choice := range b.choices(sh, zones) {
				choice.InstanceType = it
				key := offering.Key{InstanceType: name, Zone: choice.zone, CapacityType: choice.capacityType}
				// A usable offering wins over one that isn't, then the cheaper one, then the first.
				if other, ok := offerings[key]; ok && !(choice.Offering.Available && !other.Offering.Available) &&
					!(choice.Offering.Available == other.Offering.Available && choice.Offering.Price < other.Offering.Price) {
					continue
				}
				offerings[key] = choice
			}
		}
		if len(s.taints[name]) == 0 {
			delete(s.taints, name)
		}
		zoneNames, capacityTypes := sets.New[string](), sets.New[string]()
		for _, key := range slices.SortedFunc(maps.Keys(offerings), offering.Key.Compare) {
			it.Offerings = append(it.Offerings, offerings[key].Offering)
			zoneNames.Insert(key.Zone)
			capacityTypes.Insert(key.CapacityType)
			s.choices[key] = offerings[key]
		}
		it.Requirements = b.requirements(it, groups[name], zoneNames, capacityTypes)
		s.InstanceTypes = append(s.InstanceTypes, it)
	}
	return s
}

// choices makes the offerings of one shape.
func (b builder) choices(sh *shape.Shape, zones []string) []*Choice {
	domains := zones
	if len(sh.FailureDomains) > 0 {
		domains = sh.FailureDomains
	}
	capacityTypes := []string{karpv1.CapacityTypeOnDemand}
	if sh.SpotPrice != nil {
		capacityTypes = append(capacityTypes, karpv1.CapacityTypeSpot)
	}
	var choices []*Choice
	for _, capacityType := range capacityTypes {
		price, ok := b.Pricing.Price(sh, capacityType)
		if !ok {
			continue
		}
		if len(domains) == 0 {
			choices = append(choices, b.choice(sh, DefaultZone, "", capacityType, price))
		}
		for _, domain := range domains {
			choices = append(choices, b.choice(sh, domain, domain, capacityType, price))
		}
	}
	return choices
}

func (b builder) choice(sh *shape.Shape, zone, failureDomain, capacityType string, price float64) *Choice {
	available := !sh.Paused && !b.Cluster.Paused && sh.Bootstrap.IsDefined()
	if b.Unavailable != nil && available {
		available = !b.Unavailable.Has(offering.Key{InstanceType: sh.InstanceType, Zone: zone, CapacityType: capacityType})
	}
	requirements, ok := b.offerings[place{zone, capacityType}]
	if !ok {
		requirements = scheduling.NewRequirements(
			scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone),
			scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityType),
		)
		b.offerings[place{zone, capacityType}] = requirements
	}
	return &Choice{
		Shape:         sh,
		FailureDomain: failureDomain,
		place:         place{zone, capacityType},
		Offering:      &cloudprovider.Offering{Requirements: requirements, Price: price, Available: available},
	}
}

// requirements gives every well-known label one, because to Karpenter a missing one means that any value is possible.
func (b builder) requirements(it *cloudprovider.InstanceType, shapes []*shape.Shape, zones, capacityTypes sets.Set[string]) scheduling.Requirements {
	reqs := scheduling.NewRequirements(
		scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, it.Name),
		scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, shapes[0].Arch),
		scheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, shapes[0].OS),
		scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, sets.List(zones)...),
		scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, sets.List(capacityTypes)...),
		scheduling.NewRequirement(InstanceCPULabel, corev1.NodeSelectorOpIn, strconv.FormatInt(it.Capacity.Cpu().MilliValue()/1000, 10)),
		scheduling.NewRequirement(InstanceMemoryLabel, corev1.NodeSelectorOpIn, strconv.FormatInt(it.Capacity.Memory().Value()>>20, 10)),
	)
	// Only what all the shapes say is sure.
	for key, value := range shapes[0].Labels {
		if !reqs.Has(key) && !slices.ContainsFunc(shapes[1:], func(s *shape.Shape) bool {
			other, ok := s.Labels[key]
			return !ok || other != value
		}) {
			reqs.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value))
		}
	}
	for key, without := range b.without {
		if !reqs.Has(key) {
			reqs[key] = without
		}
	}
	return reqs
}

// capacityOf is the least that any of the shapes has.
func capacityOf(shapes []*shape.Shape, kubelet *v1alpha1.KubeletConfiguration) corev1.ResourceList {
	capacity := shapes[0].Capacity.DeepCopy()
	for _, sh := range shapes[1:] {
		for name, quantity := range capacity {
			other, ok := sh.Capacity[name]
			switch {
			case !ok:
				delete(capacity, name)
			case other.Cmp(quantity) < 0:
				capacity[name] = other.DeepCopy()
			}
		}
	}
	if kubelet != nil && kubelet.MaxPods != nil {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(*kubelet.MaxPods), resource.DecimalSI)
	}
	return capacity
}

// zonesOf keeps the failure domains that can be the value of a label.
func zonesOf(failureDomains []string) (zones []string, problems []error) {
	for _, domain := range failureDomains {
		if msgs := validation.IsValidLabelValue(domain); domain == "" || len(msgs) > 0 {
			problems = append(problems, fmt.Errorf("failure domain %q of the Cluster can't be the value of label %s: %v", domain, corev1.LabelTopologyZone, msgs))
			continue
		}
		zones = append(zones, domain)
	}
	return zones, problems
}

// Allocatable is what pods can use of the choice's instance type.
func (c Choice) Allocatable() corev1.ResourceList {
	return resources.Merge(c.InstanceType.Allocatable())
}
