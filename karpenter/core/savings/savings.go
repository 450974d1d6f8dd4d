// SPDX-License-Identifier: Apache-2.0

// Package savings counts by how much Karpenter lowers what a cluster's machines cost an hour, when it consolidates nodes or replaces drifted ones.
//
// Upstream gap: core tracks which NodeClaims replace which, and reports what it estimates to save in events and logs only
// (docs/upstream/disruption-savings.md).
package savings

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Ledger counts prices of NodeClaims that Karpenter core's disruption queue deletes, and of those that replace them. It is a
// prometheus.Collector of two counters; what one has more than the other was saved. Each is by NodePool and by the reason of the disruption.
//
// Prices are those at which the machines were chosen, as NodeClaims have them in a label. A command is left out as a whole if one of its
// NodeClaims has none.
type Ledger struct {
	removed, added *prometheus.CounterVec

	mu    sync.Mutex
	queue *disruption.Queue
	// entries of commands that are still in the queue. It may delete a NodeClaim several times, and all of a command's at once.
	entries map[*disruption.Command]*entry
}

// entry is what was counted of a command.
type entry struct {
	unpriced bool
	removed  map[types.UID]bool
}

var _ prometheus.Collector = (*Ledger)(nil)

// New returns a Ledger that counts nothing before Follow.
func New() *Ledger {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.Namespace, Subsystem: "clusterapi", Name: name,
			Help: help + " in US dollars an hour, by the prices at which they were chosen. Labeled by nodepool and reason.",
		}, []string{metrics.NodePoolLabel, metrics.ReasonLabel})
	}
	return &Ledger{
		removed: counter("disruption_removed_dollars_per_hour_total", "What machines cost that consolidation or drift removed,"),
		added:   counter("disruption_added_dollars_per_hour_total", "What machines cost that replaced those that consolidation or drift removed,"),
		entries: map[*disruption.Command]*entry{},
	}
}

// Describe implements prometheus.Collector.
func (l *Ledger) Describe(descs chan<- *prometheus.Desc) {
	l.removed.Describe(descs)
	l.added.Describe(descs)
}

// Collect implements prometheus.Collector.
func (l *Ledger) Collect(samples chan<- prometheus.Metric) {
	l.removed.Collect(samples)
	l.added.Collect(samples)
}

// Follow begins to count what a queue deletes with a client that Guest returned.
func (l *Ledger) Follow(queue *disruption.Queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = queue
}

// Guest wraps Karpenter core's guest client: it counts the NodeClaims that the disruption queue has deleted with it.
func Guest(guest client.Client, ledger *Ledger) client.Client {
	return counting{Client: guest, ledger: ledger}
}

type counting struct {
	client.Client
	ledger *Ledger
}

// Delete implements client.Client.
func (c counting) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	err := c.Client.Delete(ctx, object, opts...)
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && err == nil {
		c.ledger.deleted(ctx, c.Client, nodeClaim)
	}
	return err
}

// deleted counts a NodeClaim if it was the queue that deleted it. Replacements count once, with the first NodeClaim that they replace; they have
// been initialized by then.
func (l *Ledger) deleted(ctx context.Context, guest client.Reader, nodeClaim *karpv1.NodeClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	command := l.commandOf(nodeClaim)
	if command == nil {
		return
	}
	reason := strings.ToLower(string(command.Reason()))
	counted, found := l.entries[command]
	if !found {
		replacements, complete := read(ctx, guest, command)
		counted = &entry{unpriced: !complete, removed: map[types.UID]bool{}}
		l.entries[command] = counted
		if complete {
			for _, replacement := range replacements {
				count(l.added, replacement, reason)
			}
		}
	}
	if !counted.unpriced && !counted.removed[nodeClaim.UID] {
		counted.removed[nodeClaim.UID] = true
		count(l.removed, nodeClaim, reason)
	}
}

// commandOf returns the command for which the queue deletes a NodeClaim. Others delete NodeClaims too, such as one that expires while it waits
// for its replacement; the queue has objects of its own. It forgets what was counted of commands that the queue has completed.
func (l *Ledger) commandOf(nodeClaim *karpv1.NodeClaim) *disruption.Command {
	if l.queue == nil {
		return nil
	}
	l.queue.RLock()
	defer l.queue.RUnlock()
	maps.DeleteFunc(l.entries, func(command *disruption.Command, _ *entry) bool {
		return !slices.ContainsFunc(command.Candidates, func(c *disruption.Candidate) bool { return l.queue.ProviderIDToCommand[c.ProviderID()] == command })
	})
	command := l.queue.ProviderIDToCommand[nodeClaim.Status.ProviderID]
	if command == nil || !slices.ContainsFunc(command.Candidates, func(c *disruption.Candidate) bool { return c.NodeClaim == nodeClaim }) {
		return nil
	}
	return command
}

// read reads the replacements of a command from the cache, and reports whether all its NodeClaims have prices.
func read(ctx context.Context, guest client.Reader, command *disruption.Command) (replacements []*karpv1.NodeClaim, complete bool) {
	for _, of := range command.Replacements {
		replacement := &karpv1.NodeClaim{}
		if err := guest.Get(ctx, client.ObjectKey{Name: of.Name}, replacement); err != nil {
			return nil, false // gone already: what it cost isn't known any more
		}
		replacements = append(replacements, replacement)
	}
	complete = !slices.ContainsFunc(replacements, unpriced) &&
		!slices.ContainsFunc(command.Candidates, func(c *disruption.Candidate) bool { return unpriced(c.NodeClaim) })
	return replacements, complete
}

func count(counter *prometheus.CounterVec, nodeClaim *karpv1.NodeClaim, reason string) {
	dollars, _ := price(nodeClaim)
	counter.WithLabelValues(nodeClaim.Labels[karpv1.NodePoolLabelKey], reason).Add(dollars)
}

func unpriced(nodeClaim *karpv1.NodeClaim) bool {
	_, ok := price(nodeClaim)
	return !ok
}

func price(nodeClaim *karpv1.NodeClaim) (dollars float64, ok bool) {
	dollars, err := strconv.ParseFloat(nodeClaim.Labels[v1alpha1.NodePriceLabel], 64)
	return dollars, err == nil && dollars >= 0 && !math.IsInf(dollars, 0)
}
