// SPDX-License-Identifier: Apache-2.0

// Package inventory follows the Machines of the management cluster and the Nodes of the guest: how many machines of a template there are
// and may be, what they were made from and as, and how much memory their nodes have.
package inventory

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Config of an Inventory.
type Config struct {
	// Counted reports whether every Machine that there was at the start has been told. Nil: since Watch has seen them all.
	Counted func() bool
	// None asks the API server whether a NodeClaim has no Machine; nil where reservations only lapse.
	None  func(context.Context, *karpv1.NodeClaim) (bool, error)
	Clock clock.PassiveClock
}

// Inventory of Machines and Nodes. It is safe for concurrent use. A nil one knows none, and limits nothing.
type Inventory struct {
	Config
	// complete remembers that Counted has said yes, and done is closed then; nil where nothing tells.
	complete atomic.Bool
	done     <-chan struct{}

	sequence     atomic.Uint64
	reservations *reservations
	origins      *origins
	memory       *memory

	mu sync.Mutex
	// machines by NodeClaim, and the NodeClaims by provider ID.
	machines   map[types.UID]Machine
	nodeClaims map[string]types.UID
	// nodes by name, and their names by provider ID.
	nodes map[string]Node
	names map[string]string
}

// Machine is what matters of a Machine.
type Machine struct {
	Origin
	// ContentHash is of the template that it was made from.
	ContentHash string
	ProviderID  string
}

// Node is what matters of a Node that Karpenter has registered.
type Node struct {
	ProviderID string
	// Memory in bytes.
	Memory int64
}

// New returns an inventory of nothing: see Watch.
func New(config Config) *Inventory {
	i := &Inventory{
		Config: config, machines: map[types.UID]Machine{}, nodeClaims: map[string]types.UID{}, nodes: map[string]Node{}, names: map[string]string{},
	}
	i.reservations = newReservations(config.Clock, i.IsCounted, &i.sequence)
	i.origins, i.memory = newOrigins(&i.sequence), newMemory(&i.sequence)
	return i
}

// IsCounted reports whether every Machine that there was at the start has been told. It neither locks nor allocates from then on.
func (i *Inventory) IsCounted() bool {
	if i == nil || i.complete.Load() {
		return true
	}
	if i.Counted == nil || !i.Counted() {
		return false
	}
	i.complete.Store(true)
	return true
}

// Wait until the Machines have been counted, for at most as long as timeout. The error is ErrNotCounted, or that of ctx.
func (i *Inventory) Wait(ctx context.Context, timeout time.Duration) error {
	if i.IsCounted() {
		return nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-i.done: // nil blocks
		return nil
	case <-timer.C:
		return ErrNotCounted
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sequence changes whenever an answer of Full, Origins or Memory has. It neither locks nor allocates while nothing changes.
func (i *Inventory) Sequence() uint64 {
	if i == nil {
		return 0
	}
	return i.reservations.Sequence()
}

// OnChange calls f, which must neither block nor ask the inventory anything, whenever an answer of Full has changed.
func (i *Inventory) OnChange(f func()) {
	if i != nil {
		i.reservations.OnChange(f)
	}
}

// Acquire reserves a place among a source's machines, of which there may be limit, for the launch of a NodeClaim. It reports false where
// there is none left. Called again for the same NodeClaim and source, it needs no second place. The error is ErrNotCounted, wrapped.
func (i *Inventory) Acquire(nodeClaim types.UID, source string, limit int) (bool, error) {
	if i == nil {
		return true, nil
	}
	err := i.reservations.Reserve(nodeClaim, source, limit)
	if errors.Is(err, ErrFull) {
		return false, nil
	}
	return err == nil, err
}

// Abandon releases the reservations that earlier attempts of a launch hold when it fails for good: Karpenter deletes the NodeClaim, and never
// asks for the deletion of what has no provider ID. Only the API server knows whether one of them made a Machine; where it doesn't
// say, the reservation lapses.
func (i *Inventory) Abandon(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	if i == nil || i.None == nil || !i.reservations.Promised(nodeClaim.UID) {
		return
	}
	switch none, err := i.None(ctx, nodeClaim); {
	case err != nil:
		log.FromContext(ctx).V(1).Info("keeping the reservation of a launch that has failed", "error", err.Error())
	case none:
		i.reservations.Withdraw(nodeClaim.UID)
	}
}

// Full reports whether a source has as many machines as it may. From then on, Sequence changes when the answer does.
func (i *Inventory) Full(source string, limit int) bool {
	return i != nil && i.reservations.Full(source, limit)
}

// Count is the number of a source's machines, with those that are being launched.
func (i *Inventory) Count(source string) int { return i.reservations.Count(source) }

// Origins that at least one machine has, in order.
func (i *Inventory) Origins() []Origin {
	if i == nil {
		return nil
	}
	return i.origins.All()
}

// Memory is the least that a node of a revision has, in bytes and rounded down to a MiB, or false while none was seen.
func (i *Inventory) Memory(r Revision) (bytes int64, known bool) {
	if i == nil {
		return 0, false
	}
	return i.memory.Of(r)
}

// ObserveMachine says that a NodeClaim has a Machine.
func (i *Inventory) ObserveMachine(nodeClaim types.UID, m Machine) {
	i.reservations.Observe(nodeClaim, m.Source)
	i.origins.Observe(nodeClaim, m.Origin)
	i.mu.Lock()
	defer i.mu.Unlock()
	before, ok := i.machines[nodeClaim]
	if ok && before == m {
		return
	}
	if ok && i.nodeClaims[before.ProviderID] == nodeClaim {
		delete(i.nodeClaims, before.ProviderID)
	}
	i.machines[nodeClaim] = m
	if m.ProviderID == "" {
		return
	}
	i.nodeClaims[m.ProviderID] = nodeClaim
	if name, ok := i.names[m.ProviderID]; ok {
		i.learn(name)
	}
}

// Release gives up the place of a NodeClaim that has no Machine any more, or will never have one.
func (i *Inventory) Release(nodeClaim types.UID) {
	if i != nil {
		i.reservations.Forget(nodeClaim)
	}
}

// ForgetMachine says that a NodeClaim's Machine has gone.
func (i *Inventory) ForgetMachine(nodeClaim types.UID) {
	i.reservations.Forget(nodeClaim)
	i.origins.Forget(nodeClaim)
	i.mu.Lock()
	defer i.mu.Unlock()
	if before, ok := i.machines[nodeClaim]; ok {
		delete(i.machines, nodeClaim)
		if i.nodeClaims[before.ProviderID] == nodeClaim {
			delete(i.nodeClaims, before.ProviderID)
		}
	}
}

// ObserveNode says what a Node that Karpenter has registered reports.
func (i *Inventory) ObserveNode(name string, n Node) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before, ok := i.nodes[name]
	if ok && before == n {
		return
	}
	if ok && i.names[before.ProviderID] == name {
		delete(i.names, before.ProviderID)
	}
	i.nodes[name] = n
	if n.ProviderID != "" {
		i.names[n.ProviderID] = name
		i.learn(name)
	}
}

// ForgetNode says that a Node has gone.
func (i *Inventory) ForgetNode(name string) {
	i.memory.Forget(name)
	i.mu.Lock()
	defer i.mu.Unlock()
	if before, ok := i.nodes[name]; ok {
		delete(i.nodes, name)
		if i.names[before.ProviderID] == name {
			delete(i.names, before.ProviderID)
		}
	}
}

// learn the memory of a node whose Machine is known. It is called with i.mu held.
func (i *Inventory) learn(name string) {
	n := i.nodes[name]
	m, ok := i.machines[i.nodeClaims[n.ProviderID]]
	if ok && m.Source != "" && m.ContentHash != "" {
		i.memory.Observe(name, Revision{Source: m.Source, ContentHash: m.ContentHash}, n.Memory)
	}
}

// nodeOf is what matters of a Node, or false if Karpenter hasn't registered it: it does so by the provider ID that its Machine has by then.
func nodeOf(n *corev1.Node) (Node, bool) {
	return Node{ProviderID: n.Spec.ProviderID, Memory: n.Status.Capacity.Memory().Value()}, n.Labels[karpv1.NodeRegisteredLabelKey] == "true"
}
