// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"
)

// SendTimeout is how long it may take until a request that changes the management cluster has been sent, connecting included.
const SendTimeout = 10 * time.Second

// errUnsent is the error of a request that couldn't be sent in time.
var errUnsent = fmt.Errorf("management cluster's API server doesn't accept the request within %s", SendTimeout)

// Fence wraps the transport of clients that change the management cluster. A request to change something isn't sent while suspended, and
// not later than SendTimeout after that was checked.
//
// Gate checks when a launch begins. With a slow API server a launch takes minutes, in which this process may lose the Lease. What it sends
// after that would have its effect when the next leader no longer expects it, and together they would spend more than the cluster may have.
func (k *Keeper) Fence(inner http.RoundTripper) http.RoundTripper {
	return fence{roundTripper{keeper: k, inner: inner}}
}

// fence replaces the RoundTrip of leader election's transport.
type fence struct{ roundTripper }

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(request *http.Request) (*http.Response, error) {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return f.inner.RoundTrip(request)
	}
	if f.keeper.Suspended() {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, ErrSuspended
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	timer := f.keeper.Clock.AfterFunc(SendTimeout, func() { cancel(errUnsent) })
	again := func() {
		if timer.Reset(SendTimeout); f.keeper.Suspended() {
			cancel(ErrSuspended)
		}
	}
	response, err := f.inner.RoundTrip(request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { again() }, // the transport may attempt it on several connections
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				timer.Stop()
			}
		},
	})))
	timer.Stop()
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if errors.Is(cause, ErrSuspended) || errors.Is(cause, errUnsent) {
			return nil, cause
		}
		return nil, err
	}
	response.Body = &answer{ReadCloser: response.Body, end: func() { cancel(nil) }}
	return response, nil
}

// answer is the body of a response, whose request ends when it is closed.
type answer struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (a *answer) Close() error {
	defer a.end()
	return a.ReadCloser.Close()
}
