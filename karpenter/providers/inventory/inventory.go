// SPDX-License-Identifier: Apache-2.0

// Package inventory watches the Machines of the management cluster and the Nodes of the guest. It counts a template's
// machines and enforces its maximum size, and tracks the template and offering of each machine, and the reports of
// its node.
package inventory

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Config of an Inventory.
type Config struct {
	// Counted reports whether every Machine that existed at startup has been observed. Defaults to Watch having
	// listed them all.
	Counted func() bool
	// None queries the API server whether a NodeClaim has no Machine. If nil, reservations only expire.
	None  func(context.Context, *karpv1.NodeClaim) (bool, error)
	Clock clock.PassiveClock
}

// Inventory of Machines and Nodes. It is safe for concurrent use.
type Inventory struct {
	Config
	// complete records that Counted has returned true, and done is closed then; nil without a Counted.
	complete atomic.Bool
	done     <-chan struct{}

	changes      change.Log[Change]
	reservations *reservations
	// reserved counts the machines of the infrastructure's reservations.
	reserved *reservations
	observed *observed
	// kubelets are the versions that nodes report.
	kubelets *kubelets

	mu sync.Mutex
	// machines by NodeClaim UID, and how many have each origin, by instance type.
	machines index[types.UID, Machine]
	origins  map[string]map[Origin]int
	// nodes by name.
	nodes index[string, Node]
	// pending is how many of machines have no provider ID.
	pending int
}

// Change names the subject of changed results: those of Origins for an instance type, those of Full, Capacity
// and Allocatable for a source, or that of ReservationLeft for a reservation.
type Change struct{ InstanceType, Source, Reservation string }

// Machine holds the tracked fields of a Machine.
type Machine struct {
	Origin
	// ContentHash, BootstrapHash and NodeClassHash are the hashes of the objects that it was made from.
	ContentHash, BootstrapHash, NodeClassHash string
	ProviderID                                string
}

func (m Machine) providerID() string { return m.ProviderID }

// Node holds the tracked fields of a registered Node.
type Node struct {
	ProviderID string
	// Capacity and Allocatable as the kubelet reports them.
	Capacity, Allocatable Amounts
	// Zone is that of the Node's label; it may be empty.
	Zone string
	// Kubelet is its version as it reports it.
	Kubelet string
}

func (n Node) providerID() string { return n.ProviderID }

// New returns an empty inventory: see Watch.
func New(config Config) *Inventory {
	i := &Inventory{
		Config: config, machines: newIndex[types.UID, Machine](), origins: map[string]map[Origin]int{}, nodes: newIndex[string, Node](),
	}
	i.reservations, i.observed = newReservations(config.Clock, i.IsCounted, &i.changes), newObserved(config.Clock, &i.changes)
	i.kubelets = newKubelets(i.observed.observers.Notify)
	i.reserved = newReservations(config.Clock, i.IsCounted, &i.changes)
	i.reserved.every = true
	return i
}

// IsCounted reports whether every Machine that existed at startup has been observed. Once true, it neither locks nor
// allocates.
func (i *Inventory) IsCounted() bool {
	if i.complete.Load() {
		return true
	}
	if i.Counted == nil || !i.Counted() {
		return false
	}
	i.complete.Store(true)
	return true
}

// Wait waits until the Machines have been counted, at most for timeout. The error is ErrNotCounted, or that of ctx.
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

// Sequence changes whenever a result of Full, Origins, Capacity or Allocatable changes. It neither locks nor allocates
// while nothing changes.
func (i *Inventory) Sequence() uint64 {
	i.observed.expire()
	i.reserved.Sequence()
	return i.reservations.Sequence()
}

// Since returns the changes after a sequence, or false if they aren't known any more.
func (i *Inventory) Since(sequence uint64) ([]Change, bool) {
	return i.changes.Since(sequence)
}

// OnChange calls f whenever a result of Full changes, and when the first node of a revision reports. f must neither
// block nor call the inventory.
func (i *Inventory) OnChange(f func()) {
	i.reservations.OnChange(f)
	i.reserved.OnChange(f)
	i.observed.observers.Add(f)
}

// Acquire reserves one of a source's machines, of which there may be limit, for the launch of a NodeClaim. A second call for
// the same NodeClaim and source reserves nothing more. The error wraps ErrFull or ErrNotCounted.
func (i *Inventory) Acquire(nodeClaim types.UID, source string, limit int) error {
	return i.reservations.Reserve(nodeClaim, source, limit)
}

// AcquireReserved is Acquire for one of the machines that the infrastructure reserves, by the ID of its reservation.
func (i *Inventory) AcquireReserved(nodeClaim types.UID, reservation string, limit int) error {
	return i.reserved.Reserve(nodeClaim, reservation, limit)
}

// ReservationLeft is how many more machines a reservation may have. From then on, Sequence changes with the result.
func (i *Inventory) ReservationLeft(reservation string, limit int) int {
	return i.reserved.Remaining(reservation, limit)
}

// Abandon releases the reservations held by earlier attempts when a launch fails for good: Karpenter deletes the
// NodeClaim, and calls no Delete for one without a provider ID. Only the API server can answer whether an earlier attempt
// created a Machine; if it doesn't answer, the reservation expires.
func (i *Inventory) Abandon(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	if i.None == nil || !i.reservations.Promised(nodeClaim.UID) && !i.reserved.Promised(nodeClaim.UID) {
		return
	}
	switch none, err := i.None(ctx, nodeClaim); {
	case err != nil:
		log.FromContext(ctx).V(1).Info("keeping the reservation of a launch that has failed", "error", err.Error())
	case none:
		i.reservations.Withdraw(nodeClaim.UID)
		i.reserved.Withdraw(nodeClaim.UID)
	}
}

// Full reports whether a source has reached its maximum size. From then on, Sequence changes with the result.
func (i *Inventory) Full(source string, limit int) bool {
	return i.reservations.Full(source, limit)
}

// Count is the number of a source's machines, including those being launched.
func (i *Inventory) Count(source string) int { return i.reservations.Count(source) }

// Origins returns the origins of all machines of an instance type, in order.
func (i *Inventory) Origins(instanceType string) []Origin {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.SortedFunc(maps.Keys(i.origins[instanceType]), Origin.Compare)
}

// InstanceTypes returns the instance types of all machines, in any order.
func (i *Inventory) InstanceTypes() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Keys(i.origins))
}

// Capacity is that of machines of a revision, of which only the memory is tracked; false if no node was observed.
func (i *Inventory) Capacity(r Revision) (Report, bool) {
	return i.observed.Capacity(r)
}

// Allocatable is that of nodes of a revision; false if none was observed.
func (i *Inventory) Allocatable(r Revision) (Report, bool) {
	return i.observed.Allocatable(r)
}

// Kubelet is the version that most nodes of a revision's hardware run, without a leading v; false if no node is known. The newest of
// several counts.
func (i *Inventory) Kubelet(r Revision) (version string, known bool) {
	return i.kubelets.Version(r.hardware())
}

// ObserveMachine records a NodeClaim's Machine.
func (i *Inventory) ObserveMachine(nodeClaim types.UID, m Machine) {
	i.reservations.Observe(nodeClaim, m.Source)
	if m.Reservation != "" {
		i.reserved.Observe(nodeClaim, m.Reservation)
	} else {
		i.reserved.Forget(nodeClaim)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	m.NodeZone = i.nodeZone(m)
	_, known := i.machines.objects[nodeClaim]
	before, changed := i.machines.set(nodeClaim, m)
	if !changed {
		return
	}
	if m.ProviderID == "" {
		i.pend(1)
	}
	if known && before.ProviderID == "" {
		i.pend(-1)
	}
	if !known || before.Origin != m.Origin {
		i.countOrigin(m.Origin, 1)
		if known {
			i.countOrigin(before.Origin, -1)
		}
	}
	if name, ok := i.nodes.keys[m.ProviderID]; ok {
		i.learn(name)
	}
}

// Machine returns the tracked fields of a NodeClaim's Machine; false if it has none.
func (i *Inventory) Machine(nodeClaim types.UID) (Machine, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	m, ok := i.machines.objects[nodeClaim]
	return m, ok
}

// countOrigin adds machines to an origin's number. i.mu must be held.
func (i *Inventory) countOrigin(origin Origin, n int) {
	counts := i.origins[origin.InstanceType]
	if counts == nil {
		counts = map[Origin]int{}
		i.origins[origin.InstanceType] = counts
	}
	before := counts[origin]
	if counts[origin] = before + n; before+n == 0 {
		delete(counts, origin)
	}
	if len(counts) == 0 {
		delete(i.origins, origin.InstanceType)
	}
	if before == 0 || before+n == 0 {
		i.changes.Add(Change{InstanceType: origin.InstanceType})
	}
}

// Release releases the reservation of a NodeClaim that has no Machine any more, or never will.
func (i *Inventory) Release(nodeClaim types.UID) {
	i.reservations.Forget(nodeClaim)
	i.reserved.Forget(nodeClaim)
}

// ForgetMachine records that a NodeClaim's Machine is gone.
func (i *Inventory) ForgetMachine(nodeClaim types.UID) {
	i.reservations.Forget(nodeClaim)
	i.reserved.Forget(nodeClaim)
	i.mu.Lock()
	defer i.mu.Unlock()
	if before, ok := i.machines.remove(nodeClaim); ok {
		i.countOrigin(before.Origin, -1)
		if before.ProviderID == "" {
			i.pend(-1)
		}
	}
}

// Pending is the number of machines that the infrastructure hasn't made yet: they have no provider ID.
func (i *Inventory) Pending() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pending
}

// pend adds to the number of pending machines. It notifies observers when there is one, and when there is none any more. i.mu must be held.
func (i *Inventory) pend(n int) {
	before := i.pending
	if i.pending += n; (before == 0) != (i.pending == 0) {
		i.observed.observers.Notify()
	}
}

// ObserveNode records the report of a registered Node.
func (i *Inventory) ObserveNode(name string, n Node) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, changed := i.nodes.set(name, n); changed {
		i.learn(name)
	}
}

// ForgetNode records that a Node is gone.
func (i *Inventory) ForgetNode(name string) {
	i.observed.Forget(name)
	i.kubelets.Forget(name)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.nodes.remove(name)
}

// learn records the report and the zone of a node whose Machine is known. i.mu must be held.
func (i *Inventory) learn(name string) {
	n := i.nodes.objects[name]
	nodeClaim, ok := i.machines.keys[n.ProviderID]
	if !ok {
		return
	}
	m := i.machines.objects[nodeClaim]
	if zone := i.nodeZone(m); zone != m.NodeZone {
		before := m.Origin
		m.NodeZone = zone
		i.machines.objects[nodeClaim] = m
		i.countOrigin(m.Origin, 1)
		i.countOrigin(before, -1)
	}
	if m.Source != "" && m.ContentHash != "" {
		revision := Revision{m.Source, m.ContentHash, m.BootstrapHash, m.NodeClassHash}
		i.observed.Observe(name, revision, n.Capacity, n.Allocatable)
		i.kubelets.Observe(name, revision.hardware(), n.Kubelet)
	}
}

// nodeZone returns the zone of a machine's Node if the machine was launched without one; otherwise the node's is the machine's.
// i.mu must be held.
func (i *Inventory) nodeZone(m Machine) string {
	name, ok := i.nodes.keys[m.ProviderID]
	if zone := i.nodes.objects[name].Zone; ok && m.ProviderID != "" && m.Zone == offering.DefaultZone && zone != m.Zone {
		return zone
	}
	return ""
}

// nodeOf returns the tracked fields of a Node, or false if Karpenter hasn't registered it. A registered Node's
// Machine has its provider ID.
func nodeOf(n *corev1.Node) (Node, bool) {
	return Node{
		ProviderID: n.Spec.ProviderID, Capacity: amountsOf(n.Status.Capacity), Allocatable: amountsOf(n.Status.Allocatable),
		Zone: n.Labels[corev1.LabelTopologyZone], Kubelet: n.Status.NodeInfo.KubeletVersion,
	}, n.Labels[karpv1.NodeRegisteredLabelKey] == "true"
}

func amountsOf(list corev1.ResourceList) Amounts {
	return Amounts{
		MilliCPU: list.Cpu().MilliValue(), Memory: list.Memory().Value(), EphemeralStorage: list.StorageEphemeral().Value(),
		Pods: list.Pods().Value(),
	}
}
