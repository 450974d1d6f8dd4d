// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Tunnel is an HTTP proxy for clients of this process whose dialer can't be set, such as Cluster API's. Each client has
// its own URL, which connects to one server by CONNECT. The tunnel refuses other servers, such as a redirect's, and
// addresses that the policy doesn't allow. TLS is between the client and the server.
type Tunnel struct {
	policy   *Policy
	budget   Budget
	clock    clock.Clock
	listener net.Listener

	mu      sync.Mutex
	targets map[string]*target // by the client's name
	pairs   map[*pair]struct{}
	ended   bool // Start has returned
}

type target struct {
	address, secret string
	forbidden       bool
	allowance       *allowance
}

// NewTunnel listens on loopback. It has to be started. Each client has its own budget.
func NewTunnel(policy *Policy, budget Budget) (*Tunnel, error) {
	return newTunnel(policy, budget, clock.RealClock{})
}

func newTunnel(policy *Policy, budget Budget, clk clock.Clock) (*Tunnel, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0") // the context is for the look-up of a name alone
	if err != nil {
		return nil, fmt.Errorf("listening for the connections to guests: %w", err)
	}
	return &Tunnel{policy: policy, budget: budget.orDefault(), clock: clk, listener: listener, targets: map[string]*target{}, pairs: map[*pair]struct{}{}}, nil
}

// To returns the proxy URL for a client's connections to a server, as host:port. A client has one server at a time.
func (t *Tunnel) To(client, address string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	if known == nil {
		known = &target{secret: rand.Text(), allowance: newAllowance(t.budget, t.clock)}
		t.targets[client] = known
	}
	if known.address != address {
		known.address, known.forbidden = address, false
	}
	return (&url.URL{Scheme: "http", User: url.UserPassword(client, known.secret), Host: t.listener.Addr().String()}).String()
}

// Forget revokes a client's URL. Open connections stay.
func (t *Tunnel) Forget(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.targets, client)
}

// Forbidden reports whether the policy refused the server's address at the client's last attempt.
func (t *Tunnel) Forbidden(client string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	return known != nil && known.forbidden
}

// State reports whether a client is within its budget.
func (t *Tunnel) State(client string) State {
	t.mu.Lock()
	known := t.targets[client]
	t.mu.Unlock()
	if known == nil {
		return Within
	}
	return known.allowance.state()
}

// Start serves until ctx ends. It implements manager.Runnable.
func (t *Tunnel) Start(ctx context.Context) error {
	defer t.end()
	server := &http.Server{Handler: t, ReadHeaderTimeout: dialTimeout, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(t.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the connections to guests: %w", err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (t *Tunnel) NeedLeaderElection() bool { return false }

// ServeHTTP implements http.Handler.
func (t *Tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client, allowance, ok := t.authenticate(r)
	switch {
	case !ok:
		http.Error(w, "", http.StatusForbidden)
		return
	case allowance.state() == BackOff:
		http.Error(w, "", http.StatusServiceUnavailable)
		return
	}
	upstream, err := t.policy.DialContext(r.Context(), "tcp", r.Host)
	t.mu.Lock()
	if known := t.targets[client]; known != nil && known.address == r.Host {
		known.forbidden = errors.Is(err, ErrForbidden)
	}
	t.mu.Unlock()
	switch {
	case errors.Is(err, ErrForbidden):
		http.Error(w, "", http.StatusForbidden)
		return
	case err != nil:
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	downstream, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = upstream.Close()
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	p := &pair{downstream: downstream, upstream: upstream, ended: make(chan struct{})}
	_ = downstream.SetDeadline(time.Time{})
	if _, err := io.WriteString(downstream, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		p.close()
		return
	}
	if buffered.Reader.Buffered() > 0 { // no client sends before it has the answer
		p.close()
		return
	}
	t.relay(p, allowance)
}

// authenticate returns the client of a request, if it may connect to the requested server.
func (t *Tunnel) authenticate(r *http.Request) (client string, allowance *allowance, ok bool) {
	header := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	client, secret, _ := header.BasicAuth()
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	if known == nil {
		return client, nil, false
	}
	return client, known.allowance, subtle.ConstantTimeCompare([]byte(secret), []byte(known.secret)) == 1 &&
		r.Method == http.MethodConnect && r.Host == known.address
}
