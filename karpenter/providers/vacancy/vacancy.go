// SPDX-License-Identifier: Apache-2.0

// Package vacancy holds the capacity of nodes that Karpenter terminates before it launches their replacements, because nothing is left to
// launch these beside them: a slot of a reservation, one of the machines that a template may have, a part of the cluster's CapacityLease.
// Until the replacement is initialized, neither another cluster of the account nor another NodePool gets it, and the NodePool's disruption
// budget counts it. Only the process that terminated a node holds its vacancy.
package vacancy

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	// HoldTimeout is how long a vacancy is held while nothing is launched into it, from when the Machine has gone.
	HoldTimeout = 15 * time.Minute
	// MaxAge is how long it is held at most: its replacements may fail for ever.
	MaxAge = 2 * time.Hour
)

// Vacancy of a node.
type Vacancy struct {
	// NodeClaim that was terminated, and its NodePool.
	NodeClaim, NodePool string
	// Source and Offering of its Machine.
	Source   string
	Offering offering.Key
	// Full describes the full capacity. NoSpareHost: the infrastructure has no spare host.
	Full        string
	NoSpareHost bool
	// Filler is the NodeClaim that was launched into it; empty for none.
	Filler string
	// Since is when the terminated Machine was gone, and Empty since when nothing is in the vacancy; zero while that isn't so.
	Since, Empty time.Time

	// holder is the NodeClaim for which the CapacityLease's part is held: the terminated one, or the latest replacement.
	holder string
}

// Config of a Keeper.
type Config struct {
	// Guest reads NodePools, NodeClaims and pods from the cache.
	Guest     client.Client
	Clock     clock.PassiveClock
	Capacity  capacityprovider.Limiter
	Inventory *inventory.Inventory
	// Unavailable are the offerings that failed lately.
	Unavailable *offering.Unavailable
	Recorder    events.Recorder
}

// Keeper of the cluster's vacancies. It is safe for concurrent use.
type Keeper struct {
	Config
	// observers are notified when a vacancy opens, is filled or ends.
	observers change.Notifier

	mu        sync.Mutex
	vacancies []*Vacancy // in the order in which they came
}

// New returns an empty Keeper.
func New(config Config) *Keeper { return &Keeper{Config: config} }

// OnChange calls f whenever a vacancy opens, is filled or ends. f must neither block nor call the Keeper.
func (k *Keeper) OnChange(f func()) { k.observers.Add(f) }

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (k *Keeper) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	_, err := informer.WatchMachines(ctx, management, owns, func(*clusterv1.Machine) {},
		func(m *clusterv1.Machine) { k.Release(v1alpha1.NodeClaimOf(m)) })
	return err
}

// Hold holds the vacancy that the Machine of a terminated NodeClaim will leave. A second call for the same NodeClaim changes nothing.
func (k *Keeper) Hold(nodeClaim *karpv1.NodeClaim, full string, noSpareHost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, exists := k.Inventory.Machine(nodeClaim.UID)
	// A NodeClaim that was launched into a vacancy leaves that one again.
	known := func(v *Vacancy) bool { return v.NodeClaim == nodeClaim.Name || v.holder == nodeClaim.Name }
	if !exists || slices.ContainsFunc(k.vacancies, known) {
		return
	}
	k.Capacity.Keep(nodeClaim.Name)
	k.vacancies = append(k.vacancies, &Vacancy{
		NodeClaim: nodeClaim.Name, NodePool: nodeClaim.Labels[karpv1.NodePoolLabelKey], Source: m.Source, Offering: m.Key,
		Full: full, NoSpareHost: noSpareHost, holder: nodeClaim.Name,
	})
}

// Holders returns the holders of a NodePool's vacancies, by which a Limiter identifies them.
func (k *Keeper) Holders(nodePool string) []string {
	var holders []string
	for _, v := range k.All() {
		if v.NodePool == nodePool {
			holders = append(holders, v.holder)
		}
	}
	return holders
}

// OthersOf returns how many vacancies of other NodePools are empty for machines of a source.
func (k *Keeper) OthersOf(nodePool, source string) int {
	return k.count(func(v *Vacancy) bool { return v.NodePool != nodePool && !v.Empty.IsZero() && v.Source == source })
}

// OthersIn returns how many vacancies of other NodePools are empty in a reservation.
func (k *Keeper) OthersIn(nodePool, reservation string) int {
	return k.count(func(v *Vacancy) bool {
		return v.NodePool != nodePool && !v.Empty.IsZero() && v.Offering.Reservation == reservation
	})
}

// Count returns how many nodes of a NodePool have gone and aren't replaced yet. Karpenter core counts the others.
func (k *Keeper) Count(nodePool string) int {
	return k.count(func(v *Vacancy) bool { return v.NodePool == nodePool && !v.Since.IsZero() })
}

func (k *Keeper) count(matches func(*Vacancy) bool) (n int) {
	for _, v := range k.All() {
		if matches(&v) {
			n++
		}
	}
	return n
}

// All returns copies of the vacancies.
func (k *Keeper) All() []Vacancy {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Vacancy, 0, len(k.vacancies))
	for _, v := range k.vacancies {
		all = append(all, *v)
	}
	return all
}

// Fill records that a NodeClaim is launched into a vacancy: the one whose holder's part of the CapacityLease it took over, if it did, else
// one of its NodePool from the same source or in the same reservation. It returns the NodeClaim that has left it; empty for none. A second
// call for the same NodeClaim returns the same.
func (k *Keeper) Fill(nodeClaim *karpv1.NodeClaim, took, source, reservation string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var fits *Vacancy
	for _, v := range k.vacancies {
		switch {
		case v.Filler == nodeClaim.Name:
			return v.NodeClaim
		case took != "" && v.holder == took:
			k.fill(v, nodeClaim.Name)
			return v.NodeClaim
		case fits == nil && !v.Empty.IsZero() && v.NodePool == nodeClaim.Labels[karpv1.NodePoolLabelKey] && v.serves(source, reservation):
			fits = v
		}
	}
	if fits == nil || took != "" {
		return ""
	}
	k.Capacity.Release(fits.holder) // it has taken what it needs from elsewhere
	k.fill(fits, nodeClaim.Name)
	return fits.NodeClaim
}

func (v *Vacancy) serves(source, reservation string) bool {
	if v.Offering.Reservation != "" {
		return v.Offering.Reservation == reservation
	}
	return reservation == "" && v.Source == source
}

func (k *Keeper) fill(v *Vacancy, nodeClaim string) {
	v.Filler, v.holder, v.Empty = nodeClaim, nodeClaim, time.Time{}
	if v.Since.IsZero() {
		v.Since = k.Clock.Now() // the Limiter has seen the Machine go before Release
	}
	k.observers.Notify()
}

// Release records that a NodeClaim has no Machine any more, or never will. The vacancy that it has left, or was launched into, is empty.
func (k *Keeper) Release(nodeClaim string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vacancies {
		if v.Filler == nodeClaim || v.NodeClaim == nodeClaim && v.Since.IsZero() {
			v.Filler, v.Empty = "", k.Clock.Now()
			if v.Since.IsZero() {
				v.Since = v.Empty
			}
			k.observers.Notify()
		}
	}
}

// End ends a vacancy: the replacement is initialized, or none is needed any more.
func (k *Keeper) End(nodeClaim string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.vacancies = slices.DeleteFunc(k.vacancies, func(v *Vacancy) bool {
		if v.NodeClaim != nodeClaim {
			return false
		}
		k.Capacity.Release(v.holder)
		k.observers.Notify()
		return true
	})
}

// expired reports whether a vacancy has been held for as long as it may.
func (v *Vacancy) expired(now time.Time) bool {
	return !v.Since.IsZero() && now.Sub(v.Since) >= MaxAge || !v.Empty.IsZero() && now.Sub(v.Empty) >= HoldTimeout
}
