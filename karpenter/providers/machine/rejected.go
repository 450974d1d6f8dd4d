// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// RejectedError means that the management cluster has rejected an object of a plan: a quota, a policy, a webhook, its
// schema, or missing rights. The management cluster rejects the same plan again until a person changes one of these.
type RejectedError struct{ err error }

// Error is the API server's message.
func (e *RejectedError) Error() string { return e.err.Error() }

// Unwrap returns the API server's error.
func (e *RejectedError) Unwrap() error { return e.err }

// rejected returns a *RejectedError for an error by which an API server rejects an object, and any other error unchanged.
func rejected(err error) error {
	if isRejection(err) {
		return &RejectedError{err}
	}
	return err
}

func isRejection(err error) bool {
	if meta.IsNoMatchError(err) {
		return true // the kind isn't installed any more
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch code := answer.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false // a token is being renewed, two writes met, or the API server has too much to do
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
