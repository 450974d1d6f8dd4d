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
)

// Tunnel is an HTTP proxy of this process alone, for clients whose dialer can't be chosen, such as Cluster API's. Each client has an URL
// of its own, which leads to one server by CONNECT and nowhere else: what the server redirects to is refused, as is an address that the
// policy doesn't allow. The bytes pass unseen; TLS is between the client and the server.
type Tunnel struct {
	policy   *Policy
	listener net.Listener
	ended    chan struct{} // closed when Start returns

	mu      sync.Mutex
	targets map[string]*target // by the client's name
}

type target struct {
	address, secret string
	forbidden       bool
}

// NewTunnel listens on loopback. It has to be started.
func NewTunnel(policy *Policy) (*Tunnel, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0") // the context is for the look-up of a name alone
	if err != nil {
		return nil, fmt.Errorf("listening for the connections to guests: %w", err)
	}
	return &Tunnel{policy: policy, listener: listener, ended: make(chan struct{}), targets: map[string]*target{}}, nil
}

// To returns the proxy URL by which a client reaches a server, as host:port. A client has one server at a time.
func (t *Tunnel) To(client, address string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	if known == nil {
		known = &target{secret: rand.Text()}
		t.targets[client] = known
	}
	if known.address != address {
		known.address, known.forbidden = address, false
	}
	return (&url.URL{Scheme: "http", User: url.UserPassword(client, known.secret), Host: t.listener.Addr().String()}).String()
}

// Forget ends what To began. Connections that stand stay.
func (t *Tunnel) Forget(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.targets, client)
}

// Forbidden reports whether the policy refused the server's address when the client asked for it last.
func (t *Tunnel) Forbidden(client string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	return known != nil && known.forbidden
}

// Start serves until ctx ends. It implements manager.Runnable.
func (t *Tunnel) Start(ctx context.Context) error {
	defer close(t.ended)
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
	client, ok := t.authenticate(r)
	if !ok {
		http.Error(w, "", http.StatusForbidden)
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
	defer func() { _ = upstream.Close() }()
	downstream, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	defer func() { _ = downstream.Close() }()
	_ = downstream.SetDeadline(time.Time{})
	if _, err := io.WriteString(downstream, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	if waiting := buffered.Reader.Buffered(); waiting > 0 { // no client sends before it has the answer
		return
	}
	// Whichever side ends first ends both: no HTTP client closes half a connection.
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{upstream, downstream}, {downstream, upstream}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	select {
	case <-done:
	case <-t.ended:
	}
}

// authenticate returns who asks, if that may be connected to what it asks for.
func (t *Tunnel) authenticate(r *http.Request) (client string, ok bool) {
	header := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	client, secret, _ := header.BasicAuth()
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.targets[client]
	return client, known != nil && subtle.ConstantTimeCompare([]byte(secret), []byte(known.secret)) == 1 &&
		r.Method == http.MethodConnect && r.Host == known.address
}
