// SPDX-License-Identifier: Apache-2.0

// Package fault puts faults between clients and an API server: a proxy that delays, drops or holds requests,
// changes its certificate, or lets one last write through.
package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/pki"
)

// Fault is what happens to one request; next forwards it. An error cuts the client's connection, or its stream of it.
type Fault func(request *http.Request, next http.RoundTripper) (*http.Response, error)

// Config of Start.
type Config struct {
	// Upstream is an administrator's way to the API server. In front of it the proxy reports who a client is: a client certificate ends
	// at the proxy.
	Upstream *rest.Config
	// CA has signed the clients' certificates and signs the proxy's.
	CA *pki.Authority
}

// Proxy is a reverse proxy in front of one API server, on a loopback port. Clients are to it who they are to the API server, by client
// certificate or by token.
type Proxy struct {
	// URL is the API server's address behind the proxy.
	URL string

	server *http.Server
	served chan struct{}
	// tokens and certificates forward requests by how their clients say who they are.
	tokens, certificates http.RoundTripper
	clients              *x509.CertPool

	mu          sync.Mutex
	fault       Fault
	met         int
	greeted     int
	tls         *tls.Config
	connections map[net.Conn]struct{}
}

// Start starts a proxy without a fault. Close has to be called.
func Start(ctx context.Context, cfg Config) (*Proxy, error) {
	p := &Proxy{served: make(chan struct{}), clients: x509.NewCertPool(), connections: map[net.Conn]struct{}{}}
	var err error
	if p.certificates, err = rest.TransportFor(cfg.Upstream); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Upstream.Host, err)
	}
	if p.tokens, err = rest.TransportFor(rest.AnonymousClientConfig(cfg.Upstream)); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Upstream.Host, err)
	}
	upstream, err := url.Parse(cfg.Upstream.Host)
	if err != nil {
		return nil, fmt.Errorf("parsing the API server's address: %w", err)
	}
	if err := p.Rotate(cfg.CA); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	p.URL = "https://" + listener.Addr().String()
	silent := log.New(io.Discard, "", 0) // connections that end are what a proxy of faults is for
	p.server = &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(upstream)
				impersonate(r)
			},
			Transport:    roundTripper(p.roundTrip),
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     silent,
		},
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			NextProtos:         []string{"h2", "http/1.1"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.current(), nil },
		},
		ConnState:         p.track,
		ErrorLog:          silent,
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() {
		defer close(p.served)
		_ = p.server.ServeTLS(listener, "", "")
	}()
	return p, nil
}

// Close ends the proxy and every connection through it.
func (p *Proxy) Close() error {
	err := p.server.Close()
	<-p.served
	return err
}

// Use has every request from now on meet a fault; nil ends that. Requests that are under way keep theirs. It returns how many requests met the
// fault before: a test whose fault met none has shown nothing.
func (p *Proxy) Use(fault Fault) (met int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	met, p.met, p.fault = p.met, 0, fault
	return met
}

// Greeted is how many connections began with the certificate that the proxy has now.
func (p *Proxy) Greeted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.greeted
}

// Rotate gives the proxy a certificate of another authority and cuts every connection, as an API server does that is restarted with
// one. Clients that have a certificate of an earlier authority are still known.
func (p *Proxy) Rotate(ca *pki.Authority) error {
	pair, err := ca.Server("fault-proxy", "127.0.0.1", "localhost")
	if err != nil {
		return err
	}
	serving, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return fmt.Errorf("reading the proxy's certificate: %w", err)
	}
	p.mu.Lock()
	p.greeted = 0
	p.clients = p.clients.Clone()
	p.clients.AppendCertsFromPEM(ca.Certificate)
	p.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{serving}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: p.clients,
		// A session of before the rotation would be resumed without a look at the certificate.
		SessionTicketsDisabled: true,
	}
	p.mu.Unlock()
	p.Cut()
	return nil
}

// Cut ends every connection. Clients may make new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for connection := range p.connections {
		_ = connection.Close()
	}
}

func (p *Proxy) track(connection net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.connections[connection] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(p.connections, connection)
	}
}

func (p *Proxy) current() *tls.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.greeted++
	return p.tls
}

func (p *Proxy) roundTrip(request *http.Request) (*http.Response, error) {
	p.mu.Lock()
	fault := p.fault
	if fault != nil {
		p.met++
	}
	p.mu.Unlock()
	next := p.certificates
	if request.Header.Get("Authorization") != "" {
		next = p.tokens
	}
	if fault == nil {
		return next.RoundTrip(request)
	}
	return fault(request, next)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// impersonate names the user of a client certificate as the API server would read it. Without one the token decides.
func impersonate(r *httputil.ProxyRequest) {
	if r.In.TLS == nil || len(r.In.TLS.VerifiedChains) == 0 {
		if r.Out.Header.Get("Authorization") == "" {
			r.Out.Header.Set("Authorization", "Bearer nobody") // or the proxy's own certificate would speak for him
		}
		return
	}
	subject := r.In.TLS.VerifiedChains[0][0].Subject
	r.Out.Header.Del("Authorization")
	r.Out.Header.Set("Impersonate-User", subject.CommonName)
	r.Out.Header["Impersonate-Group"] = slices.Clone(subject.Organization)
}

// Only has the requests meet a fault that match.
func Only(match func(*http.Request) bool, fault Fault) Fault {
	return func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		if match(request) {
			return fault(request, next)
		}
		return next.RoundTrip(request)
	}
}

// Delay forwards each request after a while. What is streamed in answer isn't delayed further.
func Delay(by time.Duration) Fault {
	return func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			return next.RoundTrip(request)
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
}

// Late forwards each request at once and holds its answer back for a while: a client that has given up by then has changed what it asked for.
func Late(by time.Duration) Fault {
	return func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			return response, err
		case <-request.Context().Done():
			if err == nil {
				_ = response.Body.Close()
			}
			return nil, request.Context().Err()
		}
	}
}

var errDropped = errors.New("dropped")

// Drop forwards nothing and cuts the client off.
func Drop(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, errDropped }
