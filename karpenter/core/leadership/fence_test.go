// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

// fenced is a client of an API server behind a fence.
type fenced struct {
	clock  *clocktesting.FakeClock
	keeper *Keeper
	// received are the methods that the API server has received, as far as it was reached.
	received []string
	server   *httptest.Server
}

// newFenced returns a client of a process that has just renewed its Lease.
func newFenced(t *testing.T, answer http.HandlerFunc) *fenced {
	t.Helper()
	f := &fenced{clock: clocktesting.NewFakeClock(time.Now())}
	f.keeper = New(Config{Clock: f.clock, Logger: logr.Discard()})
	f.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		f.received = append(f.received, request.Method)
		answer(w, request)
	}))
	t.Cleanup(f.server.Close)
	NewWithT(t).Expect(f.send(t.Context(), f.keeper.Wrap(http.DefaultTransport), http.MethodPut)).To(Equal("stored"))
	f.received = nil
	return f
}

// send sends a request and returns the answer's body.
func (f *fenced) send(ctx context.Context, through http.RoundTripper, method string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, f.server.URL+"/apis/coordination.k8s.io/v1/namespaces/a/leases/b", strings.NewReader("{}"))
	if err != nil {
		return "", fmt.Errorf("making the request: %w", err)
	}
	response, err := (&http.Client{Transport: through}).Do(request)
	if err != nil {
		return "", fmt.Errorf("sending the request: %w", err)
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func stored(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "stored") }

func TestFence(t *testing.T) {
	for name, tc := range map[string]struct {
		method  string
		renewed time.Duration // ago
		sent    bool
	}{
		"When the Lease was renewed lately, a write should be sent":               {http.MethodPost, RenewDeadline - 1, true},
		"When the Lease may be another process's, an object shouldn't be created": {http.MethodPost, RenewDeadline, false},
		"When the Lease may be another process's, none should be patched":         {http.MethodPatch, RenewDeadline, false},
		"When the Lease may be another process's, none should be replaced":        {http.MethodPut, RenewDeadline, false},
		"When the Lease may be another process's, none should be deleted":         {http.MethodDelete, RenewDeadline, false},
		"When the Lease may be another process's, it should still read":           {http.MethodGet, RenewDeadline, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFenced(t, stored)
			f.clock.SetTime(f.clock.Now().Add(tc.renewed))
			answer, err := f.send(t.Context(), f.keeper.Fence(http.DefaultTransport), tc.method)
			if tc.sent {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(answer).To(Equal("stored"))
				g.Expect(f.received).To(Equal([]string{tc.method}))
				return
			}
			g.Expect(err).To(MatchError(ErrSuspended))
			g.Expect(f.received).To(BeEmpty())
		})
	}

	t.Run("When the Lease is lost while the connection is made, the request should not be sent", func(t *testing.T) {
		g := NewWithT(t)
		f := newFenced(t, stored)
		attempts := 0
		// As the transport does that attempts a request again because the first connection was closed.
		again := transport(func(request *http.Request) (*http.Response, error) {
			attempts++
			f.clock.Step(RenewDeadline / 2)
			httptrace.ContextClientTrace(request.Context()).GetConn("")
			return http.DefaultTransport.RoundTrip(request)
		})
		f.clock.Step(RenewDeadline / 2)
		_, err := f.send(t.Context(), f.keeper.Fence(again), http.MethodPost)
		g.Expect(err).To(MatchError(ErrSuspended))
		g.Expect(attempts).To(Equal(1))
		g.Expect(f.received).To(BeEmpty())
	})

	t.Run("When a request can't be sent in time, it should be given up", func(t *testing.T) {
		g := NewWithT(t)
		f := newFenced(t, stored)
		connecting := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			f.clock.Step(SendTimeout)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		_, err := f.send(t.Context(), f.keeper.Fence(connecting), http.MethodPost)
		g.Expect(err).To(MatchError(errUnsent))
		g.Expect(f.received).To(BeEmpty())
	})

	t.Run("When a request was sent in time, it should wait for its answer", func(t *testing.T) {
		g := NewWithT(t)
		late := make(chan struct{})
		f := newFenced(t, stored)
		f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			<-late
			stored(w, request)
		})
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
			f.clock.Step(SendTimeout)
			close(late)
		}})
		g.Expect(f.send(ctx, f.keeper.Fence(http.DefaultTransport), http.MethodPost)).To(Equal("stored"))
	})
}
