// SPDX-License-Identifier: Apache-2.0

package release

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/gomega"
	certutil "k8s.io/client-go/util/cert"

	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/payload"
)

func TestTransport(t *testing.T) {
	// A registry whose certificate no system trusts, with an image in it.
	private := httptest.NewTLSServer(registry.New())
	t.Cleanup(private.Close)
	address := private.Listener.Addr().String()
	g := NewWithT(t)
	tag, err := name.NewTag(address + "/autonode/release:1.36.3")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(remote.Write(tag, empty.Image, remote.WithTransport(private.Client().Transport))).To(Succeed())
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: private.Certificate().Raw})
	resolve := func(t *testing.T, transport *Transport, host string) error {
		t.Helper()
		_, err := payload.Resolve(t.Context(), host+"/autonode/release:1.36.3", payload.Options{Transport: transport})
		return err
	}

	t.Run("When a private authority has signed for a registry, it should be trusted from the moment it is in the file", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "ca-bundle.crt")
		other, _, err := certutil.GenerateSelfSignedCertKey("other.example", nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(file, other, 0o600)).To(Succeed())
		transport, err := NewTransport(file, loopback(t))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resolve(t, transport, address)).NotTo(Succeed())
		g.Expect(os.WriteFile(file, authority, 0o600)).To(Succeed())
		g.Expect(resolve(t, transport, address)).To(Succeed())
	})

	t.Run("When the file has no certificate, or has gone, it should say which", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "ca-bundle.crt")
		_, err := NewTransport(file, loopback(t))
		g.Expect(err).To(MatchError(ContainSubstring(file)))
		g.Expect(os.WriteFile(file, []byte("none"), 0o600)).To(Succeed())
		_, err = NewTransport(file, loopback(t))
		g.Expect(err).To(MatchError(file + " has no certificate in PEM form"))
		g.Expect(os.WriteFile(file, authority, 0o600)).To(Succeed())
		transport, err := NewTransport(file, loopback(t))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.Remove(file)).To(Succeed())
		g.Expect(resolve(t, transport, address)).To(MatchError(ContainSubstring(file)))
	})

	t.Run("When the environment names a proxy, registries should be reached through it", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "ca-bundle.crt")
		g.Expect(os.WriteFile(file, authority, 0o600)).To(Succeed())
		proxy, asked := tunnel(t, address)
		t.Setenv("HTTPS_PROXY", proxy)
		t.Setenv("NO_PROXY", "")
		transport, err := NewTransport(file, loopback(t))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resolve(t, transport, "example.com")).To(Succeed()) // a name that the registry's certificate has
		g.Expect(asked.Load()).To(Equal("example.com:443"))
	})
}

// tunnel is a proxy that connects to one address for every request, and returns the requested one.
func tunnel(t *testing.T, address string) (url string, asked *atomic.Value) {
	t.Helper()
	asked = &atomic.Value{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "only tunnels", http.StatusMethodNotAllowed)
			return
		}
		asked.Store(r.Host)
		there, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer there.Close()
		w.WriteHeader(http.StatusOK)
		here, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer here.Close()
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(there, here); _ = there.(*net.TCPConn).CloseWrite() })
		both.Go(func() { _, _ = io.Copy(here, there); _ = here.Close() })
		both.Wait()
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, asked
}

// loopback allows what a test listens on.
func loopback(t *testing.T) *egress.Policy {
	t.Helper()
	policy, err := egress.NewPolicy("127.0.0.0/8,::1/128")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return policy
}
