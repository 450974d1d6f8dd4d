// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Input is all inputs of a snapshot.
type Input struct {
	// Kubelet is the node class's; nil for the settings of the templates' bootstraps.
	Kubelet *v1alpha1.KubeletConfiguration
	// NodeClassHash is in the annotation of the node class's machines.
	NodeClassHash string
	// MemoryOverhead is the fraction of a machine's nominal memory that is assumed to be missing on its node, until nodes of
	// its template have reported.
	MemoryOverhead float64
	// Templates in order of precedence: the first one wins a conflict.
	Templates []template.Template
	// Gaps are the unknown parts of the templates.
	Gaps template.Gaps
	// Cluster's failure domains are the zones of every template without its own. While the Cluster is paused nothing is
	// available.
	Cluster template.Cluster
	// Pricing has a price for every on-demand offering.
	Pricing pricing.Source
	// Unavailable may be nil.
	Unavailable *offering.Unavailable
	// Capacity is this cluster's share of the capacity that clusters share.
	Capacity capacityprovider.Limiter
	// Inventory has the existing machines, whose offerings stay known even if they can't be launched.
	Inventory *inventory.Inventory
}

// builder builds snapshots of one Input, whose availability, prices and inventory change. It isn't safe for concurrent
// use.
type builder struct {
	Input
	known
	// reserved are the kubelets' reservations, by kubeletOf.
	reserved map[string]reserved
	zones    []string
	// offerings holds the requirements of every offering, by its key without the instance type.
	offerings map[offering.Key]karpscheduling.Requirements
	// without is the requirement that a type has no such well-known label.
	without map[string]*karpscheduling.Requirement
	// resolutions counts the instance types that were resolved, for tests.
	resolutions int
}

// newBuilder shares unchanged parts with an earlier builder: the templates that kept reports, and requirements. It may be nil.
func newBuilder(in Input, before *builder) *builder {
	b := &builder{Input: in, offerings: map[offering.Key]karpscheduling.Requirements{}, without: map[string]*karpscheduling.Requirement{}}
	if before != nil {
		b.offerings, b.without, b.resolutions = before.offerings, before.without, before.resolutions
	}
	for key := range karpv1.WellKnownLabels {
		// A type has no NodePool, and DoesNotExist would exclude every NodePool.
		if _, known := b.without[key]; key != karpv1.NodePoolLabelKey && !known {
			b.without[key] = karpscheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist)
		}
	}
	var problems [4][]error
	b.reserved, problems[0] = reservedOf(in)
	b.zones, problems[1] = zonesOf(in.Cluster.FailureDomains)
	groups, invalid := groupsOf(pointers(in.Templates, before))
	problems[2], problems[3] = invalid, regionProblems(in)
	b.known = known{
		Problems: slices.Concat(problems[:]...), templates: map[string]*template.Template{}, gaps: in.Gaps, region: in.Cluster.Region,
		groups: groups, declared: declaredBy(groups),
		reservations: map[string][]string{},
	}
	for name, templates := range b.groups {
		for _, tmpl := range templates {
			b.templates[tmpl.Source.Annotation()] = tmpl
			b.tainted = b.tainted || len(taintsOf(tmpl)) > 0
			for i := range tmpl.Offerings {
				id := tmpl.Offerings[i].Reservation
				if id != "" && !slices.Contains(b.reservations[id], name) {
					b.reservations[id] = append(b.reservations[id], name)
				}
			}
		}
	}
	return b
}

// pointers returns each template by itself, so that a snapshot which shares one with another doesn't keep all of that one's. Those that
// haven't changed are the earlier builder's.
func pointers(templates []template.Template, before *builder) []*template.Template {
	result := make([]*template.Template, len(templates))
	for i := range templates {
		if before != nil {
			if old, ok := before.templates[templates[i].Source.Annotation()]; ok && identity(old) == identity(&templates[i]) {
				result[i] = old
				continue
			}
		}
		tmpl := templates[i]
		result[i] = &tmpl
	}
	return result
}

// changedFrom returns the instance types of templates that come, go or change between two builders, or false if so much else has changed
// that all of them have to be resolved.
func (b *builder) changedFrom(before *builder) (names sets.Set[string], known bool) {
	if b.tainted != before.tainted || !b.declared.Equal(before.declared) {
		return nil, false
	}
	names = sets.New[string]()
	for source, tmpl := range b.templates {
		if old, ok := before.templates[source]; ok && old != tmpl {
			names.Insert(old.InstanceType, tmpl.InstanceType)
		} else if !ok {
			names.Insert(tmpl.InstanceType)
		}
	}
	for source, old := range before.templates {
		if _, ok := b.templates[source]; !ok {
			names.Insert(old.InstanceType)
		}
	}
	return names, true
}

// build resolves every instance type. Templates with the same instance type name become one type with all their offerings and the
// least of their capacities. Of two identical offerings the cheaper one wins.
//
// Offerings and types share equal requirements: Karpenter never modifies those of an instance type.
func (b *builder) build() *Snapshot {
	names := sets.KeySet(b.groups).Insert(b.Inventory.InstanceTypes()...)
	s := &Snapshot{known: b.known}
	for _, name := range sets.List(names) {
		if r := b.resolve(name); r != nil {
			s.resolved, s.InstanceTypes = append(s.resolved, r), append(s.InstanceTypes, r.InstanceType)
		}
	}
	return s
}

// update returns a snapshot with these instance types resolved again. It shares all others, and merges a few changes into the
// order of the offerings.
func (b *builder) update(before *Snapshot, names sets.Set[string]) *Snapshot {
	s := &Snapshot{known: b.known, resolved: slices.Clone(before.resolved), InstanceTypes: slices.Clone(before.InstanceTypes)}
	order := before.order.Load()
	ordered, reordered := true, 0
	for name := range names {
		at, found := s.at(name)
		switch r := b.resolve(name); {
		case r != nil && found:
			if !sameOfferings(s.InstanceTypes[at], r.InstanceType) && order != nil {
				// A few changes are merged; many are cheaper to sort.
				if reordered++; reordered > maxMerged {
					ordered = false
				}
				if ordered {
					order = ptr.To(order.With(int32(at), r.InstanceType))
				}
			}
			s.resolved[at], s.InstanceTypes[at] = r, r.InstanceType
		case r != nil:
			ordered = false
			s.resolved, s.InstanceTypes = slices.Insert(s.resolved, at, r), slices.Insert(s.InstanceTypes, at, r.InstanceType)
		case found:
			ordered = false
			s.resolved, s.InstanceTypes = slices.Delete(s.resolved, at, at+1), slices.Delete(s.InstanceTypes, at, at+1)
		}
	}
	if ordered {
		s.order.Store(order)
	}
	return s
}

// maxMerged is how many instance types' changes are merged into an order.
const maxMerged = 8

// sameOfferings reports whether two instance types have the same offerings at the same prices, available or not.
func sameOfferings(a, b *karpcloudprovider.InstanceType) bool {
	return slices.EqualFunc(a.Offerings, b.Offerings, func(a, b *karpcloudprovider.Offering) bool {
		return a.Price == b.Price && offering.KeyOf("", a) == offering.KeyOf("", b)
	})
}

// resolve builds one instance type, from its templates and existing machines. It returns nil if there are none.
func (b *builder) resolve(name string) *resolved {
	b.resolutions++
	r := &resolved{unavailable: map[string]string{}}
	if templates := b.groups[name]; len(templates) > 0 {
		b.offer(r, name, templates)
	}
	b.keep(r, name)
	if r.InstanceType == nil {
		return nil
	}
	return r
}

// offer builds an instance type from its templates.
func (b *builder) offer(r *resolved, name string, templates []*template.Template) {
	it := &karpcloudprovider.InstanceType{Name: name, Capacity: b.capacityOf(templates)}
	it.DynamicResources, it.VolumeAttachmentLimits = devicesOf(templates), volumeLimitsOf(templates)
	for _, tmpl := range templates {
		r.taints = append(r.taints, taintsOf(tmpl)...)
	}
	r.InstanceType = it
	b.addChoices(r, templates)
	zoneNames, capacityTypes, reservations := sets.New[string](), sets.New[string](), sets.New[string]()
	for _, choice := range r.choices {
		choice.InstanceType = it
		for _, other := range choice.others {
			other.InstanceType = it
		}
		if running := b.running(choice); running != nil {
			it.Offerings = append(it.Offerings, running)
		}
		it.Offerings = append(it.Offerings, choice.Offering)
		zoneNames.Insert(choice.Key.Zone)
		capacityTypes.Insert(choice.Key.CapacityType)
		if choice.Key.Reservation != "" {
			reservations.Insert(choice.Key.Reservation)
		}
	}
	if len(reservations) > 0 {
		b.setApart(it.Offerings)
	}
	// The labels keep the declared memory: a NodePool that requires it would lose the type once a node has
	// joined.
	it.Requirements = b.requirements(it, templates, zoneNames, capacityTypes)
	if len(reservations) > 0 {
		it.Requirements[v1alpha1.ReservationIDLabel] = karpscheduling.NewRequirement(v1alpha1.ReservationIDLabel, corev1.NodeSelectorOpIn,
			sets.List(reservations)...)
	}
	b.expectMemory(it.Capacity, templates)
	it.Overhead = b.overheadOf(it.Capacity, templates)
	// Karpenter core counts existing nodes against spec.limits.nodes, but those that it plans only by their capacity.
	it.Capacity[resources.Node] = *resource.NewQuantity(1, resource.DecimalSI)
}

// setApart makes the offerings that aren't reserved say so. Elsewhere the instance type does.
func (b *builder) setApart(offerings karpcloudprovider.Offerings) {
	for _, o := range offerings {
		if _, reserved := o.Requirements[v1alpha1.ReservationIDLabel]; !reserved {
			o.Requirements = maps.Clone(o.Requirements)
			o.Requirements[v1alpha1.ReservationIDLabel] = b.without[v1alpha1.ReservationIDLabel]
		}
	}
}

// groupsOf groups templates by instance type. One type has one architecture and one operating system.
func groupsOf(templates []*template.Template) (groups map[string][]*template.Template, problems []error) {
	groups = make(map[string][]*template.Template, len(templates))
	for _, tmpl := range templates {
		if group := groups[tmpl.InstanceType]; len(group) > 0 && (group[0].Arch != tmpl.Arch || group[0].OS != tmpl.OS) {
			problems = append(problems, &template.InvalidError{Source: tmpl.Source, Problem: fmt.Sprintf(
				"instance type %s is %s/%s already, by %s; this one is %s/%s and needs a name of its own, by annotation %s",
				tmpl.InstanceType, group[0].OS, group[0].Arch, group[0].Source, tmpl.OS, tmpl.Arch, v1alpha1.InstanceTypeAnnotation)})
			continue
		}
		groups[tmpl.InstanceType] = append(groups[tmpl.InstanceType], tmpl)
	}
	return groups, problems
}

// requirements sets every well-known label: Karpenter takes a missing one as any value.
func (b *builder) requirements(it *karpcloudprovider.InstanceType, templates []*template.Template, zones, capacityTypes sets.Set[string],
) karpscheduling.Requirements {
	reqs := karpscheduling.NewRequirements(
		karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, it.Name),
		karpscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, templates[0].Arch),
		karpscheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, templates[0].OS),
		karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, sets.List(zones)...),
		karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, sets.List(capacityTypes)...),
		karpscheduling.NewRequirement(wellknown.InstanceCPULabel, corev1.NodeSelectorOpIn,
			strconv.FormatInt(it.Capacity.Cpu().MilliValue()/1000, 10)),
		karpscheduling.NewRequirement(wellknown.InstanceMemoryLabel, corev1.NodeSelectorOpIn,
			strconv.FormatInt(it.Capacity.Memory().Value()>>20, 10)),
	)
	// Only labels that all templates agree on are certain.
	for key, value := range templates[0].Labels {
		if !reqs.Has(key) && !slices.ContainsFunc(templates[1:], func(s *template.Template) bool {
			other, ok := s.Labels[key]
			return !ok || other != value
		}) {
			reqs.Add(karpscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value))
		}
	}
	if region := b.Cluster.Region; region != "" && !slices.ContainsFunc(templates, declaresRegion) {
		reqs.Add(karpscheduling.NewRequirement(corev1.LabelTopologyRegion, corev1.NodeSelectorOpIn, region))
	}
	for key, without := range b.without {
		if !reqs.Has(key) {
			reqs[key] = without
		}
	}
	return reqs
}

func declaresRegion(tmpl *template.Template) bool {
	_, declared := tmpl.Labels[corev1.LabelTopologyRegion]
	return declared
}

// taintsOf returns the taints that a template's nodes keep: its own, and those of its bootstrap that nothing removes.
func taintsOf(tmpl *template.Template) []corev1.Taint {
	taints := tmpl.Taints
	for i := range tmpl.Bootstrap.Kubelet.Taints {
		if taint := &tmpl.Bootstrap.Kubelet.Taints[i]; !karpscheduling.IsKnownEphemeralTaint(taint) {
			taints = append(slices.Clip(taints), *taint)
		}
	}
	return taints
}

// regionProblems names the kinds of templates whose nodes have the region in their zone, where nothing declares it, those whose nodes'
// zones have other names than failure domains, and those whose nodes report a zone although none is declared.
func regionProblems(in Input) (problems []error) {
	kinds, differing, reported := sets.New[string](), sets.New[string](), map[string]string{}
	for i := range in.Templates {
		tmpl := &in.Templates[i]
		domains := tmpl.FailureDomains
		if len(domains) == 0 {
			domains = in.Cluster.FailureDomains
		}
		if len(domains) == 0 {
			for _, origin := range in.Inventory.Origins(tmpl.InstanceType) {
				if origin.NodeZone != "" && origin.Source == tmpl.Source.Annotation() {
					reported[origin.NodeZone] = tmpl.Source.String()
				}
			}
		}
		if slices.ContainsFunc(domains, func(domain string) bool { _, known := tmpl.Zone(domain, in.Cluster.Region); return !known }) {
			if tmpl.Kind.ZonesDiffer() {
				differing.Insert(tmpl.Infrastructure.GetKind())
				continue
			}
			kinds.Insert(tmpl.Infrastructure.GetKind())
		}
	}
	for _, zone := range slices.Sorted(maps.Keys(reported)) {
		problems = append(problems, fmt.Errorf("nodes of %s report zone %s, which neither the template nor the Cluster declares; "+
			"until one does, Karpenter spreads pods over a zone %q beside it, which no node has", reported[zone], zone, DefaultZone))
	}
	for _, kind := range sets.List(differing) {
		problems = append(problems,
			fmt.Errorf("nodes of a %s are in zones of other names than the Cluster's failure domains, and nothing declares them; "+
				"until nodeZone of the platform's profile does, failure domains are taken for zones", kind))
	}
	for _, kind := range sets.List(kinds) {
		problems = append(problems, fmt.Errorf("nodes of a %s have the region in the name of their zone, and nothing declares it; "+
			"until the Cluster has the label %s, failure domains are taken for zones", kind, corev1.LabelTopologyRegion))
	}
	return problems
}

// zonesOf returns the failure domains that are valid label values.
func zonesOf(failureDomains []string) (zones []string, problems []error) {
	for _, domain := range failureDomains {
		if msgs := validation.IsValidLabelValue(domain); domain == "" || len(msgs) > 0 {
			problems = append(problems,
				fmt.Errorf("failure domain %q of the Cluster can't be the value of label %s: %v", domain, corev1.LabelTopologyZone, msgs))
			continue
		}
		zones = append(zones, domain)
	}
	return zones, problems
}
