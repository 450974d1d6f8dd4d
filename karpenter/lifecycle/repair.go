// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// repair replaces what a MachineHealthCheck has marked, but not when it has marked too much: then it is more likely that the check,
// or what it looks through, is ill. Cluster API leaves the act to a Machine's owner, which for ours is its NodeClaim.
type repair struct {
	Config

	mu sync.Mutex
	// held are the NodeClaims that wait, by NodePool.
	held map[string]sets.Set[string]
}

func newRepair(config Config) *repair {
	return &repair{Config: config, held: map[string]sets.Set[string]{}}
}

// Unhealthy tells whether a MachineHealthCheck wants a Machine to be replaced.
func Unhealthy(m *clusterv1.Machine) bool {
	return conditionOf(m, clusterv1.MachineOwnerRemediatedCondition).Status == metav1.ConditionFalse
}

// Repairable is how many of a NodePool's machines may be unhealthy at once for them to be replaced: 20 %, rounded up, as in
// Karpenter's own node repair.
func Repairable(machines int) int { return (machines + 4) / 5 }

func (r *repair) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if !Unhealthy(m) {
		r.forget(nodeClaim)
		return outcome{}, nil
	}
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	unhealthy, all, err := r.count(ctx, pool)
	if err != nil {
		return outcome{}, err
	}
	why := detail(conditionOf(m, clusterv1.MachineHealthCheckSucceededCondition))
	if unhealthy > Repairable(all) {
		if r.hold(nodeClaim) {
			log.FromContext(ctx).Info("not replacing an unhealthy machine: too many are", "nodePool", pool, "unhealthy", unhealthy, "machines", all)
			r.Recorder.Publish(warning(nodeClaim, RepairHeldReason,
				"a MachineHealthCheck has marked %d of %d machines, more than the %d that are replaced at a time; none is until fewer are marked. This one: %s",
				unhealthy, all, Repairable(all), why))
		}
		// What changes the count looks at it again.
		return outcome{}, nil
	}
	if gone, err := r.giveUp(ctx, nodeClaim, metrics.UnhealthyReason); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("machine is unhealthy", "nodePool", pool, "reason", why)
	r.Recorder.Publish(warning(nodeClaim, MachineUnhealthyReason,
		"a MachineHealthCheck has marked Machine %s: %s; its node is drained and replaced", klog.KObj(m), why))
	return outcome{done: true}, nil
}

// count returns how many machines of a NodePool are unhealthy, and how many there are. Without a NodePool all machines count.
func (r *repair) count(ctx context.Context, pool string) (unhealthy, all int, err error) {
	machines, err := r.Machines.List(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range machines {
		if pool != "" && machines[i].Labels[karpv1.NodePoolLabelKey] != pool {
			continue
		}
		all++
		if Unhealthy(&machines[i]) {
			unhealthy++
		}
	}
	return unhealthy, all, nil
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

func (r *repair) forget(nodeClaim *karpv1.NodeClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	if r.held[pool].Delete(nodeClaim.Name); r.held[pool].Len() == 0 {
		delete(r.held, pool)
	}
}

// waiting returns the NodeClaims whose repair may begin when a Machine has changed.
func (r *repair) waiting(m *clusterv1.Machine) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := r.held[""].UnsortedList()
	if pool := m.Labels[karpv1.NodePoolLabelKey]; pool != "" {
		names = append(names, r.held[pool].UnsortedList()...)
	}
	return names
}
