// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// repair replaces what a MachineHealthCheck has marked, but not when it has marked too much: then it is more likely that the check,
// or what it looks through, is ill. Cluster API leaves the act to a Machine's owner, which for ours is its NodeClaim.
//
// What changes a NodePool's count wakes one of the NodeClaims that wait, and that one the others when it may be replaced. To count takes
// a look at every Machine, so those that count at once share it. A mass outage would cost its square otherwise.
type repair struct {
	Config
	tally tally

	mu sync.Mutex
	// wake lets a NodeClaim be looked at; nil as long as the controller doesn't run.
	wake func(nodeClaim string)
	// held are the NodeClaims that wait, by NodePool.
	held map[string]sets.Set[string]
}

func newRepair(config Config) *repair {
	return &repair{Config: config, held: map[string]sets.Set[string]{}, tally: tally{list: config.Machines.List}}
}

func (r *repair) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if !machine.Unhealthy(m) {
		r.forget(ctx, nodeClaim)
		return outcome{}, nil
	}
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	// Held before the count: what changes while it is being counted wakes it.
	first := r.hold(nodeClaim)
	counted, err := r.tally.count(ctx)
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
			log.FromContext(ctx).Info("not replacing an unhealthy machine: too many are", "nodePool", pool, "unhealthy", unhealthy, "machines", all)
			r.Recorder.Publish(warning(nodeClaim, RepairHeldReason,
				"a MachineHealthCheck has marked %d of %d machines, more than the %d that are replaced at a time; none is until fewer are unhealthy. This one: %s",
				unhealthy, all, machine.Repairable(all), why))
		}
		// What changes the count looks at it again.
		return outcome{}, nil
	}
	r.release(nodeClaim)
	if gone, err := r.giveUp(ctx, nodeClaim, metrics.UnhealthyReason); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("machine is unhealthy", "nodePool", pool, "reason", why)
	r.Recorder.Publish(warning(nodeClaim, MachineUnhealthyReason,
		"a MachineHealthCheck has marked Machine %s: %s; its node is drained and replaced", klog.KObj(m), why))
	return outcome{done: true}, nil
}

// hold remembers a NodeClaim that waits, and tells whether it hadn't waited yet.
func (r *repair) hold(nodeClaim *karpv1.NodeClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	if r.held[pool].Has(nodeClaim.Name) {
		return false
	}
	if r.held[pool] == nil {
		r.held[pool] = sets.New[string]()
	}
	r.held[pool].Insert(nodeClaim.Name)
	return true
}

// forget a NodeClaim that needs no repair any more. It may have been the one that was woken, so another is.
func (r *repair) forget(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	if r.drop(nodeClaim) {
		r.wakeAll(r.waiting(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey]))
	}
}

// drop tells whether the NodeClaim was held.
func (r *repair) drop(nodeClaim *karpv1.NodeClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	held := r.held[pool].Has(nodeClaim.Name)
	if r.held[pool].Delete(nodeClaim.Name); r.held[pool].Len() == 0 {
		delete(r.held, pool)
	}
	return held
}

// release lets every NodeClaim that waited with this one be looked at again.
func (r *repair) release(nodeClaim *karpv1.NodeClaim) {
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	r.mu.Lock()
	released := r.held[pool]
	delete(r.held, pool)
	r.mu.Unlock()
	r.wakeAll(released.Delete(nodeClaim.Name).UnsortedList())
}

// wakeBy says how NodeClaims are woken.
func (r *repair) wakeBy(wake func(nodeClaim string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake = wake
}

func (r *repair) wakeAll(names []string) {
	r.mu.Lock()
	wake := r.wake
	r.mu.Unlock()
	if wake == nil {
		return
	}
	for _, name := range names {
		wake(name)
	}
}

// waiting returns one of the NodeClaims that wait for a NodePool's count, if there is any. It is there: one that nobody would look at mustn't
// be the one that looks for all.
func (r *repair) waiting(ctx context.Context, pool string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.held[pool] {
		nodeClaim := &karpv1.NodeClaim{}
		if err := r.get(ctx, name, nodeClaim); err != nil || nodeClaim.UID != "" && nodeClaim.DeletionTimestamp == nil {
			return []string{name}
		}
		if r.held[pool].Delete(name); r.held[pool].Len() == 0 {
			delete(r.held, pool)
		}
	}
	return nil
}

// tally counts machines. Who asks while it is counting gets the next count, together with all others who do: what they have seen before they asked is
// in it.
type tally struct {
	list func(context.Context) ([]clusterv1.Machine, error)

	// turn is held while counting.
	turn sync.Mutex
	mu   sync.Mutex
	next *pass
}

type pass struct {
	once  sync.Once
	pools map[string]poolCount
	err   error
}

type poolCount struct{ unhealthy, all int }

// count returns how many machines of each NodePool are unhealthy, and how many there are; under "" those of all together.
func (t *tally) count(ctx context.Context) (map[string]poolCount, error) {
	t.mu.Lock()
	if t.next == nil {
		t.next = &pass{}
	}
	p := t.next
	t.mu.Unlock()
	p.once.Do(func() {
		t.turn.Lock()
		defer t.turn.Unlock()
		t.mu.Lock()
		t.next = nil
		t.mu.Unlock()
		p.pools, p.err = t.look(ctx)
	})
	return p.pools, p.err
}

func (t *tally) look(ctx context.Context) (map[string]poolCount, error) {
	machines, err := t.list(ctx)
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
