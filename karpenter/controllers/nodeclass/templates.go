// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Limits of the API's lists.
const (
	maxTemplates = 100
	maxZones     = 64
)

// templatesReady reports whether at least one template is usable. It also fills the status's templates.
type templatesReady struct{ Config }

func (s templatesReady) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionTemplatesReady
	result := reconcile.Result{}
	if slices.ContainsFunc(in.Found.Unreadable, isPermanent) {
		// A kind that becomes served triggers no event.
		result.RequeueAfter = retryInterval
	}
	if in.ClusterErr != nil {
		// Keep the last known templates.
		if _, err := s.InstanceTypes.Cached(nodeClass.Name); err == nil {
			return result, nil
		}
		return unreadable(conditions, condition, []error{in.ClusterErr})
	}

	snapshot := in.Snapshot
	templates := slices.DeleteFunc(slices.Clone(in.Templates), func(tmpl template.Template) bool { return tmpl.Blocked })
	s.describe(nodeClass, snapshot, templates, in.Cluster)
	if wait := s.untilAvailable(); wait > 0 && (result.RequeueAfter == 0 || wait < result.RequeueAfter) {
		result.RequeueAfter = wait
	}

	problems := slices.Concat(in.Found.SelectorErrs, in.Found.Unreadable, invalid(in.Found), in.Unversioned,
		snapshot.Problems, in.Found.Closed)
	// notes are configuration problems of templates that are in use nevertheless.
	var notes []error
	noteReason := v1alpha1.PricesUnreadableReason
	if problem := s.Prices.Problem(); problem != nil {
		notes = []error{problem}
	}
	if more := s.profileNotes(templates); len(more) > 0 {
		if len(notes) == 0 {
			noteReason = v1alpha1.ProfileInvalidReason
		}
		notes = append(notes, more...)
	}
	if older := olderImages(nodeClass, snapshot, templates); len(older) > 0 {
		if len(notes) == 0 {
			noteReason = v1alpha1.ImageOlderReason
		}
		notes = append(notes, older...)
	}
	usable := len(templates) > 0 && !snapshot.Empty()
	switch {
	case usable && len(problems) > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.SomeInvalidReason,
			fmt.Sprintf("%s; the other %s in use", summary(append(problems, notes...)),
				english.Plural(len(templates), "template is", "templates are")))
	case usable && len(notes) > 0:
		conditions.SetTrueWithReason(condition, noteReason, summary(notes))
	case usable:
		conditions.SetTrueWithReason(condition, condition,
			fmt.Sprintf("%s, the cheapest is %s", english.Plural(len(templates), "template", "templates"), nodeClass.Status.Cheapest))
	case len(in.Found.SelectorErrs) > 0:
		conditions.SetFalse(condition, v1alpha1.InvalidSelectorReason, summary(in.Found.SelectorErrs))
	case len(in.Found.Unreadable) > 0:
		return unreadable(conditions, condition, in.Found.Unreadable)
	case len(problems) > 0:
		conditions.SetFalse(condition, v1alpha1.AllInvalidReason, summary(problems)+"; nothing else matches")
	default:
		reason, message := nothingMatches(nodeClass, in.Found, s.Namespace)
		conditions.SetFalse(condition, reason, message)
	}
	return result, nil
}

// profileNotes are problems of the profile file, and of templates by their kinds' profiles.
func (s templatesReady) profileNotes(templates []template.Template) (notes []error) {
	if problem := s.Profiles.Problem(); problem != nil {
		notes = append(notes, problem)
	}
	for i := range templates {
		for _, note := range templates[i].Notes {
			if !note.Unknown {
				notes = append(notes, note)
			}
		}
	}
	return notes
}

// olderImages names the templates whose images hold their nodes at an older version.
func olderImages(nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot, templates []template.Template) (notes []error) {
	for i := range templates {
		if tmpl := &templates[i]; snapshot.Behind(tmpl.Source.Annotation()) {
			notes = append(notes, fmt.Errorf("%s: its image has %s, and nodes get %s; its nodes stay at %s until a template with the same "+
				"instance type has an image with %s",
				tmpl.Source, tmpl.ImageVersion, nodeClass.Status.Version, tmpl.ImageVersion, nodeClass.Status.Version))
		}
	}
	return notes
}

// untilAvailable is the time until the first unavailable offering becomes available; 0 if there is none.
func (s templatesReady) untilAvailable() time.Duration {
	next, ok := s.InstanceTypes.Unavailable.Next()
	if !ok {
		return 0
	}
	return max(next.Sub(s.Clock.Now()), s.AvailabilityDelay)
}

// describe fills the status from a snapshot.
func (s templatesReady) describe(nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot, templates []template.Template,
	cluster template.Cluster,
) {
	nodeClass.Status.TemplateCount = ptr.To(int32(len(templates)))
	nodeClass.Status.Cheapest = ""
	if choices := snapshot.Choices(); len(choices) > 0 {
		cheapest := choices[0]
		if i := slices.IndexFunc(choices, func(c instancetype.Choice) bool { return c.Offering.Launchable() }); i >= 0 {
			cheapest = choices[i]
		}
		nodeClass.Status.Cheapest = fmt.Sprintf("%s $%s", cheapest.InstanceType.Name, decimal(cheapest.Offering.Price))
	}

	statuses := make([]v1alpha1.TemplateStatus, 0, len(templates))
	prices := make(map[string]float64, len(templates))
	for i := range templates {
		described, price := s.templateStatus(nodeClass, &templates[i], cluster)
		described.Unavailable = snapshot.Unavailable(templates[i].Source.Annotation())
		if snapshot.Behind(templates[i].Source.Annotation()) {
			described.Image = v1alpha1.ImageOlder
		}
		statuses = append(statuses, described)
		prices[described.Source] = price
	}
	slices.SortStableFunc(statuses, func(a, b v1alpha1.TemplateStatus) int {
		return cmp.Or(cmp.Compare(prices[a.Source], prices[b.Source]), cmp.Compare(a.InstanceType, b.InstanceType),
			cmp.Compare(a.Source, b.Source))
	})
	nodeClass.Status.Templates = statuses[:min(len(statuses), maxTemplates)]
	if len(statuses) == 0 {
		// As the API server returns it.
		nodeClass.Status.Templates = nil
	}
}

// templateStatus describes one template, and returns the price to sort it by.
func (s templatesReady) templateStatus(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, cluster template.Cluster,
) (v1alpha1.TemplateStatus, float64) {
	described := v1alpha1.TemplateStatus{
		InstanceType: tmpl.InstanceType,
		Source:       strings.Replace(tmpl.Source.Annotation(), tmpl.Source.GroupKind.String(), tmpl.Source.GroupKind.Kind, 1),
		Architecture: tmpl.Arch,
		CPU:          scalar.QuantityOf(*tmpl.Capacity.Cpu()),
		Memory:       scalar.QuantityOf(*tmpl.Capacity.Memory()),
		Pods:         tmpl.MaxPods(nodeClass.Spec.Kubelet),
	}
	for name, quantity := range tmpl.Capacity {
		if catalog.IsDevice(name) {
			if described.GPU == nil {
				described.GPU = map[string]scalar.Quantity{}
			}
			described.GPU[string(name)] = scalar.QuantityOf(quantity)
		}
	}
	if slices.ContainsFunc(tmpl.Notes, func(note template.Note) bool { return note.Unknown }) {
		described.Profile = v1alpha1.ProfileMissing
	}
	if tmpl.NodeVersion != nodeClass.Status.Version {
		described.Version = tmpl.NodeVersion
	}
	zones := zonesOf(tmpl, cluster)
	if len(zones) > 0 {
		described.Zones = slices.Clone(zones[:min(len(zones), maxZones)])
	}
	cheapest := math.Inf(1)
	if price := s.price(tmpl, zones, karpv1.CapacityTypeOnDemand); !math.IsInf(price, 1) {
		described.Price = decimal(price)
		cheapest = min(cheapest, price)
	}
	if price := s.price(tmpl, zones, karpv1.CapacityTypeSpot); !math.IsInf(price, 1) {
		described.SpotPrice = decimal(price)
		cheapest = min(cheapest, price)
	}
	return described, cheapest
}

// zonesOf returns the zones of a template's offerings.
func zonesOf(tmpl *template.Template, cluster template.Cluster) []string {
	domains := cluster.FailureDomains
	switch {
	case tmpl.IsCatalogs():
		zones := sets.New[string]()
		for i := range tmpl.Offerings {
			zones.Insert(tmpl.Offerings[i].Zone)
		}
		if !zones.Has("") {
			return sets.List(zones)
		}
	case len(tmpl.FailureDomains) > 0:
		domains = tmpl.FailureDomains
	}
	zones := make([]string, len(domains))
	for i, domain := range domains {
		zones[i], _ = tmpl.Zone(domain, cluster.Region)
	}
	return zones
}

// price is the lowest price in the zones, infinite without any.
func (s templatesReady) price(tmpl *template.Template, zones []string, capacityType string) float64 {
	if len(zones) == 0 {
		zones = []string{instancetype.DefaultZone}
	}
	cheapest := math.Inf(1)
	for _, zone := range zones {
		if price, ok := s.InstanceTypes.Pricing.Price(tmpl, zone, capacityType); ok {
			cheapest = min(cheapest, price)
		}
	}
	return cheapest
}

// decimal formats a price with at most five decimals.
func decimal(price float64) string {
	return strconv.FormatFloat(math.Round(price*1e5)/1e5, 'f', -1, 64)
}
