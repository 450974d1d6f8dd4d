// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// memory is this operator's observations of one drain. It isn't persisted on purpose: a new leader observes it
// again.
type memory struct {
	// began identifies the drain.
	began time.Time
	// largest is the initial number of nodes to drain, for the message.
	largest int
	// unreachable is since when the guest hasn't been connected; zero while it is.
	unreachable time.Time
	// withheld is since when Karpenter has lacked the permission to launch nodes, and generation the HostedCluster's
	// generation then. Turning AutoNode on restores the permission and changes the generation, whether or not the end
	// of the drain was recorded.
	withheld   time.Time
	generation int64
	// refused is the guest's last refusal. The guest gets no request before retryAt, unless the drain's phase
	// changes.
	refused string
	retryAt time.Time
	phase   phase
	// next and nextClass are the NodeClaim and the node class to start with, so that those that the guest keeps don't
	// block the others. more: the last loop over NodeClaims ended early.
	next, nextClass int
	more            bool
	// notified: an event about terminated pods was published. cleaned: the guest was cleaned up as far as it allows.
	notified, cleaned bool
	// machinesWithheld: Karpenter can't create Machines any more, as of that generation of the HostedCluster.
	machinesWithheld bool
	roleGeneration   int64
	// listedAt is the time of the last list from the API servers, and blocker is the drain's blocker then.
	listedAt time.Time
	blocker  blocker
}

// memoryOf returns the memory of the current drain. The caller may modify it: a HostedCluster is reconciled by one
// worker at a time.
func (t *Teardown) memoryOf(s *scope.Scope) *memory {
	began := t.begun(s)
	if m, ok := t.memories.Get(s.HostedCluster.UID); ok && m.began.Equal(began) {
		return m
	}
	m := &memory{began: began}
	t.memories.Add(s.HostedCluster.UID, m)
	return m
}

// progress reports how many nodes are left, of how many when this operator started.
func (m *memory) progress(remaining int) string {
	m.largest = max(m.largest, remaining)
	if m.largest == remaining {
		return fmt.Sprintf("%d %s left to drain", remaining, english.PluralWord(remaining, "node is", "nodes are"))
	}
	return fmt.Sprintf("%d of %d nodes %s left to drain", remaining, m.largest, english.PluralWord(remaining, "is", "are"))
}

// updateBlocker finds the drain's blocker.
func (m *memory) updateBlocker(ctx context.Context, guest *scope.Guest, claims []karpv1.NodeClaim, now time.Time) {
	blocker, err := findBlocker(ctx, guest, claims)
	if err != nil {
		// Log only: an unknown blocker must not fail the drain.
		log.FromContext(ctx).Error(err, "Finding out what holds the drain")
	}
	m.listedAt, m.blocker = now, blocker
}

// blockedBy returns the drain's blocker at the last check, if that NodeClaim still exists.
func (m *memory) blockedBy(claims []karpv1.NodeClaim) string {
	if !slices.ContainsFunc(claims, func(claim karpv1.NodeClaim) bool { return claim.Name == m.blocker.claim }) {
		return ""
	}
	return fmt.Sprintf("NodeClaim %s waits for %s", message.Quote(m.blocker.claim), message.Quote(m.blocker.why))
}
