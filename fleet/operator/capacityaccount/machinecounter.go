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

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/division"
)

// burst is how long a change of Machines waits for others, so that an account is reconciled once for all of them.
const burst = 100 * time.Millisecond

// countedMachine is a Machine: the Cluster of its label, whether or not it shares its namespace, and its size and prices.
type countedMachine struct {
	home
	capacity.Priced
}

// machineCounter counts Karpenter's Machines by control-plane namespace, Cluster, size and prices, as events of the cache report them. So
// nothing is listed when an account is reconciled.
type machineCounter struct {
	mu       sync.Mutex
	machines map[client.ObjectKey]countedMachine
	// counts by namespace and Cluster.
	counts map[string]map[string]map[capacity.Priced]int64
	// accounts that count a namespace's Machines.
	accounts map[string]map[string]bool
}

func newMachineCounter() *machineCounter {
	return &machineCounter{
		machines: map[client.ObjectKey]countedMachine{}, counts: map[string]map[string]map[capacity.Priced]int64{},
		accounts: map[string]map[string]bool{},
	}
}

// set records a Machine, and reports whether that changes a count.
func (c *machineCounter) set(machine client.Object) bool {
	if !v1alpha1.MadeForNodeClaim(machine) {
		return c.remove(client.ObjectKeyFromObject(machine))
	}
	now := countedMachine{home{machine.GetNamespace(), machine.GetLabels()[clusterv1.ClusterNameLabel]}, annotation.MachineOf(machine)}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client.ObjectKeyFromObject(machine)
	before, known := c.machines[key]
	if known && before == now {
		return false
	}
	if known {
		c.add(before, -1)
	}
	c.machines[key] = now
	c.add(now, 1)
	return true
}

func (c *machineCounter) remove(key client.ObjectKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.machines[key]
	if known {
		delete(c.machines, key)
		c.add(before, -1)
	}
	return known
}

func (c *machineCounter) add(machine countedMachine, count int64) {
	clusters := c.counts[machine.namespace]
	if clusters == nil {
		clusters = map[string]map[capacity.Priced]int64{}
		c.counts[machine.namespace] = clusters
	}
	counts := clusters[machine.cluster]
	if counts == nil {
		counts = map[capacity.Priced]int64{}
		clusters[machine.cluster] = counts
	}
	if counts[machine.Priced] += count; counts[machine.Priced] == 0 {
		delete(counts, machine.Priced)
	}
	if len(counts) == 0 {
		delete(clusters, machine.cluster)
	}
	if len(clusters) == 0 {
		delete(c.counts, machine.namespace)
	}
}

// count returns the charges of Machines by the rules, their number, and calls each with equal ones: those of a Cluster in a shared
// namespace, all in a dedicated one.
func (c *machineCounter) count(at home, rules []division.Rule, each func(capacity.Priced, int64)) (used division.Amounts, machines int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used = division.Amounts{}
	for cluster, counts := range c.counts[at.namespace] {
		if at.cluster != "" && cluster != at.cluster {
			continue
		}
		for m, count := range counts {
			machines += count
			for pool, amount := range division.Charges(rules, m.Machine) {
				// A pool's largest amount bounds the sum of forged sizes.
				used[pool] = min(used[pool]+min(amount, autonodev1alpha1.MaxAmount/max(count, 1))*count, autonodev1alpha1.MaxAmount)
			}
			each(m, count)
		}
	}
	return used, machines
}

// follow lets changes of the namespaces' Machines reconcile an account, and no others.
func (c *machineCounter) follow(account string, namespaces map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace, accounts := range c.accounts {
		if delete(accounts, account); len(accounts) == 0 {
			delete(c.accounts, namespace)
		}
	}
	for namespace := range namespaces {
		if c.accounts[namespace] == nil {
			c.accounts[namespace] = map[string]bool{}
		}
		c.accounts[namespace][account] = true
	}
}

func (c *machineCounter) enqueue(namespace string, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for account := range c.accounts[namespace] {
		queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: account}}, burst)
	}
}

// handler keeps the counts and reconciles accounts.
func (c *machineCounter) handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	set := func(object client.Object, q queue) {
		if c.set(object) {
			c.enqueue(object.GetNamespace(), q)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { set(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { set(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if c.remove(client.ObjectKeyFromObject(e.Object)) {
				c.enqueue(e.Object.GetNamespace(), q)
			}
		},
	}
}

// usedBefore returns the charges of Machines that were created before a time.
func usedBefore(list *clusterv1.MachineList, before time.Time, rules []division.Rule) division.Amounts {
	used := division.Amounts{}
	for i := range list.Items {
		machine := &list.Items[i]
		if !v1alpha1.MadeForNodeClaim(machine) || machine.CreationTimestamp.After(before) {
			continue
		}
		for pool, amount := range division.Charges(rules, annotation.MachineOf(machine).Machine) {
			used[pool] = min(used[pool]+amount, autonodev1alpha1.MaxAmount)
		}
	}
	return used
}
