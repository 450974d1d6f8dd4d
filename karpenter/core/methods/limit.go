// SPDX-License-Identifier: Apache-2.0

package methods

import (
	"context"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
)

// Limit wraps those of Karpenter core's methods that replace drifted nodes. Of the nodes whose drift counts they replace at most as many as
// limit returns, unless that isn't ok. Upstream gap: budgets are about Drifted as a whole (docs/internals/upstream/drift-limit.md).
func Limit(methods []disruption.Method, queue *disruption.Queue, counts func(*karpv1.NodeClaim) bool,
	limit func(context.Context) (n int, ok bool),
) []disruption.Method {
	methods = slices.Clone(methods)
	for i, wrapped := range methods {
		if wrapped.Reason() == karpv1.DisruptionReasonDrifted {
			methods[i] = limited{wrapped, queue, func(c *disruption.Candidate) bool { return counts(c.NodeClaim) }, limit}
		}
	}
	return methods
}

type limited struct {
	disruption.Method
	queue  *disruption.Queue
	counts func(*disruption.Candidate) bool
	limit  func(context.Context) (n int, ok bool)
}

// ComputeCommands implements disruption.Method. Core's commands for drift have one node each.
func (m limited) ComputeCommands(ctx context.Context, budgets map[string]int, candidates ...*disruption.Candidate,
) ([]disruption.Command, error) {
	left, ok := m.limit(ctx)
	for _, begun := range m.queue.GetCommands() {
		if slices.ContainsFunc(begun.Candidates, m.counts) {
			left--
		}
	}
	return m.Method.ComputeCommands(ctx, budgets, slices.DeleteFunc(slices.Clone(candidates), func(c *disruption.Candidate) bool {
		excess := ok && left <= 0 && m.counts(c)
		if !excess && m.counts(c) && c.OwnedByStaticNodePool() && budgets[c.NodePool.Name] > 0 {
			left-- // of these, core returns a command for each, and reserves a replacement of the NodePool's limit
		}
		return excess
	})...) //nolint:wrapcheck // core's own
}
