// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"errors"
	"fmt"
	"strconv"

	guestcluster "github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
)

// refusedError is one of a guest that answers: what was asked before it was answered, even if this wasn't.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// refusal marks an error of a request that comes after others were answered; nil stays nil.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

// refusals are what a guest refused in one reconciliation. They are no errors of the reconciliation, which would be tried again after a time
// that grows: the deadline has to be kept, and it is what ends a drain that a guest refuses.
type refusals struct {
	guest *scope.Guest
	// all are in the guest's words.
	all []error
	// hung says that something wasn't answered. What is asked after that fails at once.
	hung bool
}

// take keeps an error that the guest answered with, or that came after an answer. It returns any other: the guest doesn't answer at all.
func (r *refusals) take(err error) error {
	if err == nil {
		return nil
	}
	var refused *refusedError
	hung := guestcluster.Unanswered(r.guest, err)
	if hung && len(r.all) == 0 && !errors.As(err, &refused) {
		return err
	}
	r.hung = r.hung || hung
	r.all = append(r.all, err)
	return nil
}

// String quotes the first of them.
func (r *refusals) String() string {
	if len(r.all) == 0 {
		return ""
	}
	text := quoted(r.all[0])
	if more := len(r.all) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// maxQuote bounds what is repeated of a guest's words, in bytes before they are escaped.
const maxQuote = 200

// quoted repeats an error that holds what a guest says, escaped and bounded.
func quoted(err error) string {
	text := err.Error()
	if len(text) > maxQuote {
		text = text[:maxQuote] + "..."
	}
	return strconv.Quote(text)
}

// refuse waits, saying what the guest refuses and what comes of it. The guest is left alone for a while.
func (t *Teardown) refuse(s *scope.Scope, m *memory, d drain, r *refusals, state string) scope.Result {
	now, rest := t.Clock.Now(), unwatched
	if r.hung {
		rest = lookEvery // it holds a worker each time
		s.Guest = nil    // nor would it answer the steps behind this one
	}
	m.rested, m.phase = now.Add(rest), d.phase
	m.refused = fmt.Sprintf("%s; the guest refuses what removes them: %s; %s", state, r, t.outlook(d))
	return scope.Result{Wait: true, Message: m.refused, Reason: d.reason(), RequeueAfter: d.within(now, rest)}
}
