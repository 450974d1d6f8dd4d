// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/fault"
	"github.com/autonode-io/autonode/test/world/pki"
)

// server stands in for an API server of ConfigMaps: a body with the content that an object has changes nothing.
type server struct {
	mu      sync.Mutex
	objects map[string]string // content by path
	version int
	seen    []string // "METHOD path user groups authorization"
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := r.Header.Values("Impersonate-Group")
	slices.Sort(groups) // a certificate has a set of them
	s.seen = append(s.seen, strings.Join(slices.Concat(
		[]string{r.Method, r.URL.Path, r.Header.Get("Impersonate-User")}, groups, []string{r.Header.Get("Authorization")}), " "))
	object := strings.TrimSuffix(r.URL.Path, "/status")
	content, exists := s.objects[object]
	switch r.Method {
	case http.MethodPatch:
		if string(body) != content {
			s.version++
			s.objects[object] = string(body)
		}
	case http.MethodDelete:
		delete(s.objects, object)
	case http.MethodGet:
		if !exists {
			w.WriteHeader(http.StatusNotFound)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.objects[object], s.version)}})
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *server) content(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

const configMaps = "/api/v1/namespaces/default/configmaps/"

// start runs a server, a proxy in front of it, and returns a client that the user blue has.
func start(t *testing.T) (*server, *fault.Proxy, *pki.Authority, *http.Client) {
	t.Helper()
	g := NewWithT(t)
	s := &server{objects: map[string]string{}}
	upstream := httptest.NewTLSServer(s)
	t.Cleanup(upstream.Close)
	authority, err := pki.NewAuthority("blue")
	g.Expect(err).NotTo(HaveOccurred())
	proxy, err := fault.Start(t.Context(), fault.Config{CA: authority, Upstream: &rest.Config{Host: upstream.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: upstream.Certificate().Raw}),
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(proxy.Close()).To(Succeed()) })
	return s, proxy, authority, client(t, authority, authority)
}

// client trusts one authority and has a certificate of the other's.
func client(t *testing.T, trusted, issuer *pki.Authority) *http.Client {
	t.Helper()
	g := NewWithT(t)
	pair, err := issuer.Client("blue", "painters", "poets")
	g.Expect(err).NotTo(HaveOccurred())
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAData: trusted.Certificate, CertData: pair.Certificate, KeyData: pair.Key,
	}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// timeout is the timeout of what has to happen by itself, on any machine.
const timeout = 10 * time.Minute

func send(ctx context.Context, client *http.Client, method, url, body string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestProxy(t *testing.T) {
	t.Run("When a client has a certificate, it should be that user to the API server", func(t *testing.T) {
		g := NewWithT(t)
		s, proxy, _, client := start(t)
		g.Expect(send(t.Context(), client, http.MethodPatch, proxy.URL+configMaps+"a", "1")).To(Equal(http.StatusOK))
		g.Expect(s.requests()).To(ConsistOf("PATCH " + configMaps + "a blue painters poets "))
	})

	t.Run("When a client has a token, it should reach the API server as it is, and one without any should have no user", func(t *testing.T) {
		g := NewWithT(t)
		s, proxy, authority, _ := start(t)
		client, err := rest.HTTPClientFor(&rest.Config{BearerToken: "t0ken", TLSClientConfig: rest.TLSClientConfig{CAData: authority.Certificate}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(send(t.Context(), client, http.MethodDelete, proxy.URL+configMaps+"a", "")).To(Equal(http.StatusOK))
		client, err = rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: authority.Certificate}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(send(t.Context(), client, http.MethodDelete, proxy.URL+configMaps+"a", "")).To(Equal(http.StatusOK))
		g.Expect(s.requests()).To(ConsistOf(
			"DELETE "+configMaps+"a  Bearer t0ken", "DELETE "+configMaps+"a  Bearer nobody"))
	})

	t.Run("When the certificate is rotated, it should refuse who trusts the old one, and know who has a certificate of it", func(t *testing.T) {
		g := NewWithT(t)
		_, proxy, old, before := start(t)
		g.Expect(send(t.Context(), before, http.MethodGet, proxy.URL, "")).To(Equal(http.StatusNotFound))
		fresh, err := pki.NewAuthority("blue")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(proxy.Rotate(fresh)).To(Succeed())
		g.Eventually(func() error { // the first request may still be sent on a connection that is being closed
			_, err := send(t.Context(), before, http.MethodGet, proxy.URL, "")
			return err
		}).Should(MatchError(ContainSubstring("x509")))
		g.Expect(send(t.Context(), client(t, fresh, old), http.MethodGet, proxy.URL, "")).To(Equal(http.StatusNotFound))
	})
}

func TestFaults(t *testing.T) {
	patch := func(r *http.Request) bool { return r.Method == http.MethodPatch }

	t.Run("When requests are delayed, they should be answered later", func(t *testing.T) {
		g := NewWithT(t)
		_, proxy, _, client := start(t)
		proxy.Use(fault.Delay(100 * time.Millisecond))
		began := time.Now()
		g.Expect(send(t.Context(), client, http.MethodGet, proxy.URL, "")).To(Equal(http.StatusNotFound))
		g.Expect(time.Since(began)).To(BeNumerically(">=", 100*time.Millisecond))
		g.Expect(proxy.Use(nil)).To(Equal(1), "requests that met the delay")
		g.Expect(send(t.Context(), client, http.MethodGet, proxy.URL, "")).To(Equal(http.StatusNotFound))
		g.Expect(proxy.Use(nil)).To(BeZero())
	})

	t.Run("When requests are dropped, the client should know at once", func(t *testing.T) {
		g := NewWithT(t)
		s, proxy, _, client := start(t)
		proxy.Use(fault.Only(patch, fault.Drop))
		_, err := send(t.Context(), client, http.MethodPatch, proxy.URL+configMaps+"a", "1")
		g.Expect(err).To(HaveOccurred())
		g.Expect(s.requests()).To(BeEmpty())
		g.Expect(send(t.Context(), client, http.MethodGet, proxy.URL, "")).To(Equal(http.StatusNotFound), "others pass")
		proxy.Use(nil)
		g.Expect(send(t.Context(), client, http.MethodPatch, proxy.URL+configMaps+"a", "1")).To(Equal(http.StatusOK))
	})

	t.Run("When a request is held, it should arrive late, even after its client has gone", func(t *testing.T) {
		g := NewWithT(t)
		s, proxy, _, client := start(t)
		hold := fault.NewHold(patch)
		proxy.Use(hold.Fault)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := send(ctx, client, http.MethodPatch, proxy.URL+configMaps+"a", "late")
			gone <- err
		}()
		g.Eventually(hold.Arrived()).Should(BeClosed())
		cancel()
		g.Eventually(gone).Should(Receive(MatchError(context.Canceled)))
		g.Expect(s.requests()).To(BeEmpty())
		ctx, cancel = context.WithTimeout(t.Context(), timeout)
		defer cancel()
		g.Expect(hold.Release(ctx)).To(Succeed())
		g.Expect(s.content(configMaps + "a")).To(Equal("late"))
	})
}

// lives are those of one client, each with its last write.
type lives struct {
	t      *testing.T
	server *server
	proxy  *fault.Proxy
	client *http.Client
	steps  *fault.Steps
	last   *fault.LastWrite
}

func newLives(t *testing.T) *lives {
	t.Helper()
	server, proxy, _, client := start(t)
	return &lives{t: t, server: server, proxy: proxy, client: client, steps: fault.NewSteps()}
}

// begin begins the next life.
func (l *lives) begin() {
	l.last = fault.NewLastWrite(l.steps, func(*http.Request) bool { return true })
	l.proxy.Use(l.last.Fault("blue"))
}

// stores sends a write that is stored and gets no answer, and returns it.
func (l *lives) stores(method, path, body string) string {
	l.t.Helper()
	g := NewWithT(l.t)
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := send(ctx, l.client, method, l.proxy.URL+path, body)
		answered <- err
	}()
	var step fault.Step
	g.Eventually(l.last.Stored()).Should(Receive(&step))
	cancel()
	g.Eventually(answered).Should(Receive(MatchError(context.Canceled)))
	return step.String()
}

// answers sends a write that is no step.
func (l *lives) answers(method, path, body string) {
	l.t.Helper()
	g := NewWithT(l.t)
	g.Expect(send(l.t.Context(), l.client, method, l.proxy.URL+path, body)).To(Equal(http.StatusOK), path)
	g.Expect(l.last.Stored()).NotTo(Receive())
}

func TestLastWrite(t *testing.T) {
	t.Run("When a write changes something, it should be stored, and neither be answered nor followed by another", func(t *testing.T) {
		g, l := NewWithT(t), newLives(t)
		l.begin()
		g.Expect(l.stores(http.MethodPatch, configMaps+"a", `{"data":1}`)).To(Equal("blue: patch configmaps default/a"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := send(ctx, l.client, http.MethodPatch, l.proxy.URL+configMaps+"b", `{"data":1}`)
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(l.server.content(configMaps + "a")).To(Equal(`{"data":1}`))
		g.Expect(l.server.content(configMaps + "b")).To(BeEmpty())
		g.Expect(l.last.Stored()).NotTo(Receive())
	})

	t.Run("When a write changes nothing, or only queries or reports, it should be answered", func(t *testing.T) {
		g, l := NewWithT(t), newLives(t)
		l.begin()
		l.stores(http.MethodPatch, configMaps+"a", `{"data":1}`)
		l.begin()
		l.answers(http.MethodPatch, configMaps+"a", `{"data":1}`)
		l.answers(http.MethodPost, "/api/v1/namespaces/default/events", `{"data":1}`)
		l.answers(http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", `{"data":1}`)
		g.Expect(l.stores(http.MethodDelete, configMaps+"a", "")).To(Equal("blue: delete configmaps default/a"))
	})

	t.Run("When a write was the last before, it should be answered though it changes something, but for its times", func(t *testing.T) {
		g, l := NewWithT(t), newLives(t)
		l.begin()
		up := `{"data":"up","lastTransitionTime":"1"}`
		g.Expect(l.stores(http.MethodPatch, configMaps+"c/status", up)).To(Equal("blue: patch configmaps/status default/c"))
		l.begin()
		l.stores(http.MethodPatch, configMaps+"c/status", `{"data":"down"}`)
		l.begin()
		l.answers(http.MethodPatch, configMaps+"c/status", `{"data":"up","lastTransitionTime":"2"}`)
	})

	t.Run("When a token is requested, which is stored nowhere, it should be a step once", func(t *testing.T) {
		g, l := NewWithT(t), newLives(t)
		const token = "/api/v1/namespaces/kube-system/serviceaccounts/karpenter/token"
		l.begin()
		g.Expect(l.stores(http.MethodPost, token, "{}")).To(Equal("blue: create serviceaccounts/token kube-system/karpenter"))
		l.begin()
		l.answers(http.MethodPost, token, "{}")
	})
}
