// SPDX-License-Identifier: Apache-2.0

// Package instancetype turns shapes into Karpenter's instance types, and keeps the result until something that it was built
// from changes.
package instancetype

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
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

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Input is everything that a snapshot is built from.
type Input struct {
	// Kubelet is the node class's; nil means the kubelet's own defaults.
	Kubelet *v1alpha1.KubeletConfiguration
	// Shapes in the order that decides where they contradict each other: the first one wins.
	Shapes []template.Template
	// Gaps are what isn't known of the shapes.
	Gaps template.Gaps
	// Cluster's failure domains are the zones of every shape that isn't bound to its own. While it is paused nothing is
	// available.
	Cluster template.Cluster
	// Pricing answers for every on-demand offering.
	Pricing pricing.Source
	// Unavailable may be nil.
	Unavailable *offering.Unavailable
	// Inventory of the machines that there are, which keep what they were made as known while it can't be made; it may be nil.
	Inventory *inventory.Inventory
}

// Choice is one offering with the shape behind it.
type Choice struct {
	// Shape to make the machine from. It is shared: never change it.
	Shape *template.Template
	// InstanceType and Offering as Karpenter sees them. They are shared: never change them.
	InstanceType *cloudprovider.InstanceType
	Offering     *cloudprovider.Offering
	// FailureDomain for the Machine; empty where there are no failure domains, although the offering has a zone.
	FailureDomain string
}

// Snapshot is what one node class offers at one time. It is never changed once built.
type Snapshot struct {
	// InstanceTypes ordered by name, with unavailable offerings too: those that can't be had now, and those that can't be made but
	// machines have.
	InstanceTypes []*cloudprovider.InstanceType
	// Problems are the shapes and settings that were left out of the snapshot.
	Problems []error

	choices map[offering.Key]*Choice
	shapes  map[string]*template.Template
	gaps    template.Gaps
	// taints of the types of which at least one shape has any, by name.
	taints map[string][]corev1.Taint
	// unavailable says of each shape's source why nothing can be had of it now, if that is so.
	unavailable map[string]string
	// closed are those of the types with taints that machines have, with nothing available.
	closed map[string]*cloudprovider.InstanceType
}

// Resolve finds the offering and the shape behind it.
func (s *Snapshot) Resolve(instanceType, zone, capacityType string) (Choice, bool) {
	choice, ok := s.choices[offering.Key{InstanceType: instanceType, Zone: zone, CapacityType: capacityType}]
	if !ok {
		return Choice{}, false
	}
	return *choice, true
}

// Offers tells whether there is an offering in any zone, available or not. That machines have it is not enough.
func (s *Snapshot) Offers(instanceType, capacityType string) bool {
	it, ok := s.find(instanceType)
	return ok && slices.ContainsFunc(it.Offerings, func(o *cloudprovider.Offering) bool {
		_, offered := s.choices[offering.Key{InstanceType: instanceType, Zone: o.Zone(), CapacityType: capacityType}]
		return offered && o.CapacityType() == capacityType
	})
}

// Empty tells whether nothing can be made at all, now or later.
func (s *Snapshot) Empty() bool { return len(s.shapes) == 0 }

// Shape finds the shape of a source, by shape.Source's Annotation.
func (s *Snapshot) Shape(source string) (*template.Template, bool) {
	sh, ok := s.shapes[source]
	return sh, ok
}

// Unavailable says why no machine can be had of a source's shape now, in the words of v1alpha1.ShapeStatus, or nothing.
func (s *Snapshot) Unavailable(source string) string { return s.unavailable[source] }

// Shapes of all sources, whether an offering is made from them now or not, in no order. They are shared: never change them.
func (s *Snapshot) Shapes() iter.Seq[*template.Template] { return maps.Values(s.shapes) }

// Knows tells whether a source that Shape doesn't find has gone. Otherwise it may be there, and only can't be read or used.
func (s *Snapshot) Knows(source string) bool {
	return !s.gaps.Has(source) && !slices.ContainsFunc(s.Problems, func(problem error) bool {
		var invalid *template.InvalidError
		return errors.As(problem, &invalid) && invalid.Source.Annotation() == source
	})
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
// have the NodePool's taints, so a type with more would be launched for pods that then can't run there. One that machines have
// stays, with nothing available: taints that come with a template are no reason to replace nodes. Where no shape has taints,
// which is nearly always, it returns InstanceTypes itself.
func (s *Snapshot) Tolerating(taints ...[]corev1.Taint) []*cloudprovider.InstanceType {
	if len(s.taints) == 0 {
		return s.InstanceTypes
	}
	all := slices.Concat(taints...)
	tolerating := make([]*cloudprovider.InstanceType, 0, len(s.InstanceTypes))
	for _, it := range s.InstanceTypes {
		if slices.ContainsFunc(s.taints[it.Name], func(taint corev1.Taint) bool {
			return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
				!slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value })
		}) {
			it = s.closed[it.Name]
		}
		if it != nil {
			tolerating = append(tolerating, it)
		}
	}
	return tolerating
}

// Build makes a snapshot. Shapes that share an instance type's name become one type with the offerings of all; it promises
// the least that any of them has. Of two offerings that Karpenter couldn't tell apart, the cheaper one stays.
//
// Requirements that are equal are shared between offerings and types: Karpenter never changes those of an instance type.
func Build(in Input) *Snapshot {
	b := builder{
		Input: in, offerings: map[place]scheduling.Requirements{}, without: map[string]*scheduling.Requirement{},
		unavailable: make(map[string]string, len(in.Shapes)),
	}
	for key := range karpv1.WellKnownLabels {
		// The NodePool isn't a property of the type: DoesNotExist would rule out every NodePool.
		if key != karpv1.NodePoolLabelKey {
			b.without[key] = scheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist)
		}
	}
	return b.build()
}

type builder struct {
	Input
	// offerings are the requirements of every place.
	offerings map[place]scheduling.Requirements
	// without says that a type doesn't have a well-known label.
	without map[string]*scheduling.Requirement
	// unavailable becomes the snapshot's.
	unavailable map[string]string
}

func (b builder) build() *Snapshot {
	s := &Snapshot{
		choices: map[offering.Key]*Choice{}, shapes: map[string]*template.Template{}, gaps: b.Gaps, unavailable: b.unavailable,
		taints: map[string][]corev1.Taint{}, closed: map[string]*cloudprovider.InstanceType{},
	}
	reserved, problems := parseReserved(b.Kubelet)
	s.Problems = append(s.Problems, problems...)
	zones, problems := zonesOf(b.Cluster.FailureDomains)
	s.Problems = append(s.Problems, problems...)
	groups, problems := groupsOf(b.Shapes)
	s.Problems = append(s.Problems, problems...)

	for _, name := range slices.Sorted(maps.Keys(groups)) {
		shapes := groups[name]
		it := &cloudprovider.InstanceType{Name: name, Capacity: b.capacityOf(shapes)}
		it.DynamicResources = devicesOf(shapes)
		for _, sh := range shapes {
			s.shapes[sh.Source.Annotation()] = sh
			if len(sh.Taints) > 0 {
				s.taints[name] = append(s.taints[name], sh.Taints...)
			}
		}
		choices := b.choices(shapes, zones)
		zoneNames, capacityTypes := sets.New[string](), sets.New[string]()
		for _, p := range slices.SortedFunc(maps.Keys(choices), place.compare) {
			choice := choices[p]
			choice.InstanceType = it
			it.Offerings = append(it.Offerings, choice.Offering)
			s.choices[offering.Key{InstanceType: name, Zone: p.zone, CapacityType: p.capacityType}] = choice
			zoneNames.Insert(p.zone)
			capacityTypes.Insert(p.capacityType)
		}
		// The labels keep the declared memory: a NodePool that asks for it would lose the type when a node is there.
		it.Requirements = b.requirements(it, shapes, zoneNames, capacityTypes)
		b.learn(it.Capacity, shapes)
		it.Overhead = reserved.overhead(it.Capacity)
		s.InstanceTypes = append(s.InstanceTypes, it)
	}
	b.keep(s)
	return s
}

// groupsOf are the shapes of each instance type. One type has one architecture and one operating system.
func groupsOf(shapes []template.Template) (groups map[string][]*template.Template, problems []error) {
	groups = make(map[string][]*template.Template, len(shapes))
	for i := range shapes {
		sh := &shapes[i]
		if group := groups[sh.InstanceType]; len(group) > 0 && (group[0].Arch != sh.Arch || group[0].OS != sh.OS) {
			problems = append(problems, &template.InvalidError{Source: sh.Source, Problem: fmt.Sprintf(
				"instance type %s is %s/%s already, by %s; this one is %s/%s and needs a name of its own, by annotation %s",
				sh.InstanceType, group[0].OS, group[0].Arch, group[0].Source, sh.OS, sh.Arch, v1alpha1.InstanceTypeAnnotation)})
			continue
		}
		groups[sh.InstanceType] = append(groups[sh.InstanceType], sh)
	}
	return groups, problems
}

// requirements gives every well-known label one, because to Karpenter a missing one means that any value is possible.
func (b builder) requirements(it *cloudprovider.InstanceType, shapes []*template.Template, zones, capacityTypes sets.Set[string]) scheduling.Requirements {
	reqs := scheduling.NewRequirements(
		scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, it.Name),
		scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, shapes[0].Arch),
		scheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, shapes[0].OS),
		scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, sets.List(zones)...),
		scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, sets.List(capacityTypes)...),
		scheduling.NewRequirement(wellknown.InstanceCPULabel, corev1.NodeSelectorOpIn, strconv.FormatInt(it.Capacity.Cpu().MilliValue()/1000, 10)),
		scheduling.NewRequirement(wellknown.InstanceMemoryLabel, corev1.NodeSelectorOpIn, strconv.FormatInt(it.Capacity.Memory().Value()>>20, 10)),
	)
	// Only what all the shapes say is sure.
	for key, value := range shapes[0].Labels {
		if !reqs.Has(key) && !slices.ContainsFunc(shapes[1:], func(s *template.Template) bool {
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
func (b builder) capacityOf(shapes []*template.Template) corev1.ResourceList {
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
	if b.Kubelet != nil && b.Kubelet.MaxPods != nil {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(*b.Kubelet.MaxPods), resource.DecimalSI)
	}
	return capacity
}

// learn lessens the memory to what real nodes have. It never becomes more than the source declares: whoever declares less than
// there is has a reason.
func (b builder) learn(capacity corev1.ResourceList, shapes []*template.Template) {
	for _, sh := range shapes {
		bytes, known := b.Inventory.Memory(inventory.Revision{Source: sh.Source.Annotation(), ContentHash: sh.ContentHash})
		if known && bytes < capacity.Memory().Value() {
			capacity[corev1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
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
