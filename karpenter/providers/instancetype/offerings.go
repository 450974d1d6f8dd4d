// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/patch"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// DefaultZone is offering.DefaultZone.
const DefaultZone = offering.DefaultZone

// addChoices adds the offerings of an instance type's templates. If several templates make the same offering, one that can be launched
// wins, then one that is full, then one whose image is the newest that nodes may get, then the cheaper one, then the first.
func (b *builder) addChoices(r *resolved, templates []*template.Template) {
	r.choices = make([]*Choice, 0, 2*max(len(b.zones), 1))
	for _, tmpl := range templates {
		r.unavailable[tmpl.Source.Annotation()] = b.eachChoice(tmpl, func(choice *Choice) {
			at, found := slices.BinarySearchFunc(r.choices, choice.Key, (*Choice).compareKey)
			if !found {
				r.choices = slices.Insert(r.choices, at, choice)
				return
			}
			switch other := r.choices[at]; {
			case choice.rank() < other.rank(), choice.rank() == other.rank() && choice.compare(other) < 0:
				r.choices[at] = choice.before(other)
			default:
				r.choices[at] = other.before(choice)
			}
		})
	}
}

// rank orders choices of the same offering by whether they can be launched.
func (c *Choice) rank() int {
	switch {
	case c.Full != 0:
		return 1
	case c.Offering.Available:
		return 0
	}
	return 2
}

func (c *Choice) compareKey(key offering.Key) int { return c.Key.Compare(key) }

// compare orders choices of the same offering: current images, images of an unknown version, outdated images; then by price.
func (c *Choice) compare(other *Choice) int {
	a, b := c.Template, other.Template
	rank := func(tmpl *template.Template) int {
		switch {
		case tmpl.Outdated:
			return 2
		case tmpl.ImageVersion == "":
			return 1
		}
		return 0
	}
	if order := cmp.Compare(rank(a), rank(b)); order != 0 {
		return order
	}
	if a.Outdated {
		if order := version.Compare(b.ImageVersion, a.ImageVersion); order != 0 {
			return order
		}
	}
	return cmp.Compare(c.Offering.Price, other.Offering.Price)
}

// eachChoice builds the offerings of one template. It returns why all of them are unavailable, or "".
func (b *builder) eachChoice(tmpl *template.Template, yield func(*Choice)) (obstacle string) {
	domains := b.zones
	if len(tmpl.FailureDomains) > 0 {
		domains = tmpl.FailureDomains
	}
	obstacle = b.obstacle(tmpl)
	if tmpl.IsCatalogs() {
		return b.eachSold(tmpl, obstacle, yield)
	}
	known, available := false, false
	var closed []*Choice
	each := func(key offering.Key, domain string) {
		price, priced := b.Pricing.Price(tmpl, key.Zone, key.CapacityType)
		if !priced {
			price = b.unpriced(tmpl, key)
		}
		choice, _ := b.leased(tmpl, key, domain, price, priced, obstacle)
		choice.Zoneless, choice.priced = len(domains) == 0, priced
		known, available, closed = known || priced, available || choice.Offering.Launchable(), append(closed, choice)
		yield(choice)
	}
	for _, capacityType := range tmpl.CapacityTypes() {
		if len(domains) == 0 {
			each(offering.Key{InstanceType: tmpl.InstanceType, Zone: DefaultZone, CapacityType: capacityType}, "")
		}
		for _, domain := range domains {
			each(offering.Key{InstanceType: tmpl.InstanceType, Zone: b.zone(tmpl, domain), CapacityType: capacityType},
				b.failureDomain(tmpl, domain))
		}
	}
	if obstacle == "" && known && !available {
		obstacle = b.backOff(closed)
	}
	return obstacle
}

// eachSold builds the offerings of a catalog's instance type, as eachChoice does.
func (b *builder) eachSold(tmpl *template.Template, obstacle string, yield func(*Choice)) string {
	priced, reachable, available := false, false, false
	var closed []*Choice
	each := func(o *catalog.Offering, named string) {
		// Catalogs name zones as nodes do. Those that name failure domains mean the same.
		zone := named
		if named != DefaultZone {
			zone = b.zone(tmpl, named)
		}
		key := offering.Key{InstanceType: tmpl.InstanceType, Zone: zone, CapacityType: o.CapacityType, Reservation: o.Reservation}
		price, known := o.Price, o.Priced
		if o.Reservation == "" {
			if price, known = b.Pricing.Price(tmpl, zone, o.CapacityType); !known && zone != named {
				price, known = b.Pricing.Price(tmpl, named, o.CapacityType)
			}
		}
		if !known {
			price = b.unpriced(tmpl, key)
		}
		reaches := b.reaches(tmpl, zone)
		choice, remaining := b.leased(tmpl, key, b.failureDomain(tmpl, zone), price, known && reaches, obstacle)
		choice.Zoneless, choice.priced = zone == DefaultZone && o.Zone == "", known
		if o.Reservation != "" {
			choice.leaseFull = choice.Full == FullLease
			if choice.Full&FullLease != 0 && !b.runs(key) {
				choice.Full = 0 // whatever goes, it may be too large
			}
			choice.reserve(o, min(b.Inventory.ReservationLeft(o.Reservation, o.Count), remaining))
		}
		priced, reachable, available = priced || known, reachable || reaches, available || choice.Offering.Launchable()
		closed = append(closed, choice)
		yield(choice)
	}
	for i := range tmpl.Offerings {
		switch o := &tmpl.Offerings[i]; {
		case o.Zone != "":
			each(o, o.Zone)
		case len(b.zones) == 0:
			each(o, DefaultZone)
		default:
			for _, zone := range b.zones {
				each(o, zone)
			}
		}
	}
	switch {
	case obstacle != "" || available:
	case len(tmpl.Offerings) == 0 || !priced:
		obstacle = v1alpha1.TemplateNoPrice
	case !reachable:
		obstacle = v1alpha1.TemplateNoZone
	default:
		obstacle = b.backOff(closed)
	}
	return obstacle
}

// reaches reports whether the machine of a catalog's offering is made in its zone: as a failure domain of the Cluster, or by a patch. A
// catalog may be shared by Clusters in other zones.
func (b *builder) reaches(tmpl *template.Template, zone string) bool {
	return zone == DefaultZone || tmpl.Patches.Refers(patch.Zone) ||
		slices.ContainsFunc(b.Cluster.FailureDomains, func(domain string) bool { return domain == zone || b.zone(tmpl, domain) == zone })
}

// reserve limits the offering to the remainder of its reservation. One that is only full is available and has no capacity, as Karpenter
// core expects it: then it may terminate a node of the reservation before it launches the replacement.
func (c *Choice) reserve(o *catalog.Offering, remaining int) {
	c.ReservationCount = o.Count
	c.Offering.ReservationCapacity = remaining
	if c.Offering.Available && remaining <= 0 {
		c.Full |= FullReservation
	}
	if c.Full != 0 {
		c.Offering.Available, c.Offering.ReservationCapacity = true, 0
	}
}

// unpriced is the price of an offering without a price, for existing machines only: the one at which the cheapest of them
// was launched, else that of an on-demand machine. A price that is deleted makes no node look dear.
func (b *builder) unpriced(tmpl *template.Template, key offering.Key) float64 {
	price, known := 0.0, false
	for _, origin := range b.Inventory.Origins(tmpl.InstanceType) {
		if origin.Key == key && origin.Price > 0 && (!known || origin.Price < price) {
			price, known = origin.Price, true
		}
	}
	if !known {
		price, _ = b.Pricing.Price(tmpl, key.Zone, karpv1.CapacityTypeOnDemand)
	}
	return price
}

// zone returns the zone of a template's nodes in a failure domain.
func (k *known) zone(tmpl *template.Template, failureDomain string) string {
	zone, _ := tmpl.Zone(failureDomain, k.region)
	return zone
}

// failureDomain returns the failure domain for a template's machine in a failure domain, or in a zone. A zone known only
// from a label is where nodes say they are; the infrastructure provider may reject it as a failure domain.
func (b *builder) failureDomain(tmpl *template.Template, domain string) string {
	zone := b.zone(tmpl, domain)
	is := func(other string) bool { return other != "" && (other == domain || b.zone(tmpl, other) == zone) }
	declared := ""
	if tmpl.Machine != nil {
		declared = tmpl.Machine.Spec.FailureDomain
	}
	if is(declared) {
		return declared
	}
	if i := slices.IndexFunc(b.Cluster.FailureDomains, is); i >= 0 {
		return b.Cluster.FailureDomains[i]
	}
	return declared
}

// blocked is the obstacle of a template that may not launch: its condition reports why.
const blocked = "Held"

// obstacle returns why nothing can be launched from a template, or "".
func (b *builder) obstacle(tmpl *template.Template) string {
	full := false
	if limit, limited := tmpl.Maximum(); limited {
		// Call Full in any case: from then on the sequence changes with its result.
		full = b.Inventory.Full(tmpl.Source.Annotation(), limit)
	}
	switch {
	case tmpl.Blocked:
		return blocked
	case tmpl.Paused || b.Cluster.Paused || b.Cluster.Deleting:
		return v1alpha1.TemplatePaused
	case tmpl.Ahead:
		return v1alpha1.TemplateImageNewer
	case !tmpl.Bootstrap.IsDefined():
		return v1alpha1.TemplateNoBootstrap
	case full:
		return v1alpha1.TemplateFull
	}
	return ""
}

// leased builds an offering with the price and the availability that the cluster's CapacityLease leaves it, and how many more machines
// its reservation has for this cluster. offered: nothing in the template, its catalog or the Cluster keeps it from being launched. obstacle
// is that of the source.
func (b *builder) leased(tmpl *template.Template, key offering.Key, failureDomain string, price float64, offered bool, obstacle string,
) (choice *Choice, remaining int) {
	offer := b.Capacity.Offer(capacityprovider.MachineOf(key, tmpl), price)
	choice = b.choice(tmpl, key, failureDomain, offer.Price, offered && obstacle == "" && offer.Available)
	choice.ListPrice, choice.saving = price, offer.Saving
	if offered && !choice.Offering.Available {
		choice.Full = b.full(tmpl, key, obstacle, offer)
	}
	if offer.Expired {
		if onDemand, priced := b.Pricing.Price(tmpl, key.Zone, karpv1.CapacityTypeOnDemand); priced {
			choice.saving = onDemand
		}
	}
	return choice, offer.Remaining
}

// running returns an offering for the machines that this cluster has of a choice, if one less of them saves something else than
// another one costs: a commitment covers one and not the other, or their reservation has ended. Karpenter core takes the first offering of
// a zone and a capacity type for a node's price, and launches only from available ones.
func (b *builder) running(choice *Choice) *karpcloudprovider.Offering {
	if choice.saving == choice.Offering.Price || !b.runs(choice.Key) {
		return nil
	}
	return &karpcloudprovider.Offering{Requirements: choice.Offering.Requirements, Price: choice.saving, ReservationCapacity: unlimited}
}

// runs reports whether this cluster has a machine of an offering.
func (b *builder) runs(key offering.Key) bool {
	return slices.ContainsFunc(b.Inventory.Origins(key.InstanceType), func(origin inventory.Origin) bool { return origin.Key == key })
}

func (b *builder) choice(tmpl *template.Template, key offering.Key, failureDomain string, price float64, launchable bool) *Choice {
	return &Choice{
		Key:           key,
		Template:      tmpl,
		FailureDomain: failureDomain,
		Offering: &karpcloudprovider.Offering{
			Requirements: b.requirementsOf(key), Price: price, Available: launchable && !b.isUnavailable(tmpl, key),
		},
	}
}

// requirementsOf returns an offering's requirements, which the offerings of all instance types in its zone share.
func (b *builder) requirementsOf(key offering.Key) karpscheduling.Requirements {
	key.InstanceType = ""
	requirements, ok := b.offerings[key]
	if !ok {
		requirements = karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, key.Zone),
			karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, key.CapacityType),
		)
		if key.Reservation != "" {
			requirements.Add(karpscheduling.NewRequirement(v1alpha1.ReservationIDLabel, corev1.NodeSelectorOpIn, key.Reservation))
		}
		b.offerings[key] = requirements
	}
	return requirements
}
