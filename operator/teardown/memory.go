// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"fmt"
	"time"

	"github.com/autonode-io/autonode/operator/scope"
)

// memory is what this operator has seen of one drain. It isn't persisted on purpose: a new leader finds out by itself.
type memory struct {
	// began tells one drain from the next.
	began time.Time
	// largest is how many nodes there were to drain, for the message.
	largest int
	// unreachable is since when the guest hasn't been connected; zero while it is.
	unreachable time.Time
	// withheld is since when Karpenter hasn't had the right to launch nodes, and generation the HostedCluster's then. Turning AutoNode
	// on gives the right back, which changes the generation, whether or not anybody got to write down that the drain was over.
	withheld   time.Time
	generation int64
}

// memoryOf returns what is remembered of the drain that is under way, for the caller to change: a HostedCluster is reconciled by one
// worker at a time.
func (t *Teardown) memoryOf(s *scope.Scope) *memory {
	began := t.begun(s)
	if known, ok := t.memories.Get(s.HostedCluster.UID); ok {
		if m, ok := known.(*memory); ok && m.began.Equal(began) {
			return m
		}
	}
	m := &memory{began: began}
	t.memories.Add(s.HostedCluster.UID, m)
	return m
}

// progress says how many nodes are left, of how many since this operator began to look.
func (m *memory) progress(left int) string {
	m.largest = max(m.largest, left)
	if m.largest == left {
		return fmt.Sprintf("%d %s left to drain", left, plural(left, "node is", "nodes are"))
	}
	return fmt.Sprintf("%d of %d nodes %s left to drain", left, m.largest, plural(left, "is", "are"))
}
