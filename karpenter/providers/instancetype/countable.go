// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/catalog/patch"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// countable has the facts that decide which quotas of the infrastructure count an offering. The infrastructure has its own names: that of a
// template which the platform has renamed is in the template.
func (k *known) countable(tmpl *template.Template, key offering.Key) infrastructure.Countable {
	c := infrastructure.Countable{
		InstanceType: key.InstanceType, Family: tmpl.Labels[v1alpha1.InstanceFamilyLabel], Zone: key.Zone, CapacityType: key.CapacityType,
		Region: cmp.Or(tmpl.Labels[corev1.LabelTopologyRegion], k.region),
	}
	if tmpl.Infrastructure != nil {
		c.Template = tmpl.Infrastructure.Object
	}
	if !tmpl.IsCatalogs() && !tmpl.Patches.Refers(patch.InstanceType) {
		c.InstanceType = cmp.Or(tmpl.Kind.InstanceType(tmpl.Infrastructure), key.InstanceType)
	}
	return c
}

// quotasOf returns the quotas of the infrastructure that count an offering, with its machine's amount of each.
func (k *known) quotasOf(tmpl *template.Template, key offering.Key) []offering.Quota {
	m := capacityprovider.MachineOf(key, tmpl)
	found := tmpl.Kind.Quotas(k.countable(tmpl, key))
	quotas := make([]offering.Quota, len(found))
	for i, q := range found {
		quotas[i] = offering.Quota{QuotaName: q, Amount: m.Amount(q.Counts)}
	}
	return quotas
}

// QuotasOf returns the quotas of the infrastructure that count a choice, with its machine's amount of each.
func (s *Snapshot) QuotasOf(choice *Choice) []offering.Quota {
	return s.quotasOf(choice.Template, choice.Key)
}

// isUnavailable reports whether an offering failed lately, or what it shares with others that did.
func (b *builder) isUnavailable(tmpl *template.Template, key offering.Key) bool {
	if !b.Unavailable.CountsQuotas() {
		return b.Unavailable.Has(key)
	}
	return b.Unavailable.Has(key, b.quotasOf(tmpl, key)...)
}

// backOff reports why a template has no available offering although nothing else keeps it from being launched.
func (b *builder) backOff(choices []*Choice) string {
	if b.Unavailable.CountsQuotas() {
		for _, choice := range choices {
			if _, closed := b.Unavailable.ClosedBy(choice.Key, b.quotasOf(choice.Template, choice.Key)); closed {
				return v1alpha1.TemplateQuota
			}
		}
	}
	return v1alpha1.TemplateBackOff
}

// Exceeded returns the quota of the infrastructure that a machine lacks, by the message of its condition. kind is the machine's, source the
// annotation of what it was made from, and family the label of its instance type, for a source that isn't known any more.
func (p *Provider) Exceeded(nodeClass, source, family string, kind infrastructure.Kind, key offering.Key, m capacity.Machine, text string,
) (exceeded offering.Quota, remaining int64) {
	countable := infrastructure.Countable{InstanceType: key.InstanceType, Family: family, Zone: key.Zone, CapacityType: key.CapacityType}
	if snapshot, err := p.Cached(nodeClass); err == nil {
		countable.Region = snapshot.region
		if tmpl, found := snapshot.Template(source); found {
			countable = snapshot.countable(tmpl, key)
		}
	}
	q, remaining := kind.Exceeded(countable, text)
	return offering.Quota{QuotaName: q, Amount: m.Amount(q.Counts)}, remaining
}
