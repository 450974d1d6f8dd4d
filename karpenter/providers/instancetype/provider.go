// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/utils/clock"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
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
	// Templates finds a node class's templates; *template.Resolver does.
	Templates Templates
	// Version resolves the version of a template's nodes. Defaults to the template's NodeVersion.
	Version func(*v1alpha1.ClusterAPINodeClass, *template.Template) (result version.Result, reachable bool)
	// Check returns why no machine can be created from a template, such as a patch that doesn't apply; nil checks nothing.
	Check func(*v1alpha1.ClusterAPINodeClass, *template.Template) error
	// Kubelet returns the kubelet settings of a template with the node class's patches, and false where none applies; nil
	// applies none.
	Kubelet func(*v1alpha1.ClusterAPINodeClass, *template.Template) (kubelet.Settings, bool)
	Pricing pricing.Source
	// Unavailable are the offerings that failed lately. Defaults to none.
	Unavailable *offering.Unavailable
	// MemoryOverhead is the fraction of nominal memory that nodes are assumed to lack before one has reported; see Input.
	MemoryOverhead float64
	// Capacity is this cluster's share of the capacity that clusters share.
	Capacity capacityprovider.Limiter
	// Inventory has the existing machines. Instance types are returned once it has counted them.
	Inventory *inventory.Inventory
}

// Templates finds a node class's templates.
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

}

type entry struct {
	// resolving is held while templates are read.
	resolving sync.Mutex
	// checked are the results of Check in the last refresh, by its inputs, and patched those of Kubelet.
	checked map[string]error
	patched map[string]patchedKubelet

	mu sync.Mutex
	// key is of everything that the snapshot depends on, and rest of all but the templates.
	key, rest string
	builder   *builder
	built     atomic.Pointer[built]
}

// Listing has a node class's templates and instance types.
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
func New(config Config) *Provider {
	if config.Unavailable == nil {
		config.Unavailable = offering.NewUnavailable(clock.RealClock{})
	}
	return &Provider{Config: config}
}

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
	if e.key != key {
		var before *builder
		if e.rest == rest {
			before = e.builder
		}
		e.key, e.rest = key, rest
		e.builder = newBuilder(Input{
			Kubelet:        nodeClass.Spec.Kubelet.DeepCopy(),
			NodeClassHash:  nodeClass.Hash(),
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
	l.Snapshot = p.current(e)
	return l, nil
}

// Reported reports whether nodes of a node class and template have reported their allocatable resources.
func (p *Provider) Reported(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) bool {
	report, known := p.Inventory.Allocatable(Revision(tmpl, nodeClass.Hash()))
	return known && !report.Unconfirmed
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

// OnAvailability calls f whenever an offering becomes unavailable or available, or a source reaches its maximum or
// falls below it. f must neither block nor call the provider. Expiry of an entry is noticed when a snapshot is read.
func (p *Provider) OnAvailability(f func()) {
	p.Unavailable.OnChange(f)
	p.Capacity.OnChange(f)
	p.Inventory.OnChange(f)
}

// Delete drops a node class.
func (p *Provider) Delete(nodeClass string) {
	p.entries.Delete(nodeClass)
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
func (p *Provider) InstanceTypes(nodeClass string) ([]*karpcloudprovider.InstanceType, error) {
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
