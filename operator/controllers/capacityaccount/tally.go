// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpenterv1alpha1 "github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

// burst is how long a change of Machines waits for others, so that an account is tallied once for all of them.
const burst = 100 * time.Millisecond

// tallied is a Machine: the Cluster of its label, whether or not it shares its namespace, and its form.
type tallied struct {
	home
	form
}

// form is what Machines of the same offering have in common.
type form struct {
	capacity.Machine
	prices v1alpha1.MachinePrices
}

// tally counts Karpenter's Machines by control-plane namespace, Cluster and form, as events of the cache tell of them. So nothing is listed when an
// account is reconciled.
type tally struct {
	mu       sync.Mutex
	machines map[client.ObjectKey]tallied
	counts   map[home]map[form]int64
	// clusters are the places of a namespace that have Machines.
	clusters map[string]map[home]bool
	// accounts that count a namespace's Machines.
	accounts map[string]map[string]bool
}

func newTally() *tally {
	return &tally{
		machines: map[client.ObjectKey]tallied{}, counts: map[home]map[form]int64{}, clusters: map[string]map[home]bool{}, accounts: map[string]map[string]bool{},
	}
}

// set records a Machine, and reports whether that changes a count.
func (t *tally) set(machine client.Object) bool {
	if !karpenterv1alpha1.MadeForNodeClaim(machine) {
		return t.remove(client.ObjectKeyFromObject(machine))
	}
	size, prices := v1alpha1.MachineOf(machine)
	now := tallied{home{machine.GetNamespace(), machine.GetLabels()[clusterv1.ClusterNameLabel]}, form{size, prices}}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := client.ObjectKeyFromObject(machine)
	before, known := t.machines[key]
	if known && before == now {
		return false
	}
	if known {
		t.add(before, -1)
	}
	t.machines[key] = now
	t.add(now, 1)
	return true
}

func (t *tally) remove(key client.ObjectKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.machines[key]
	if known {
		delete(t.machines, key)
		t.add(before, -1)
	}
	return known
}

func (t *tally) add(machine tallied, count int64) {
	at := machine.home
	if t.counts[at] == nil {
		t.counts[at] = map[form]int64{}
		if t.clusters[at.namespace] == nil {
			t.clusters[at.namespace] = map[home]bool{}
		}
		t.clusters[at.namespace][at] = true
	}
	counts := t.counts[at]
	if counts[machine.form] += count; counts[machine.form] == 0 {
		delete(counts, machine.form)
	}
	if len(counts) > 0 {
		return
	}
	delete(t.counts, at)
	if delete(t.clusters[at.namespace], at); len(t.clusters[at.namespace]) == 0 {
		delete(t.clusters, at.namespace)
	}
}

// of returns what Machines take by the rules, how many there are, and calls each with each form: those of a Cluster in a shared namespace,
// all in a dedicated one.
func (t *tally) of(at home, rules []capacity.Rule, each func(f form, count int64)) (used capacity.Amounts, machines int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	used = capacity.Amounts{}
	for counting := range t.clusters[at.namespace] {
		if at.cluster != "" && counting != at {
			continue
		}
		for f, count := range t.counts[counting] {
			machines += count
			for pool, amount := range capacity.Charges(rules, f.Machine) {
				// A pool's largest amount bounds what forged sizes sum up to.
				used[pool] = min(used[pool]+min(amount, v1alpha1.MaxAmount/max(count, 1))*count, v1alpha1.MaxAmount)
			}
			each(f, count)
		}
	}
	return used, machines
}

// follow lets changes of the namespaces' Machines reconcile an account, and no others.
func (t *tally) follow(account string, namespaces map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for namespace, accounts := range t.accounts {
		if delete(accounts, account); len(accounts) == 0 {
			delete(t.accounts, namespace)
		}
	}
	for namespace := range namespaces {
		if t.accounts[namespace] == nil {
			t.accounts[namespace] = map[string]bool{}
		}
		t.accounts[namespace][account] = true
	}
}

func (t *tally) enqueue(namespace string, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for account := range t.accounts[namespace] {
		queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: account}}, burst)
	}
}

// handler keeps the tally and reconciles accounts.
func (t *tally) handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	set := func(object client.Object, q queue) {
		if t.set(object) {
			t.enqueue(object.GetNamespace(), q)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { set(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { set(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if t.remove(client.ObjectKeyFromObject(e.Object)) {
				t.enqueue(e.Object.GetNamespace(), q)
			}
		},
	}
}

// usedBefore returns what Machines that were created before a time take.
func usedBefore(list *clusterv1.MachineList, before time.Time, rules []capacity.Rule) capacity.Amounts {
	used := capacity.Amounts{}
	for i := range list.Items {
		machine := &list.Items[i]
		if !karpenterv1alpha1.MadeForNodeClaim(machine) || machine.CreationTimestamp.After(before) {
			continue
		}
		size, _ := v1alpha1.MachineOf(machine)
		for pool, amount := range capacity.Charges(rules, size) {
			used[pool] = min(used[pool]+amount, v1alpha1.MaxAmount)
		}
	}
	return used
}
