// SPDX-License-Identifier: Apache-2.0

// Package reclaim removes nodes whose machines take capacity that the hosted cluster has to return to the account that it shares with other
// clusters.
package reclaim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/pdb"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

// CapacityReclaimed is the reason of the disruption, and of the event on a NodeClaim and its Node. The message names the account, the pool
// and the clusters that need it. A NodePool's disruption budgets without reasons apply; the API has no name for this one.
const CapacityReclaimed = karpv1.DisruptionReason(autonodev1alpha1.CapacityReclaimedReason)

// maxGracePeriod is the longest time that pods have to end after the deadline, by their own terminationGracePeriodSeconds.
const maxGracePeriod = time.Hour

// Config of the method.
type Config struct {
	methods.Core
	// Reclaims returns the amounts that the cluster may keep of the account's pools.
	Reclaims func() (account string, reclaims division.Reclaims)
	// Taken returns the amount of each pool that a NodeClaim's machine takes.
	Taken func(nodeClaim string) division.Amounts
}

// Method is a disruption.Method that removes nodes within disruption budgets until a deadline, and by force afterwards.
//
// Upstream gap: core removes nodes that are empty, drifted, unhealthy or too dear. It has no way to have fewer nodes of some kind by a time
// (docs/internals/upstream/reclaim.md).
type Method struct{ Config }

// New returns the method.
func New(config Config) *Method { return &Method{config} }

// Reason implements disruption.Method.
func (m *Method) Reason() karpv1.DisruptionReason { return CapacityReclaimed }

// Class implements disruption.Method: of all classes, this one leaves it to the method which nodes that may not be disrupted are removed
// after the deadline.
func (m *Method) Class() string { return disruption.RepairDisruptionClass }

// ConsolidationType implements disruption.Method.
func (m *Method) ConsolidationType() string { return "" }

// ShouldDisrupt implements disruption.Method.
func (m *Method) ShouldDisrupt(_ context.Context, c *disruption.Candidate) bool {
	_, reclaims := m.Reclaims()
	for pool, amount := range m.Taken(c.NodeClaim.Name) {
		if len(reclaims[pool]) > 0 && amount > 0 {
			return true
		}
	}
	return false
}

// candidate is a node that may be removed.
type candidate struct {
	*disruption.Candidate
	taken map[string]int64
	// blocked is why it may not be disrupted before the deadline; nil if it may.
	blocked error
	pods    []*corev1.Pod
	chosen  bool
}

// ComputeCommands implements disruption.Method. It launches no replacements: pods are placed elsewhere, or wait.
func (m *Method) ComputeCommands(
	ctx context.Context, budgets map[string]int, found ...*disruption.Candidate,
) ([]disruption.Command, error) {
	pdbs, err := pdb.NewLimits(ctx, m.Guest)
	if err != nil {
		return nil, fmt.Errorf("tracking PodDisruptionBudgets: %w", err)
	}
	candidates := make([]*candidate, 0, len(found))
	for _, c := range found {
		pods, err := c.Pods(ctx, m.Guest)
		if err != nil {
			return nil, fmt.Errorf("listing the pods of node %s: %w", c.Name(), err)
		}
		blocked := c.ValidateNodeDisruptable(m.Clock)
		if blocked == nil {
			_, blocked = c.ValidatePodsDisruptable(ctx, m.Guest, pdbs, m.Clock, m.Recorder)
		}
		candidates = append(candidates, &candidate{Candidate: c, taken: m.Taken(c.NodeClaim.Name), blocked: blocked, pods: pods})
	}
	slices.SortFunc(candidates, func(a, b *candidate) int {
		return cmp.Or(compare(a.blocked != nil, b.blocked != nil),
			cmp.Compare(a.DisruptionCost, b.DisruptionCost), cmp.Compare(a.Name(), b.Name()))
	})
	staying, now := m.staying(), m.Clock.Now()
	var commands []disruption.Command
	account, reclaims := m.Reclaims()
	for _, pool := range slices.Sorted(maps.Keys(reclaims)) {
		limit, _ := reclaims.Limit(pool)
		for staying[pool] > limit {
			r := reclaims.Next(pool, staying[pool])
			purpose := fmt.Sprintf("%s, which reclaims %s of account %s: this cluster may keep %d", strings.Join(r.For, ", "), pool, account, limit)
			forced := !now.Before(r.By)
			c := choose(candidates, pool, staying[pool]-limit, func(c *candidate) bool {
				return forced || c.blocked == nil && budgets[c.NodePool.Name] > 0
			})
			if c == nil {
				m.warn(candidates, pool, purpose, r.By)
				break
			}
			c.chosen = true
			budgets[c.NodePool.Name]--
			for pool, amount := range c.taken {
				staying[pool] -= amount
			}
			commands = append(commands, m.remove(c, purpose, r.By, now))
		}
	}
	return commands, nil
}

// staying is the amount by pool that machines take whose nodes aren't being removed. Launches without a node yet don't count.
func (m *Method) staying() map[string]int64 {
	var nodeClaims []string
	for node := range m.Cluster.Nodes() { // which locks the state meanwhile
		if node.NodeClaim != nil && !node.MarkedForDeletion() {
			nodeClaims = append(nodeClaims, node.NodeClaim.Name)
		}
	}
	staying := map[string]int64{}
	for _, name := range nodeClaims {
		for pool, amount := range m.Taken(name) {
			staying[pool] += amount
		}
	}
	return staying
}

// choose returns the first candidate that takes from a pool, and no more than the excess; without one, that which takes the least.
func choose(candidates []*candidate, pool string, excess int64, may func(*candidate) bool) *candidate {
	var least *candidate
	for _, c := range candidates {
		switch taken := c.taken[pool]; {
		case taken <= 0 || c.chosen || !may(c):
		case taken <= excess:
			return c
		case least == nil || taken < least.taken[pool]:
			least = c
		}
	}
	return least
}

// remove returns the command that removes a node. The drain ends by force after the deadline: core deletes a pod earlier than a NodeClaim's
// termination by the pod's own grace period, so the termination is later than the deadline by the longest one.
func (m *Method) remove(c *candidate, purpose string, by, now time.Time) disruption.Command {
	grace := time.Duration(0)
	for _, pod := range c.pods {
		if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
			grace = max(grace, min(time.Duration(*seconds)*time.Second, maxGracePeriod))
		}
	}
	if by.Before(now) {
		by = now
	}
	// The annotation has whole seconds.
	bound := by.Sub(now) + grace + time.Second
	if period := c.NodeClaim.Spec.TerminationGracePeriod; period != nil {
		bound = min(bound, period.Duration)
	}
	c.TerminationGracePeriod = &bound
	m.publish(c, corev1.EventTypeNormal,
		fmt.Sprintf("Removing the node for %s. The drain ends by %s", purpose, now.Add(bound).UTC().Format(time.RFC3339)))
	return disruption.Command{
		Candidates: []*disruption.Candidate{c.Candidate}, PoolDisruptionCosts: map[string]float64{c.NodePool.Name: c.RescheduleDisruptionCost},
	}
}

// warn reports on blocked nodes that some of them are removed by force after the deadline, while there is time to make room for their pods.
func (m *Method) warn(candidates []*candidate, pool, purpose string, by time.Time) {
	for _, c := range candidates {
		if c.taken[pool] > 0 && !c.chosen && c.blocked != nil {
			m.publish(c, corev1.EventTypeWarning, fmt.Sprintf("The node may be removed by force after %s for %s. It stays until then: %s",
				by.UTC().Format(time.RFC3339), purpose, c.blocked))
		}
	}
}

func (m *Method) publish(c *candidate, level, text string) {
	for _, object := range []client.Object{c.NodeClaim, c.Node} {
		m.Recorder.Publish(events.Event{
			InvolvedObject: object, Type: level, Reason: string(CapacityReclaimed), Message: text,
			DedupeValues: []string{string(object.GetUID()), level},
		})
	}
}

func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
