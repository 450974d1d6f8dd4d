// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// Rejections tracks for each NodePool the offerings whose machines can't be created: the management cluster rejects them, or
// they can't be built. It is safe for concurrent use.
//
// They aren't in Unavailable: a policy may reject one NodePool's machines for its labels, and a patch of one node class may
// fail, while the same offering works for every other NodePool.
type Rejections struct {
	clock clock.PassiveClock

	mu    sync.RWMutex
	pools map[string]*Unavailable
}

// NewRejections returns an empty set whose entries expire by clk.
func NewRejections(clk clock.PassiveClock) *Rejections {
	return &Rejections{clock: clk, pools: map[string]*Unavailable{}}
}

// Mark makes an offering unavailable to a NodePool with the back-off of Unavailable.Mark, and returns until when.
func (r *Rejections) Mark(nodePool string, key Key, reason string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, pool := range r.pools {
		if pool.isEmpty() {
			delete(r.pools, name) // the NodePool works again, or is gone
		}
	}
	pool, ok := r.pools[nodePool]
	if !ok {
		pool = NewUnavailable(r.clock)
		r.pools[nodePool] = pool
	}
	return pool.Mark(key, reason)
}

// Works records that a machine of a NodePool's offering was created: a later rejection starts with the shortest back-off.
func (r *Rejections) Works(nodePool string, key Key) {
	if pool := r.pool(nodePool); pool != nil {
		pool.Works(key, r.clock.Now())
	}
}

// Entry returns a NodePool's unavailable offering; false if that is available.
func (r *Rejections) Entry(nodePool string, key Key) (Entry, bool) {
	if pool := r.pool(nodePool); pool != nil {
		return pool.Entry(key)
	}
	return Entry{}, false
}

// Entries returns the unavailable offerings of all NodePools, in any order.
func (r *Rejections) Entries() []Entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var entries []Entry
	for _, pool := range r.pools {
		entries = append(entries, pool.Entries()...)
	}
	return entries
}

// Offered returns instance types as a NodePool gets them: those with an offering that was rejected are copied, and the
// offering isn't available. Without any, the common case, it returns the instance types themselves.
func (r *Rejections) Offered(nodePool string, instanceTypes []*karpcloudprovider.InstanceType) []*karpcloudprovider.InstanceType {
	pool := r.pool(nodePool)
	if pool == nil {
		return instanceTypes
	}
	rejected := map[string]bool{}
	for _, entry := range pool.Entries() {
		rejected[entry.InstanceType] = true
	}
	if len(rejected) == 0 {
		return instanceTypes
	}
	offered := make([]*karpcloudprovider.InstanceType, len(instanceTypes))
	for i, it := range instanceTypes {
		if rejected[it.Name] {
			it = Closed(it, func(o *karpcloudprovider.Offering) bool {
				_, is := pool.Entry(KeyOf(it.Name, o))
				return is
			})
		}
		offered[i] = it
	}
	return offered
}

// Closed returns a copy of an instance type in which the offerings that closes selects aren't available.
func Closed(it *karpcloudprovider.InstanceType, closes func(*karpcloudprovider.Offering) bool) *karpcloudprovider.InstanceType {
	offerings := make(karpcloudprovider.Offerings, len(it.Offerings))
	for i, o := range it.Offerings {
		if closes(o) {
			closed := *o
			closed.Available = false
			o = &closed
		}
		offerings[i] = o
	}
	return With(it, offerings)
}

// With returns a copy of an instance type with other offerings.
func With(it *karpcloudprovider.InstanceType, offerings karpcloudprovider.Offerings) *karpcloudprovider.InstanceType {
	return &karpcloudprovider.InstanceType{
		Name: it.Name, Requirements: it.Requirements, Offerings: offerings,
		Capacity: it.Capacity, DynamicResources: it.DynamicResources, VolumeAttachmentLimits: it.VolumeAttachmentLimits, Overhead: it.Overhead,
	}
}

func (r *Rejections) pool(nodePool string) *Unavailable {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pools[nodePool]
}
