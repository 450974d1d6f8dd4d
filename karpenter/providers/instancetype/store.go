// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/observedcapacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// ErrNotBuilt is returned for a node class whose shapes haven't been read yet, or while the machines that there are haven't been
// counted: there may be instance types, so an empty answer would be wrong.
var ErrNotBuilt = errors.New("the shapes of the node class haven't been read yet")

// Config of a Store.
type Config struct {
	Pricing     pricing.Source
	Unavailable *offering.Unavailable
	Limits      Limits
	Memory      *observedcapacity.Memory
	// Running may be nil. Otherwise nothing is handed out before the machines have been counted.
	Running *inventory.Machines
}

// Store holds the snapshot of every node class. The node class's controller sets what it is built from; everybody else reads.
type Store struct {
	Config
	entries sync.Map // of node class name to *entry

	mu sync.Mutex
	// observers are told when what is set has changed.
	observers []func()
}

type entry struct {
	mu    sync.Mutex
	key   string
	input Input
	built atomic.Pointer[built]
}

type built struct {
	sequence uint64
	snapshot *Snapshot
}

// NewStore returns an empty store.
func NewStore(config Config) *Store { return &Store{Config: config} }

// Set says what a node class's instance types are made from, and returns the snapshot. It builds one only if something
// differs from the last time.
func (s *Store) Set(nodeClass *v1alpha1.ClusterAPINodeClass, shapes []template.Template, cluster template.Cluster) *Snapshot {
	return s.SetPartial(nodeClass, shapes, cluster, template.Gaps{})
}

// SetPartial is Set where not everything is known that the node class selects.
func (s *Store) SetPartial(nodeClass *v1alpha1.ClusterAPINodeClass, shapes []template.Template, cluster template.Cluster, gaps template.Gaps) *Snapshot {
	value, _ := s.entries.LoadOrStore(nodeClass.Name, &entry{})
	e := value.(*entry)
	key := keyOf(nodeClass, shapes, cluster, gaps)
	e.mu.Lock()
	changed := e.key != key
	if changed {
		e.key = key
		e.input = Input{
			Kubelet:     nodeClass.Spec.Kubelet.DeepCopy(),
			Shapes:      shapes,
			Gaps:        gaps,
			Cluster:     cluster,
			Pricing:     s.Pricing,
			Unavailable: s.Unavailable,
			Limits:      s.Limits,
			Memory:      s.Memory,
			Running:     s.Running,
		}
		e.built.Store(s.build(e.input))
	}
	e.mu.Unlock()
	if changed {
		s.notify()
	}
	return s.current(e)
}

// OnSet calls f, which must not block, whenever what a node class's instance types are made from has changed, or a node class is forgotten.
func (s *Store) OnSet(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = append(s.observers, f)
}

func (s *Store) notify() {
	s.mu.Lock()
	observers := slices.Clone(s.observers)
	s.mu.Unlock()
	for _, f := range observers {
		f()
	}
}

// OnChange calls f, which must neither block nor ask the store anything, whenever an offering becomes unavailable or a source full, or
// not any more. That the time of an offering is over is noticed when somebody asks for a snapshot.
func (s *Store) OnChange(f func()) {
	if s.Unavailable != nil {
		s.Unavailable.OnChange(f)
	}
	if s.Limits != nil {
		s.Limits.OnChange(f)
	}
}

// Shapes that a node class's instance types are made from, or none. They are shared: never change them.
func (s *Store) Shapes(nodeClass string) []template.Template {
	value, ok := s.entries.Load(nodeClass)
	if !ok {
		return nil
	}
	e := value.(*entry)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.input.Shapes
}

// Delete forgets a node class.
func (s *Store) Delete(nodeClass string) {
	s.entries.Delete(nodeClass)
	s.notify()
}

// Snapshot of a node class, or ErrNotBuilt. It takes no lock and allocates nothing unless something that isn't set with Set has
// changed since the last call: whether an offering is available, what it costs, what nodes of a shape have, or which forms
// machines have.
func (s *Store) Snapshot(nodeClass string) (*Snapshot, error) {
	value, ok := s.entries.Load(nodeClass)
	if !ok || s.Running != nil && !s.Running.Counted() {
		return nil, fmt.Errorf("node class %s: %w", nodeClass, ErrNotBuilt)
	}
	snapshot := s.current(value.(*entry))
	if snapshot == nil {
		return nil, fmt.Errorf("node class %s: %w", nodeClass, ErrNotBuilt)
	}
	return snapshot, nil
}

// InstanceTypes of a node class, or ErrNotBuilt. They are shared: never change them.
func (s *Store) InstanceTypes(nodeClass string) ([]*cloudprovider.InstanceType, error) {
	snapshot, err := s.Snapshot(nodeClass)
	if err != nil {
		return nil, err
	}
	return snapshot.InstanceTypes, nil
}

// Resolve finds an offering of a node class and the shape behind it. False means that the node class doesn't offer it (any
// more); an error, that it isn't known yet.
func (s *Store) Resolve(nodeClass, instanceType, zone, capacityType string) (Choice, bool, error) {
	snapshot, err := s.Snapshot(nodeClass)
	if err != nil {
		return Choice{}, false, err
	}
	choice, ok := snapshot.Resolve(instanceType, zone, capacityType)
	return choice, ok, nil
}

// current returns the snapshot, built anew if what isn't set with Set has changed.
func (s *Store) current(e *entry) *Snapshot {
	b := e.built.Load()
	if b == nil {
		return nil
	}
	if b.sequence == s.sequence() {
		return b.snapshot
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b = e.built.Load(); b.sequence != s.sequence() {
		b = s.build(e.input)
		e.built.Store(b)
	}
	return b.snapshot
}

// build reads the sequence first: a change while building then leads to one build too many, never to a stale snapshot.
func (s *Store) build(in Input) *built {
	return &built{sequence: s.sequence(), snapshot: Build(in)}
}

// sequence changes whenever something that isn't set with Set has. Each of the terms only grows.
func (s *Store) sequence() uint64 {
	sequence := s.Pricing.Sequence()
	if s.Unavailable != nil {
		sequence += s.Unavailable.Sequence()
	}
	if s.Limits != nil {
		sequence += s.Limits.Sequence()
	}
	if s.Memory != nil {
		sequence += s.Memory.Sequence()
	}
	if s.Running != nil {
		sequence += s.Running.Sequence()
	}
	return sequence
}

// keyOf differs whenever a snapshot may.
func keyOf(nodeClass *v1alpha1.ClusterAPINodeClass, shapes []template.Template, cluster template.Cluster, gaps template.Gaps) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d|%q|%t|%t%q", nodeClass.UID, nodeClass.Generation, cluster.FailureDomains, cluster.Paused || cluster.Deleting, gaps.All, gaps.Sources)
	for i := range shapes {
		sh := &shapes[i]
		for _, part := range []string{"|", sh.Source.Annotation(), "@", string(sh.Source.UID), "@", sh.Source.ResourceVersions, "+", sh.Bootstrap.Hash} {
			b.WriteString(part)
		}
		if sh.Held {
			b.WriteString("!")
		}
		b.WriteString(sh.NodeVersion)
		if sh.Bootstrap.ConfigTemplate != nil {
			b.WriteString("@" + sh.Bootstrap.ConfigTemplate.GetResourceVersion())
		}
	}
	return b.String()
}
