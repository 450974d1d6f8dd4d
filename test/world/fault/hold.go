// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Hold keeps the first request that matches on its way until Release, as a network may; whoever sent it can have gone by then. Every
// other request that matches hangs meanwhile and isn't forwarded, so that the one is late and none overtakes it.
type Hold struct {
	matches  func(*http.Request) bool
	arrived  chan struct{}
	released chan struct{}
	answered chan error

	mu    sync.Mutex
	taken bool
}

// NewHold returns a Hold that waits for its request.
func NewHold(matches func(*http.Request) bool) *Hold {
	return &Hold{matches: matches, arrived: make(chan struct{}), released: make(chan struct{}), answered: make(chan error, 1)}
}

// Arrived is closed when the request is held.
func (h *Hold) Arrived() <-chan struct{} { return h.arrived }

// Release lets the held request go on, and returns when the API server has answered it. An answer that refuses it is no error.
func (h *Hold) Release(ctx context.Context) error {
	close(h.released)
	select {
	case err := <-h.answered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the answer to the held request: %w", context.Cause(ctx))
	}
}

// Fault is for Proxy.Use.
func (h *Hold) Fault(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	if !h.matches(request) {
		return next.RoundTrip(request)
	}
	h.mu.Lock()
	first := !h.taken
	h.taken = true
	h.mu.Unlock()
	if !first {
		select {
		case <-h.released:
			return next.RoundTrip(request)
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
	// The request outlives its client from here on.
	late := request.Clone(context.WithoutCancel(request.Context()))
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, fmt.Errorf("reading the held request: %w", err)
		}
		late.Body = io.NopCloser(bytes.NewReader(body))
	}
	close(h.arrived)
	<-h.released
	response, err := next.RoundTrip(late)
	h.answered <- err
	return response, err
}
