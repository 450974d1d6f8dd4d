// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Origin is what a machine was launched from and as. Karpenter replaces a node whose instance type is missing from
// GetInstanceTypes, so it stays there as long as a machine has it, even if it can't be launched or read any more.
type Origin struct {
	// Source is the shape source, as v1alpha1.ShapeSourceAnnotation names it; empty if the machine has no such
	// annotation.
	Source string
	// Key is the chosen offering.
	offering.Key
	// Price in US dollars an hour at launch; 0 if the machine has none.
	Price float64
}

// Compare orders origins by offering, source and price.
func (f Origin) Compare(other Origin) int {
	return cmp.Or(f.Key.Compare(other.Key), cmp.Compare(f.Source, other.Source), cmp.Compare(f.Price, other.Price))
}

// origins counts the machines of each origin. It is safe for concurrent use.
type origins struct {
	mu sync.Mutex
	// machines by NodeClaim UID.
	machines map[types.UID]Origin
	counts   map[Origin]int

	sequence *atomic.Uint64
}

func newOrigins(sequence *atomic.Uint64) *origins {
	return &origins{machines: map[types.UID]Origin{}, counts: map[Origin]int{}, sequence: sequence}
}

// Observe records a NodeClaim's machine and its origin.
func (o *origins) Observe(nodeClaim types.UID, origin Origin) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, ok := o.machines[nodeClaim]
	if ok && before == origin {
		return
	}
	o.machines[nodeClaim] = origin
	if o.counts[origin]++; o.counts[origin] == 1 {
		o.sequence.Add(1)
	}
	if ok {
		o.remove(before)
	}
}

// Forget records that a NodeClaim's machine is gone.
func (o *origins) Forget(nodeClaim types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, ok := o.machines[nodeClaim]; ok {
		delete(o.machines, nodeClaim)
		o.remove(before)
	}
}

// All returns the origins of all machines, in order.
func (o *origins) All() []Origin {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.SortedFunc(maps.Keys(o.counts), Origin.Compare)
}

// Sequence changes whenever a result of All changes. It neither locks nor allocates.
func (o *origins) Sequence() uint64 { return o.sequence.Load() }

func (o *origins) remove(origin Origin) {
	if o.counts[origin]--; o.counts[origin] <= 0 {
		delete(o.counts, origin)
		o.sequence.Add(1)
	}
}

// OriginOf reads a Machine's origin.
func OriginOf(m *clusterv1.Machine) Origin {
	price, err := strconv.ParseFloat(m.Annotations[v1alpha1.PriceAnnotation], 64)
	// This form rejects NaN too, which compares false with everything.
	if err != nil || !(price >= 0 && price < math.MaxFloat64) {
		price = 0
	}
	return Origin{
		Source: m.Annotations[v1alpha1.ShapeSourceAnnotation],
		Key: offering.Key{
			InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
			Zone:         m.Labels[corev1.LabelTopologyZone],
			CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
		},
		Price: price,
	}
}
