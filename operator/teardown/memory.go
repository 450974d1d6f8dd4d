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
	// refused says what the guest refused last. It isn't asked again before rested, as long as the drain is in that phase.
	refused string
	rested  time.Time
	phase   phase
	// next is the NodeClaim to begin with, so that some which the guest keeps don't hold the others.
	next int
	// told says that this operator has told that pods are terminated, and cleaned that the guest was cleaned up as far as it let us.
	told, cleaned bool
	// machinesWithheld says that Karpenter can't create Machines any more, as of that generation of the HostedCluster.
	machinesWithheld bool
	roleGeneration   int64
	// looked is when the API servers were asked for everything last, and held is what was found then to hold the drain.
	looked time.Time
	held   holder
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
		return fmt.Sprintf("%d %s left to drain", left, english.PluralWord(left, "node is", "nodes are"))
	}
	return fmt.Sprintf("%d of %d nodes %s left to drain", left, m.largest, english.PluralWord(left, "is", "are"))
}

// look finds out what holds the drain.
func (m *memory) look(ctx context.Context, guest *scope.Guest, claims []karpv1.NodeClaim, now time.Time) {
	held, err := findHolder(ctx, guest, claims)
	if err != nil {
		// What holds a drain is worth a message, not a failure.
		log.FromContext(ctx).Error(err, "Couldn't find out what holds the drain")
	}
	m.looked, m.held = now, held
}

// holds says what held the drain at the last look, as long as that NodeClaim is left.
func (m *memory) holds(claims []karpv1.NodeClaim) string {
	if !slices.ContainsFunc(claims, func(claim karpv1.NodeClaim) bool { return claim.Name == m.held.claim }) {
		return ""
	}
	return fmt.Sprintf("NodeClaim %s waits for %s", message.Quote(m.held.claim), message.Quote(m.held.why))
}
