// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/net/http/httpproxy"
)

// Transport reaches registries: by the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name, and those too whose authority is in a file,
// which may change.
type Transport struct {
	base   *http.Transport
	caFile string

	mu       sync.Mutex
	bundle   []byte
	trusting *http.Transport
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport reads the environment, and the file if one is named: PEM certificates that are trusted beside the system's. A file
// without any is an error.
func NewTransport(caFile string) (*Transport, error) {
	base := remote.DefaultTransport.(*http.Transport).Clone()
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	base.Proxy = func(request *http.Request) (*url.URL, error) { return proxy(request.URL) }
	t := &Transport{base: base, caFile: caFile}
	_, err := t.current()
	return t, err
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

// current follows the file without a restart. Payloads are pulled seldom, and each once.
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
