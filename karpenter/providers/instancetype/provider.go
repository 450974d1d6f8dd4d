// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// ErrUnresolved is returned for a node class that hasn't been resolved yet, while its Cluster is unreadable, and
// until the existing machines have been counted. An empty list would mean that the node class has no instance types.
var ErrUnresolved = errors.New("the instance types of the node class aren't known yet")

// Config of a Provider.
type Config struct {
	// Templates finds what a node class selects; *template.Resolver does.
	Templates Templates
	// Version resolves the version of a template's nodes. Defaults to the template's NodeVersion.
	Version func(*v1alpha1.ClusterAPINodeClass, *template.Template) (result version.Result, reachable bool)
	// Check returns why no machine can be created from a template, such as a patch that doesn't apply; nil checks nothing.
	Check func(*v1alpha1.ClusterAPINodeClass, *template.Template) error
	// Kubelet returns the kubelet settings of a template with the node class's patches, and false where none applies; nil
	// applies none.
	Kubelet     func(*v1alpha1.ClusterAPINodeClass, *template.Template) (kubelet.Settings, bool)
	Pricing     pricing.Source
	Unavailable *offering.Unavailable
	// NodeClassHash hashes the node class's fields that its nodes depend on; drift.Hash does. If nil, nothing is learned of
	// what their kubelets reserve.
	NodeClassHash func(*v1alpha1.ClusterAPINodeClass) string
	// MemoryOverhead is the fraction of nominal memory that nodes are assumed to lack before one has reported; see Input.
	MemoryOverhead float64
	// Capacity is what this cluster may take of what it shares with others; it may be nil.
	Capacity *capacity.Provider
	// Inventory may be nil. Otherwise instance types are returned only once it has counted the machines.
	Inventory *inventory.Inventory
}

// Templates finds what a node class selects.
type Templates interface {
	// Resolve returns the templates that a node class selects; the error is that of ctx.
	Resolve(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*template.Found, error)
	// Cluster returns the Cluster that machines join.
	Cluster(ctx context.Context) (template.Cluster, error)
}

// Provider resolves the instance types of node classes, and caches each snapshot until one of its inputs changes.
type Provider struct {
	Config
	entries sync.Map // of node class name to *entry

	// observers are notified when a node class's selection changes.
	observers change.Notifier
}

type entry struct {
	// resolving is held while templates are read.
	resolving sync.Mutex
	// checked are the results of Check by what was checked, of the last refresh, and patched those of Kubelet.
	checked map[string]error
	patched map[string]patchedKubelet

	mu sync.Mutex
	// key is of everything that the snapshot depends on, and rest of all but the templates.
	key, rest string
	builder   *builder
	built     atomic.Pointer[built]
}

type patchedKubelet struct {
	settings kubelet.Settings
	patched  bool
}

type built struct {
	sequences
	snapshot *Snapshot
}

// sequences change with every input outside of Refresh.
type sequences struct{ pricing, unavailable, capacity, inventory uint64 }

// Listing is what a node class selects and offers.
type Listing struct {
	Found *template.Found
	// Cluster is valid only if ClusterErr is nil.
	Cluster    template.Cluster
	ClusterErr error
	// Templates are those of Found, each with its nodes' version, and unreadable ones that were known before. Empty
	// if ClusterErr is set.
	Templates []template.Template
	// Unversioned are the errors of templates whose version isn't possible.
	Unversioned []error
	// Snapshot is built from Templates. If ClusterErr is set it is the previous one, or nil: without the Cluster its
	// zones are unknown, and wrong zones would make every node drift.
	Snapshot *Snapshot
}

// New returns a provider without snapshots.
func New(config Config) *Provider { return &Provider{Config: config} }

// List returns the instance types of a node class. It reads templates from informers only if the node class hasn't
// been resolved since startup, and waits for the informers to sync. The error wraps ErrUnresolved or is that of ctx.
func (p *Provider) List(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*Snapshot, error) {
	if snapshot, err := p.Cached(nodeClass.Name); err == nil || nodeClass.DeletionTimestamp != nil {
		// A node class that is being deleted may have been dropped just now.
		return snapshot, err
	}
	if err := p.Inventory.Wait(ctx, informer.SyncTimeout); err != nil {
		return nil, fmt.Errorf("node class %s: %w: %w", nodeClass.Name, ErrUnresolved, err)
	}
	e := p.entry(nodeClass)
	e.resolving.Lock()
	defer e.resolving.Unlock()
	if e.built.Load() == nil {
		if _, err := p.refresh(ctx, e, nodeClass); err != nil {
			return nil, err
		}
	}
	return p.Cached(nodeClass.Name)
}

// Refresh reads a node class's selection from informers, and builds a new snapshot only if it has changed. The error
// is that of ctx.
func (p *Provider) Refresh(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*Listing, error) {
	e := p.entry(nodeClass)
	e.resolving.Lock()
	defer e.resolving.Unlock()
	return p.refresh(ctx, e, nodeClass)
}

func (p *Provider) entry(nodeClass *v1alpha1.ClusterAPINodeClass) *entry {
	value, _ := p.entries.LoadOrStore(nodeClass.Name, &entry{})
	e, _ := value.(*entry)
	return e
}

// refresh is called with e.resolving held.
func (p *Provider) refresh(ctx context.Context, e *entry, nodeClass *v1alpha1.ClusterAPINodeClass) (*Listing, error) {
	l := &Listing{}
	l.Cluster, l.ClusterErr = p.Templates.Cluster(ctx)
	var err error
	if l.Found, err = p.Templates.Resolve(ctx, nodeClass); err != nil {
		return nil, fmt.Errorf("reading the templates of node class %s: %w", nodeClass.Name, err)
	}
	if p.Check != nil {
		l.Found = p.check(e, nodeClass, l.Found)
	}
	if l.ClusterErr != nil {
		l.Snapshot = p.current(e)
		return l, nil //nolint:nilerr // The listing carries it.
	}
	if p.Kubelet != nil {
		l.Found = p.patch(e, nodeClass, l.Found)
	}
	l.Templates = keep(e.templates(), l.Found)
	l.Unversioned = p.setVersions(nodeClass, l.Templates)
	gaps := l.Found.Gaps()
	rest := fmt.Sprintf("%d|%s", l.Found.ProfileSequence, restOf(nodeClass, l.Cluster, gaps))
	key := keyOf(rest, l.Templates)
	e.mu.Lock()
	changed := e.key != key
	if changed {
		var before *builder
		if e.rest == rest {
			before = e.builder
		}
		e.key, e.rest = key, rest
		e.builder = newBuilderAfter(Input{
			Kubelet:        nodeClass.Spec.Kubelet.DeepCopy(),
			NodeClassHash:  p.hash(nodeClass),
			MemoryOverhead: p.MemoryOverhead,
			Templates:      l.Templates,
			Gaps:           gaps,
			Cluster:        l.Cluster,
			Pricing:        p.Pricing,
			Unavailable:    p.Unavailable,
			Capacity:       p.Capacity,
			Inventory:      p.Inventory,
		}, before)
		e.built.Store(p.rebuild(e.builder, before, e.built.Load()))
	}
	e.mu.Unlock()
	if changed {
		p.observers.Notify()
	}
	l.Snapshot = p.current(e)
	return l, nil
}

func (p *Provider) hash(nodeClass *v1alpha1.ClusterAPINodeClass) string {
	if p.NodeClassHash == nil {
		return ""
	}
	return p.NodeClassHash(nodeClass)
}

// Reported reports whether nodes of a node class and template have reported what they can allocate.
func (p *Provider) Reported(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) bool {
	report, known := p.Inventory.Allocatable(Revision(tmpl, p.hash(nodeClass)))
	return known && !report.Unconfirmed
}

// check tries each template once, until it or the node class changes. It is called with e.resolving held.
func (p *Provider) check(e *entry, nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found) *template.Found {
	checked := make(map[string]error, len(found.Templates))
	result := found.Checked(func(tmpl *template.Template) error {
		key := fmt.Sprintf("%s/%d%s", nodeClass.UID, nodeClass.Generation, read(tmpl))
		err, known := e.checked[key]
		if !known {
			err = p.Check(nodeClass, tmpl)
		}
		checked[key] = err
		return err
	})
	e.checked = checked
	return result
}

// patch gives each template the kubelet settings that the node class's patches make of its own. They are read once, until
// the template or the node class changes. It is called with e.resolving held.
func (p *Provider) patch(e *entry, nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found) *template.Found {
	if len(nodeClass.Spec.BootstrapPatches) == 0 {
		e.patched = nil
		return found
	}
	patched := make(map[string]patchedKubelet, len(found.Templates))
	result := *found
	result.Templates = slices.Clone(found.Templates)
	for i := range result.Templates {
		tmpl := &result.Templates[i]
		key := fmt.Sprintf("%s/%d%s", nodeClass.UID, nodeClass.Generation, read(tmpl))
		known, ok := e.patched[key]
		if !ok {
			known.settings, known.patched = p.Kubelet(nodeClass, tmpl)
		}
		patched[key] = known
		if known.patched {
			tmpl.Bootstrap.Kubelet, tmpl.Bootstrap.Patched = known.settings, true
		}
	}
	e.patched = patched
	return &result
}

// keep adds the templates that were known before and lack only because a kind can't be read now, or because their source is
// malformed by now: a node whose instance type vanishes is replaced, and neither is a reason for that. Nothing is launched
// from a source that is malformed.
func keep(before []template.Template, found *template.Found) []template.Template {
	unread := map[schema.GroupKind]bool{}
	for _, err := range found.Unreadable {
		var unreadable *informer.UnreadableError
		if errors.As(err, &unreadable) {
			unread[unreadable.GroupKind] = true
		}
	}
	templates := slices.Clone(found.Templates)
	for _, old := range before {
		source := old.Source.Annotation()
		old.Held = slices.ContainsFunc(found.Invalid, func(invalid *template.InvalidError) bool { return invalid.Source.Covers(source) })
		depends := unread[old.Source.GroupKind] ||
			old.Infrastructure != nil && unread[old.Infrastructure.GroupVersionKind().GroupKind()] ||
			old.Bootstrap.ConfigTemplate != nil && unread[old.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()]
		same := func(tmpl template.Template) bool { return tmpl.Source.Annotation() == source }
		if (depends || old.Held) && !slices.ContainsFunc(templates, same) {
			templates = append(templates, old)
		}
	}
	return templates
}

// setVersions sets the templates' versions from their MachineDeployments, if the node class sets none. It returns the
// errors of impossible versions; those templates launch nothing.
func (p *Provider) setVersions(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template) (problems []error) {
	if p.Version == nil {
		return nil
	}
	for i := range templates {
		tmpl := &templates[i]
		tmpl.NodeVersion = ""
		if nodeClass.Spec.Version != "" || tmpl.Version() == "" {
			continue
		}
		resolved, _ := p.Version(nodeClass, tmpl)
		tmpl.NodeVersion = resolved.Version
		if !resolved.Ready() && resolved.Outcome != version.Unknown {
			tmpl.Held = true
			problems = append(problems, &template.InvalidError{Source: tmpl.Source, Problem: resolved.Message})
		}
	}
	return problems
}

// templates returns the last snapshot's templates. They are shared: don't modify them.
func (e *entry) templates() []template.Template {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.builder == nil {
		return nil
	}
	return e.builder.Templates
}

// OnChange calls f whenever a node class's selection changes, or a node class is deleted. f must not block.
func (p *Provider) OnChange(f func()) { p.observers.Add(f) }

// OnAvailability calls f whenever an offering becomes unavailable or available, or a source reaches its maximum or
// falls below it. f must neither block nor call the provider. Expiry of an entry is noticed when a snapshot is read.
func (p *Provider) OnAvailability(f func()) {
	if p.Unavailable != nil {
		p.Unavailable.OnChange(f)
	}
	p.Capacity.OnChange(f)
	p.Inventory.OnChange(f)
}

// Delete drops a node class.
func (p *Provider) Delete(nodeClass string) {
	p.entries.Delete(nodeClass)
	p.observers.Notify()
}

// Cached returns the snapshot of a resolved node class, or ErrUnresolved. It neither locks nor allocates unless an
// input outside of Refresh has changed: the availability or price of an offering, the observed capacity of nodes, or
// the offerings of existing machines.
func (p *Provider) Cached(nodeClass string) (*Snapshot, error) {
	value, ok := p.entries.Load(nodeClass)
	if !ok || !p.Inventory.IsCounted() {
		return nil, fmt.Errorf("node class %s: %w", nodeClass, ErrUnresolved)
	}
	e, _ := value.(*entry)
	snapshot := p.current(e)
	if snapshot == nil {
		return nil, fmt.Errorf("node class %s: %w", nodeClass, ErrUnresolved)
	}
	return snapshot, nil
}

// InstanceTypes returns a node class's instance types, or ErrUnresolved. They are shared: don't modify them.
func (p *Provider) InstanceTypes(nodeClass string) ([]*cloudprovider.InstanceType, error) {
	snapshot, err := p.Cached(nodeClass)
	if err != nil {
		return nil, err
	}
	return snapshot.InstanceTypes, nil
}

// Resolve returns an offering of a node class and its template; false if the node class doesn't make it any more. The
// error means that it is unknown.
func (p *Provider) Resolve(nodeClass, instanceType, zone, capacityType string) (Choice, bool, error) {
	snapshot, err := p.Cached(nodeClass)
	if err != nil {
		return Choice{}, false, err
	}
	choice, ok := snapshot.Resolve(instanceType, zone, capacityType)
	return choice, ok, nil
}

// Declares reports whether a template that a node class selects has a label of this key; false while that isn't known.
func (p *Provider) Declares(nodeClass, key string) bool {
	snapshot, err := p.Cached(nodeClass)
	return err == nil && snapshot.Declares(key)
}

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
	if p.Unavailable != nil {
		keys, known := p.Unavailable.Since(since.unavailable)
		if !known {
			return nil, false
		}
		for _, key := range keys {
			if len(b.groups[key.InstanceType]) > 0 {
				names.Insert(key.InstanceType)
			}
		}
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

// sequences neither locks nor allocates while nothing changes.
func (p *Provider) sequences() sequences {
	s := sequences{pricing: p.Pricing.Sequence(), capacity: p.Capacity.Sequence(), inventory: p.Inventory.Sequence()}
	if p.Unavailable != nil {
		s.unavailable = p.Unavailable.Sequence()
	}
	return s
}

// keyOf differs whenever a snapshot may differ. rest is of everything but the templates.
func keyOf(rest string, templates []template.Template) string {
	var b strings.Builder
	b.WriteString(rest)
	for i := range templates {
		b.WriteString(identity(&templates[i]))
	}
	return b.String()
}

func restOf(nodeClass *v1alpha1.ClusterAPINodeClass, cluster template.Cluster, gaps template.Gaps) string {
	return fmt.Sprintf("%s/%d|%q|%q|%t|%t%q", nodeClass.UID, nodeClass.Generation, cluster.FailureDomains, cluster.Region, cluster.Paused || cluster.Deleting, gaps.All, gaps.Sources)
}

// identity of a template: the same one offers the same.
func identity(tmpl *template.Template) string {
	id := read(tmpl)
	if tmpl.Held {
		id += "!"
	}
	if tmpl.Paused && tmpl.IsCatalogs() {
		id += "~" // the annotation of a catalog isn't in the revision of its entries
	}
	return id + tmpl.NodeVersion
}

// read identifies what a template was read from: its source and its bootstrap, at their revisions.
func read(tmpl *template.Template) string {
	parts := []string{"|", tmpl.Source.Annotation(), "@", string(tmpl.Source.UID), "@", tmpl.Source.ResourceVersions, "+", tmpl.Bootstrap.Hash}
	if tmpl.Bootstrap.ConfigTemplate != nil {
		parts = append(parts, "@", tmpl.Bootstrap.ConfigTemplate.GetResourceVersion())
	}
	return strings.Join(parts, "")
}
