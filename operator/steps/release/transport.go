// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/net/http/httpproxy"

	"github.com/autonode-io/autonode/internal/headers"
	"github.com/autonode-io/autonode/operator/guest/egress"
)

// Transport connects to registries: through the proxy of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, and with additional
// certificate authorities from a file, which may change.
type Transport struct {
	base   *http.Transport
	caFile string

	mu       sync.Mutex
	bundle   []byte
	trusting *http.Transport
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport reads the environment and the file of PEM certificates, if one is named, which are trusted beside the
// system's. A file without certificates is an error. Without a proxy, addresses decides which addresses may be
// dialed, whether for a registry, a mirror, a token server or a redirect.
func NewTransport(caFile string, addresses *egress.Policy) (*Transport, error) {
	base := remote.DefaultTransport.(*http.Transport).Clone()
	base.MaxResponseHeaderBytes = headers.MaxBytes
	environment := httpproxy.FromEnvironment()
	proxy := environment.ProxyFunc()
	base.Proxy = func(request *http.Request) (*url.URL, error) { return proxy(request.URL) }
	platforms := proxiesOf(environment)
	direct := base.DialContext
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if slices.Contains(platforms, address) {
			return direct(ctx, network, address)
		}
		return addresses.DialContext(ctx, network, address)
	}
	t := &Transport{base: base, caFile: caFile}
	_, err := t.current()
	return t, err
}

// proxiesOf returns the addresses of the platform's proxies.
func proxiesOf(environment *httpproxy.Config) []string {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	var addresses []string
	for _, proxy := range []string{environment.HTTPProxy, environment.HTTPSProxy} {
		parsed, err := url.Parse(proxy)
		if err != nil || ports[parsed.Scheme] == "" {
			parsed, err = url.Parse("http://" + proxy) // as net/http has it
		}
		if proxy == "" || err != nil {
			continue
		}
		addresses = append(addresses, net.JoinHostPort(parsed.Hostname(), cmp.Or(parsed.Port(), ports[parsed.Scheme])))
	}
	return addresses
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	current, err := t.current()
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	return current.RoundTrip(request)
}

// current reloads the file when it changes. Pulls are rare, so it checks for each.
func (t *Transport) current() (*http.Transport, error) {
	if t.caFile == "" {
		return t.base, nil
	}
	bundle, err := os.ReadFile(t.caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the registries' certificate authorities: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trusting != nil && bytes.Equal(bundle, t.bundle) {
		return t.trusting, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's certificate authorities: %w", err)
	}
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", t.caFile)
	}
	trusting := t.base.Clone()
	trusting.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	if t.trusting != nil {
		t.trusting.CloseIdleConnections()
	}
	t.bundle, t.trusting = bundle, trusting
	return trusting, nil
}
