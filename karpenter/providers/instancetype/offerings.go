// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// DefaultZone is offering.DefaultZone.
const DefaultZone = offering.DefaultZone

// place is a zone and a capacity type.
type place struct{ zone, capacityType string }

func placeOf(o *cloudprovider.Offering) place { return place{o.Zone(), o.CapacityType()} }

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.zone, other.zone), cmp.Compare(p.capacityType, other.capacityType))
}

// choices returns the offerings of one instance type. If several templates make the same offering, an available one
// wins, then the cheaper one, then the first.
func (b *builder) choices(r *resolved, templates []*template.Template) map[place]*Choice {
	choices := make(map[place]*Choice, 2*max(len(b.zones), 1))
	for _, tmpl := range templates {
		r.unavailable[tmpl.Source.Annotation()] = b.eachChoice(tmpl, func(p place, choice *Choice) {
			other, ok := choices[p]
			switch {
			case !ok:
				choices[p] = choice
			case choice.Offering.Available && !other.Offering.Available,
				choice.Offering.Available == other.Offering.Available && choice.Offering.Price < other.Offering.Price:
				choices[p] = choice.before(other)
			default:
				choices[p] = other.before(choice)
			}
		})
	}
	return choices
}

// eachChoice builds the offerings of one template. It returns why all of them are unavailable, or "".
func (b *builder) eachChoice(tmpl *template.Template, yield func(place, *Choice)) (obstacle string) {
	domains := b.zones
	if len(tmpl.FailureDomains) > 0 {
		domains = tmpl.FailureDomains
	}
	obstacle = b.obstacle(tmpl)
	known, available := false, false
	each := func(p place, domain string) {
		price, priced := b.Pricing.Price(tmpl, p.zone, p.capacityType)
		if !priced {
			price = b.unpriced(tmpl, p)
		}
		choice := b.choice(tmpl, p, domain, price, priced && obstacle == "")
		choice.Zoneless, choice.priced = len(domains) == 0, priced
		known, available = known || priced, available || choice.Offering.Available
		yield(p, choice)
	}
	for _, capacityType := range tmpl.CapacityTypes() {
		if len(domains) == 0 {
			each(place{DefaultZone, capacityType}, "")
		}
		for _, domain := range domains {
			each(place{b.zone(tmpl, domain), capacityType}, b.failureDomain(tmpl, domain))
		}
	}
	if obstacle == "" && known && !available {
		obstacle = v1alpha1.TemplateBackOff
	}
	return obstacle
}

// unpriced is the price of an offering without a price, for existing machines only: the one at which the cheapest of them
// was launched, else that of an on-demand machine. A price that is deleted makes no node look dear.
func (b *builder) unpriced(tmpl *template.Template, p place) float64 {
	price, known := 0.0, false
	for _, origin := range b.Inventory.Origins(tmpl.InstanceType) {
		if origin.Zone == p.zone && origin.CapacityType == p.capacityType && origin.Price > 0 && (!known || origin.Price < price) {
			price, known = origin.Price, true
		}
	}
	if !known {
		price, _ = b.Pricing.Price(tmpl, p.zone, karpv1.CapacityTypeOnDemand)
	}
	return price
}

// zone returns what nodes of a template in a failure domain call their zone.
func (k *known) zone(tmpl *template.Template, failureDomain string) string {
	zone, _ := tmpl.Zone(failureDomain, k.region)
	return zone
}

// failureDomain returns the failure domain for a template's machine in a failure domain, or in a zone. A zone known only
// from a label is where nodes say they are; the infrastructure provider may reject it as a failure domain.
func (b *builder) failureDomain(tmpl *template.Template, domain string) string {
	zone := b.zone(tmpl, domain)
	is := func(other string) bool { return other != "" && (other == domain || b.zone(tmpl, other) == zone) }
	own := ""
	if tmpl.Machine != nil {
		own = tmpl.Machine.Spec.FailureDomain
	}
	if is(own) {
		return own
	}
	if i := slices.IndexFunc(b.Cluster.FailureDomains, is); i >= 0 {
		return b.Cluster.FailureDomains[i]
	}
	return own
}

// held is the obstacle of a template that may not launch: its condition says why.
const held = "Held"

// obstacle returns why nothing can be launched from a template, or "".
func (b *builder) obstacle(tmpl *template.Template) string {
	full := false
	if limit, limited := tmpl.Maximum(); limited {
		// Call Full in any case: from then on the sequence changes with its result.
		full = b.Inventory.Full(tmpl.Source.Annotation(), limit)
	}
	switch {
	case tmpl.Held:
		return held
	case tmpl.Paused || b.Cluster.Paused || b.Cluster.Deleting:
		return v1alpha1.TemplatePaused
	case !tmpl.Bootstrap.IsDefined():
		return v1alpha1.TemplateNoBootstrap
	case full:
		return v1alpha1.TemplateFull
	}
	return ""
}

func (b *builder) choice(tmpl *template.Template, p place, failureDomain string, price float64, launchable bool) *Choice {
	available := launchable
	if b.Unavailable != nil && available {
		available = !b.Unavailable.Has(offering.Key{InstanceType: tmpl.InstanceType, Zone: p.zone, CapacityType: p.capacityType})
	}
	return &Choice{
		Template:      tmpl,
		FailureDomain: failureDomain,
		Offering:      &cloudprovider.Offering{Requirements: b.requirementsOf(p), Price: price, Available: available},
	}
}

// requirementsOf returns a place's requirements, which its offerings share.
func (b *builder) requirementsOf(p place) scheduling.Requirements {
	requirements, ok := b.offerings[p]
	if !ok {
		requirements = scheduling.NewRequirements(
			scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, p.zone),
			scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, p.capacityType),
		)
		b.offerings[p] = requirements
	}
	return requirements
}
