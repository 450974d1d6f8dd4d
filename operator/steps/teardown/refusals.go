// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"errors"
	"fmt"

	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// refusedError is an error of a guest that answers: earlier requests were answered, even if this one wasn't.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// refusal marks an error of a request after answered ones; nil stays nil.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

// refusals are the requests that a guest refused in one reconciliation. They aren't errors of the reconciliation, which would be
// retried with growing back-off: the deadline has to be met, and only it ends a drain that a guest refuses.
type refusals struct {
	guest *scope.Guest
	// all are the guest's errors.
	all []error
	// hung: a request got no answer. Later ones fail at once.
	hung bool
}

// take records an error that the guest answered with, or that followed an answer. It returns any other error: the
// guest doesn't answer.
func (r *refusals) take(err error) error {
	if err == nil {
		return nil
	}
	var refused *refusedError
	hung := outage.Lost(r.guest, err)
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
	text := message.Quoted(r.all[0].Error())
	if more := len(r.all) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// refuse backs off, and reports the refused requests and the next step.
func (t *Teardown) refuse(s *scope.Scope, m *memory, d drain, r *refusals, state string) scope.Result {
	now, backoff := t.Clock.Now(), unwatched
	if r.hung {
		backoff = relistInterval // it holds a worker each time
		s.Guest = nil            // nor would it answer the steps behind this one
	}
	m.retryAt, m.phase = now.Add(backoff), d.phase
	m.refused = fmt.Sprintf("%s; the guest refuses what removes them: %s; %s", state, r, t.outlook(d))
	return scope.Result{Wait: true, Message: m.refused, Reason: d.reason(), RequeueAfter: d.within(now, backoff)}
}
