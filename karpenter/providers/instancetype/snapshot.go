// SPDX-License-Identifier: Apache-2.0

// Package instancetype resolves templates to Karpenter's instance types, and caches the result until an input changes.
package instancetype

import (
	"cmp"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Choice is one offering and its template.
type Choice struct {
	Key offering.Key
	// Template to launch the machine from. It is shared: don't modify it.
	Template *template.Template
	// InstanceType and Offering as Karpenter gets them. They are shared: don't modify them.
	InstanceType *karpcloudprovider.InstanceType
	Offering     *karpcloudprovider.Offering
	// FailureDomain of the Machine; empty without failure domains, although the offering has a zone.
	FailureDomain string
	// Zoneless: the offering's zone is DefaultZone because none is known.
	Zoneless bool
	// ReservationCount is the number of machines that the cluster may have in the reservation of a reserved offering; 0 for any other.
	ReservationCount int

	// Full are the limits that keep the offering from being launched, if nothing else does.
	Full Full
	// leaseFull: nothing but the CapacityLease keeps the machine of a reservation from being launched.
	leaseFull bool
	// Replaces is the NodeClaim whose vacancy the machine fills; empty for none.
	Replaces string

	// ListPrice is the offering's price without commitments, in US dollars an hour.
	ListPrice float64

	// saving is the price that one machine less would save.
	saving float64
	// others are the same offering of templates with other labels, in the order of compare.
	others []*Choice
	// priced: a source has a price. Nothing is launched without one.
	priced bool
}

// Snapshot has the instance types that one node class offers at one time. It is immutable.
type Snapshot struct {
	// InstanceTypes ordered by name, including unavailable offerings and those that only existing machines have.
	InstanceTypes []*karpcloudprovider.InstanceType
	known

	// resolved are the InstanceTypes with their choices and taints, in the same order.
	resolved []*resolved
	// order of the InstanceTypes' offerings; nil until Cheapest needs it.
	order atomic.Pointer[offering.Order]
	// chosen are the instance types of NodePools that don't get all of them; see Offered.
	chosen sync.Map // of NodePool UID to *chosen
	// retained is how many of them have been stored.
	retained atomic.Int64
}

// known has the content of a snapshot's templates. Snapshots of the same templates share it.
type known struct {
	// Problems are the errors of templates and settings that the snapshot leaves out.
	Problems []error

	templates map[string]*template.Template
	gaps      template.Gaps
	// region is the Cluster's.
	region string
	// groups are the templates by instance type.
	groups map[string][]*template.Template
	// reservations are the instance types that each reservation of the infrastructure is offered as.
	reservations map[string][]string
	// tainted: at least one template has taints.
	tainted bool
	// declared are the keys of the templates' own labels.
	declared sets.Set[string]
}

// resolved is one instance type.
type resolved struct {
	*karpcloudprovider.InstanceType
	// choices are the offerings without those that only existing machines have, ordered by key.
	choices []*Choice
	// taints of its templates.
	taints []corev1.Taint
	// unavailable is why each template's source is unavailable now.
	unavailable map[string]string
	// closed is the type without available offerings, if it is tainted or lacks a declared label, and machines have it.
	closed *karpcloudprovider.InstanceType
}

// choice returns an offering that can be launched, now or later.
func (r *resolved) choice(key offering.Key) (*Choice, bool) {
	at, found := slices.BinarySearchFunc(r.choices, key, (*Choice).compareKey)
	if !found {
		return nil, false
	}
	return r.choices[at], true
}

// Resolve returns an offering that isn't reserved and its template.
func (s *Snapshot) Resolve(instanceType, zone, capacityType string) (Choice, bool) {
	return s.ResolveKey(offering.Key{InstanceType: instanceType, Zone: zone, CapacityType: capacityType})
}

// ResolveKey returns an offering and its template.
func (s *Snapshot) ResolveKey(key offering.Key) (Choice, bool) {
	r, ok := s.find(key.InstanceType)
	if !ok {
		return Choice{}, false
	}
	choice, ok := r.choice(key)
	if !ok {
		return Choice{}, false
	}
	return *choice, true
}

// Successor returns the template that machines of an offering are launched from instead of their own, because its image has the version
// that nodes get and their own template's hasn't; nil for none. If its own template states no version, one of unknown version is none. Pods
// may ask for a template's labels, so both have the same: a template with other labels may not replace a node, and the node would be
// launched from its own template again.
func (s *Snapshot) Successor(current *template.Template, key offering.Key) *template.Template {
	r, ok := s.find(key.InstanceType)
	if !ok || !current.Outdated {
		return nil
	}
	choice, ok := r.choice(key)
	if !ok {
		return nil
	}
	for _, c := range slices.Concat([]*Choice{choice}, choice.others) {
		if tmpl := c.Template; (c.Offering.Available || c.Full != 0) && !tmpl.Outdated && tmpl.Version() == "" &&
			maps.Equal(tmpl.Labels, current.Labels) &&
			(tmpl.ImageVersion != "" || !current.ObservedImage) {
			return tmpl
		}
	}
	return nil
}

// Behind reports whether new nodes get an older version than the others because of a source's image: no template of the same offering
// and labels has the version.
func (s *Snapshot) Behind(source string) bool {
	tmpl, found := s.templates[source]
	if !found || !tmpl.Outdated || tmpl.Ahead {
		return false
	}
	r, found := s.find(tmpl.InstanceType)
	if !found {
		return false
	}
	return slices.ContainsFunc(r.choices, func(choice *Choice) bool {
		return choice.Template == tmpl || slices.ContainsFunc(choice.others, func(other *Choice) bool { return other.Template == tmpl })
	})
}

// OnDemandPrice returns the list price of an instance type's on-demand machines in a zone; zero if no source has one.
func (s *Snapshot) OnDemandPrice(instanceType, zone string) float64 {
	choice, ok := s.Resolve(instanceType, zone, karpv1.CapacityTypeOnDemand)
	if !ok || !choice.priced {
		return 0
	}
	return choice.ListPrice
}

// Offers reports whether the offering exists in any zone, available or not. Existing machines alone don't count.
func (s *Snapshot) Offers(instanceType, capacityType string) bool {
	r, ok := s.find(instanceType)
	return ok && slices.ContainsFunc(r.choices, func(choice *Choice) bool { return choice.Key.CapacityType == capacityType })
}

func (s *Snapshot) find(instanceType string) (*resolved, bool) {
	at, ok := s.at(instanceType)
	if !ok {
		return nil, false
	}
	return s.resolved[at], true
}

// at returns an instance type's position, or where it belongs.
func (s *Snapshot) at(instanceType string) (int, bool) {
	return slices.BinarySearchFunc(s.InstanceTypes, instanceType, byName)
}

// Empty reports whether the node class has no offering at all, available or not.
func (s *Snapshot) Empty() bool { return len(s.templates) == 0 }

// Template returns the template of a source, by template.Source's Annotation.
func (s *Snapshot) Template(source string) (*template.Template, bool) {
	tmpl, ok := s.templates[source]
	return tmpl, ok
}

// Unavailable returns why a source's template is unavailable, as in v1alpha1.TemplateStatus, or "".
func (s *Snapshot) Unavailable(source string) string {
	tmpl, found := s.templates[source]
	if !found {
		return ""
	}
	r, found := s.find(tmpl.InstanceType)
	if !found {
		return ""
	}
	return r.unavailable[source]
}

// Templates of all sources in any order, with or without offerings. They are shared: don't modify them.
func (s *Snapshot) Templates() iter.Seq[*template.Template] { return maps.Values(s.templates) }

// Knows reports whether a source that Template doesn't return is known to be gone. Otherwise it may be unreadable or
// unusable.
func (k *known) Knows(source string) bool {
	return !k.gaps.Has(source) && !slices.ContainsFunc(k.Problems, func(problem error) bool {
		var invalid *template.InvalidError
		return errors.As(problem, &invalid) && invalid.Source.Covers(source)
	})
}

// Choices returns every offering with its template, cheapest first.
func (s *Snapshot) Choices() []Choice {
	var choices []Choice
	for _, r := range s.resolved {
		for _, choice := range r.choices {
			choices = append(choices, *choice)
		}
	}
	slices.SortFunc(choices, func(a, b Choice) int {
		return cmp.Or(
			cmp.Compare(a.Offering.Price, b.Offering.Price),
			a.Key.Compare(b.Key),
		)
	})
	return choices
}

// Cheapest returns the offerings for a NodeClaim as offering.Order does. If the instance types are the snapshot's own,
// neither tainted nor altered by a NodeOverlay, it costs no more among many than among few.
func (s *Snapshot) Cheapest(instanceTypes []*karpcloudprovider.InstanceType, requirements karpscheduling.Requirements,
	requests corev1.ResourceList, seed string,
) iter.Seq[offering.Candidate] {
	if len(instanceTypes) == 0 || len(instanceTypes) != len(s.InstanceTypes) || &instanceTypes[0] != &s.InstanceTypes[0] {
		return offering.OrderOf(instanceTypes).Cheapest(instanceTypes, requirements, requests, seed)
	}
	order := s.order.Load()
	if order == nil {
		order = ptr.To(offering.OrderOf(instanceTypes))
		s.order.Store(order)
	}
	return order.Cheapest(instanceTypes, requirements, requests, seed)
}

// Tolerating returns the instance types whose nodes have no taints beyond these. Karpenter's scheduler expects a node
// to have the NodePool's taints only, so it would launch a type with more for pods that can't run there. A type that
// machines have stays, without available offerings: a template's taints are no reason to replace nodes. If no template
// has taints, the common case, it returns InstanceTypes itself.
func (s *Snapshot) Tolerating(taints ...[]corev1.Taint) []*karpcloudprovider.InstanceType {
	if !s.tainted {
		return s.InstanceTypes
	}
	all := slices.Concat(taints...)
	tolerating := make([]*karpcloudprovider.InstanceType, 0, len(s.InstanceTypes))
	for _, r := range s.resolved {
		it := r.InstanceType
		if slices.ContainsFunc(r.taints, func(taint corev1.Taint) bool {
			return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
				!slices.ContainsFunc(all, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value })
		}) {
			it = r.closed
		}
		if it != nil {
			tolerating = append(tolerating, it)
		}
	}
	return tolerating
}
