// SPDX-License-Identifier: Apache-2.0

package headers_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/internal/headers"
)

func TestBound(t *testing.T) {
	size := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for written := 0; written < size; written += 1 << 10 {
			w.Header().Add("Warning", strings.Repeat("x", 1<<10))
		}
	}))
	plain := httptest.NewServer(server.Config.Handler)
	t.Cleanup(plain.Close)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, config := range map[string]*rest.Config{
		"HTTP/2":      {Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}},
		"HTTP/1.1":    {Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca, NextProtos: []string{"http/1.1"}}},
		"a plain one": {Host: plain.URL},
	} {
		t.Run("When a server of "+name+" answers with headers of any size, it should take no more than is allowed", func(t *testing.T) {
			g := NewWithT(t)
			headers.Bound(config)
			client, err := rest.HTTPClientFor(config)
			g.Expect(err).NotTo(HaveOccurred())
			for size = range []int{0, 1} {
				size *= 2 * headers.MaxBytes
				response, err := client.Get(config.Host)
				if size == 0 {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(response.Body.Close()).To(Succeed())
				} else {
					g.Expect(err).To(MatchError(Or(ContainSubstring("exceeded"), ContainSubstring("header list"))))
				}
			}
		})
	}
	t.Run("When another client of the process has the default transport, it should stay as it is", func(t *testing.T) {
		NewWithT(t).Expect(http.DefaultTransport.(*http.Transport).MaxResponseHeaderBytes).To(BeZero())
	})
}
