// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// repair replaces machines that a MachineHealthCheck has marked, unless it has marked too many: then the check
// itself, or the network that it sees them through, is the more likely fault. Cluster API leaves the replacement to a
// Machine's owner, which is the NodeClaim here.
//
// A change of a NodePool's count enqueues one of the held NodeClaims, and that one enqueues the others if it may be
// replaced. A count reads every Machine, so concurrent reconciles share one. Otherwise a mass outage would cost
// quadratic time.
type repair struct {
	Config
	counter machineCounter

	// enqueued holds the names of NodeClaims to reconcile. The controller reads it.
	enqueued chan event.TypedGenericEvent[string]

	mu sync.Mutex
	// blocked has the waiting NodeClaims, by NodePool.
	blocked map[string]sets.Set[string]
}

// enqueueBuffer is the number of NodeClaims that a reconcile can enqueue without waiting.
const enqueueBuffer = 1024

func newRepair(config Config) *repair {
	return &repair{Config: config, enqueued: make(chan event.TypedGenericEvent[string], enqueueBuffer),
		blocked: map[string]sets.Set[string]{}, counter: machineCounter{list: config.Machines.List}}
}

func (r *repair) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if !machine.Unhealthy(m) {
		r.forget(ctx, nodeClaim)
		return outcome{}, nil
	}
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	// Hold it before the count: a change during the count then enqueues it.
	first := r.hold(nodeClaim)
	counted, err := r.counter.count(ctx)
	if err != nil {
		if first {
			r.drop(nodeClaim)
		}
		return outcome{}, err
	}
	unhealthy, all := counted[pool].unhealthy, counted[pool].all
	why := detail(machine.Condition(m, clusterv1.MachineHealthCheckSucceededCondition))
	if unhealthy > machine.Repairable(all) {
		if first {
			log.FromContext(ctx).Info("not replacing an unhealthy machine: too many are unhealthy", "nodePool", pool, "unhealthy", unhealthy,
				"machines", all)
			r.Recorder.Publish(warning(nodeClaim, RepairHeldReason,
				"a MachineHealthCheck has marked %d of %d machines, more than the %d that are replaced at a time; "+
					"none is until fewer are unhealthy. This one: %s",
				unhealthy, all, machine.Repairable(all), why))
		}
		// A change of the count triggers the next reconcile.
		return outcome{}, nil
	}
	r.release(ctx, nodeClaim)
	if gone, err := r.giveUp(ctx, nodeClaim, metrics.UnhealthyReason); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("machine is unhealthy", "nodePool", pool, "reason", why)
	r.Recorder.Publish(warning(nodeClaim, MachineUnhealthyReason,
		"a MachineHealthCheck has marked Machine %s: %s; its node is drained and replaced", klog.KObj(m), why))
	return outcome{done: true}, nil
}

// hold adds a NodeClaim to the waiting ones, and reports whether it is new.
func (r *repair) hold(nodeClaim *karpv1.NodeClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	if r.blocked[pool].Has(nodeClaim.Name) {
		return false
	}
	if r.blocked[pool] == nil {
		r.blocked[pool] = sets.New[string]()
	}
	r.blocked[pool].Insert(nodeClaim.Name)
	return true
}

// forget removes a NodeClaim that needs no repair any more. It may have been the one that was enqueued, so another
// one is.
func (r *repair) forget(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	if r.drop(nodeClaim) {
		r.enqueue(ctx, r.waiting(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey]))
	}
}

// drop reports whether the NodeClaim was held.
func (r *repair) drop(nodeClaim *karpv1.NodeClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	known := r.blocked[pool].Has(nodeClaim.Name)
	if r.blocked[pool].Delete(nodeClaim.Name); r.blocked[pool].Len() == 0 {
		delete(r.blocked, pool)
	}
	return known
}

// release enqueues every NodeClaim that was held with this one.
func (r *repair) release(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	r.mu.Lock()
	released := r.blocked[pool]
	delete(r.blocked, pool)
	r.mu.Unlock()
	r.enqueue(ctx, released.Delete(nodeClaim.Name).UnsortedList())
}

// enqueue enqueues NodeClaims. It waits for room while the controller reads the earlier ones.
func (r *repair) enqueue(ctx context.Context, names []string) {
	for _, name := range names {
		select {
		case r.enqueued <- event.TypedGenericEvent[string]{Object: name}:
		case <-ctx.Done():
			return
		}
	}
}

// waiting returns one of a NodePool's held NodeClaims, if there is any. It skips NodeClaims that are gone: they
// wouldn't be reconciled, and so wouldn't enqueue the others.
func (r *repair) waiting(ctx context.Context, pool string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.blocked[pool] {
		nodeClaim := &karpv1.NodeClaim{}
		if err := r.get(ctx, name, nodeClaim); err != nil || nodeClaim.UID != "" && nodeClaim.DeletionTimestamp == nil {
			return []string{name}
		}
		if r.blocked[pool].Delete(name); r.blocked[pool].Len() == 0 {
			delete(r.blocked, pool)
		}
	}
	return nil
}

// machineCounter counts machines. Callers that arrive during a count share the next one, which includes every change that they
// have seen.
type machineCounter struct {
	list func(context.Context) ([]clusterv1.Machine, error)

	// counting is held while counting.
	counting sync.Mutex
	mu       sync.Mutex
	next     *pass
}

type pass struct {
	once  sync.Once
	pools map[string]poolCount
	err   error
}

type poolCount struct{ unhealthy, all int }

// count returns the unhealthy and all machines of each NodePool, with the total under "".
func (c *machineCounter) count(ctx context.Context) (map[string]poolCount, error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &pass{}
	}
	p := c.next
	c.mu.Unlock()
	p.once.Do(func() {
		c.counting.Lock()
		defer c.counting.Unlock()
		c.mu.Lock()
		c.next = nil
		c.mu.Unlock()
		p.pools, p.err = c.read(ctx)
	})
	return p.pools, p.err
}

func (c *machineCounter) read(ctx context.Context) (map[string]poolCount, error) {
	machines, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	pools := map[string]poolCount{}
	for i := range machines {
		unhealthy := machine.Unhealthy(&machines[i])
		pool := machines[i].Labels[karpv1.NodePoolLabelKey]
		for _, name := range sets.New("", pool).UnsortedList() {
			counted := pools[name]
			counted.all++
			if unhealthy {
				counted.unhealthy++
			}
			pools[name] = counted
		}
	}
	return pools, nil
}
