// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

type built struct {
	sequences
	snapshot *Snapshot
}

// sequences change with every input outside of Refresh.
type sequences struct{ pricing, unavailable, capacity, inventory uint64 }

// current returns the snapshot, updated if an input outside of Refresh has changed.
func (p *Provider) current(e *entry) *Snapshot {
	b := e.built.Load()
	if b == nil {
		return nil
	}
	if b.sequences == p.sequences() {
		return b.snapshot
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b = e.built.Load(); b.sequences != p.sequences() {
		b = p.update(e.builder, b)
		e.built.Store(b)
	}
	return b.snapshot
}

// build reads the sequences first: a change during the build then causes an update, never a stale snapshot.
func (p *Provider) build(b *builder) *built {
	return &built{sequences: p.sequences(), snapshot: b.build()}
}

// rebuild resolves the instance types whose templates have changed, and those that changes outside of Refresh concern. before is nil if
// more than templates has changed.
func (p *Provider) rebuild(b, before *builder, last *built) *built {
	if before == nil || last == nil {
		return p.build(b)
	}
	now := p.sequences()
	templates, same := b.changedFrom(before)
	names, known := p.changed(b, last.sequences)
	if !same || !known || 2*len(templates) > len(b.groups) {
		return p.build(b)
	}
	return &built{sequences: now, snapshot: b.update(last.snapshot, templates.Union(names))}
}

// update resolves the instance types that changes outside of Refresh concern.
func (p *Provider) update(b *builder, before *built) *built {
	now := p.sequences()
	names, known := p.changed(b, before.sequences)
	if !known {
		return p.build(b)
	}
	if len(names) == 0 {
		return &built{sequences: now, snapshot: before.snapshot}
	}
	return &built{sequences: now, snapshot: b.update(before.snapshot, names)}
}

// changed returns the instance types whose availability, prices, machines or observed capacity have changed, or false if it
// isn't known any more which those are.
func (p *Provider) changed(b *builder, since sequences) (names sets.Set[string], known bool) {
	names = sets.New[string]()
	priced, known := p.Pricing.Since(since.pricing)
	if !known {
		return nil, false
	}
	for _, name := range priced {
		if len(b.groups[name]) > 0 {
			names.Insert(name)
		}
	}
	failed, known := p.Unavailable.Since(since.unavailable)
	if !known {
		return nil, false
	}
	for _, change := range failed {
		names.Insert(b.concerned(change)...)
	}
	leased, known := p.Capacity.Since(since.capacity)
	if !known {
		return nil, false
	}
	for _, name := range leased {
		if len(b.groups[name]) > 0 {
			names.Insert(name)
		}
	}
	changes, known := p.Inventory.Since(since.inventory)
	for _, change := range changes {
		if change.InstanceType != "" {
			names.Insert(change.InstanceType)
		}
		names.Insert(b.reservations[change.Reservation]...)
		if tmpl, found := b.templates[change.Source]; found {
			names.Insert(tmpl.InstanceType)
		}
	}
	return names, known
}

// concerned returns the instance types whose offerings a change concerns: for a whole zone or a quota, which rarely change, it returns all.
func (b *builder) concerned(change offering.Change) (names []string) {
	if change.InstanceType != "" {
		if len(b.groups[change.InstanceType]) > 0 {
			names = append(names, change.InstanceType)
		}
		return names
	}
	return slices.Collect(maps.Keys(b.groups))
}

// sequences neither locks nor allocates while nothing changes.
func (p *Provider) sequences() sequences {
	return sequences{
		pricing: p.Pricing.Sequence(), capacity: p.Capacity.Sequence(), inventory: p.Inventory.Sequence(), unavailable: p.Unavailable.Sequence(),
	}
}
