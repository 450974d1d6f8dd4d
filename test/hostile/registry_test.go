// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/steps/release"
	"github.com/autonode-io/autonode/payload"
)

// TestRegistry is whoever runs a registry, or names one in a HostedCluster, and would like to know what is in the operator's network.
func TestRegistry(t *testing.T) {
	g := NewWithT(t)
	// The registry is where the platform allows it, and the intranet where it doesn't.
	policy, err := egress.NewPolicy("127.0.0.1/32")
	g.Expect(err).NotTo(HaveOccurred())
	transport, err := release.NewTransport("", policy)
	g.Expect(err).NotTo(HaveOccurred())
	var reached atomic.Int64
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.2:0")
	g.Expect(err).NotTo(HaveOccurred())
	intranet := &httptest.Server{Listener: listener, Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"token": "of-the-intranet"}`) }),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				reached.Add(1)
			}
		},
	}}
	intranet.Start()
	t.Cleanup(intranet.Close)

	resolve := func(ctx context.Context, answer http.HandlerFunc, change func(*payload.Options)) error {
		registry := httptest.NewServer(answer)
		defer registry.Close()
		options := payload.Options{Transport: transport, Discreet: true}
		if change != nil {
			change(&options)
		}
		_, err := payload.Resolve(ctx, strings.TrimPrefix(registry.URL, "http://")+"/team/release:1", options)
		return err
	}
	pong := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				next(w, r)
			}
		}
	}

	for name, test := range map[string]struct {
		answer http.HandlerFunc
		change func(*payload.Options)
	}{
		"When a registry redirects to a private address, it should not be dialed": {
			answer: pong(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, intranet.URL+"/admin", http.StatusTemporaryRedirect)
			}),
		},
		"When its token server has a private address, it should not be dialed": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+intranet.URL+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			},
		},
		"When a mirror has a private address, it should not be dialed": {
			answer: http.NotFound,
			change: func(options *payload.Options) {
				options.ImageContentSources = []payload.ImageContentSource{{Source: "127.0.0.1", Mirrors: []string{listener.Addr().String()}}}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := resolve(t.Context(), test.answer, test.change)
			g.Expect(err).To(HaveOccurred())
			g.Expect(reached.Load()).To(BeZero())
			g.Expect(err.Error()).NotTo(ContainSubstring("of-the-intranet"))
		})
	}

	t.Run("When a server that is no registry answers, nothing of its answer should be quoted", func(t *testing.T) {
		for _, code := range []int{http.StatusTeapot, http.StatusInternalServerError, http.StatusForbidden, http.StatusNotFound} {
			g := NewWithT(t)
			var registry string
			err := resolve(t.Context(), pong(func(w http.ResponseWriter, r *http.Request) {
				registry = r.Host
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("X-Secret", "of-the-intranet")
				w.WriteHeader(code)
				fmt.Fprint(w, `{"errors": [{"code": "DENIED", "message": "of-the-intranet"}], "details": "of-the-intranet"}`)
			}), nil)
			g.Expect(err).To(HaveOccurred())
			g.Expect(registry).NotTo(BeEmpty())
			told := strings.ReplaceAll(err.Error(), registry, "HOST") // a port may have the digits of a code
			g.Expect(told).NotTo(ContainSubstring("of-the-intranet"))
			if code == http.StatusTeapot || code == http.StatusInternalServerError {
				g.Expect(told).NotTo(ContainSubstring(fmt.Sprint(code)))
			}
		}
	})

	t.Run("When nothing listens, it should be reported in the same words as that an address isn't allowed", func(t *testing.T) {
		g := NewWithT(t)
		words := func(host string) string {
			_, err := payload.Resolve(t.Context(), host+"/team/release:1", payload.Options{Transport: transport, Discreet: true})
			g.Expect(err).To(HaveOccurred())
			return strings.ReplaceAll(err.Error(), host, "HOST")
		}
		g.Expect(words("127.0.0.1:1")).To(Equal(words("127.0.0.2:1")))
		g.Expect(words("127.0.0.1:1")).To(ContainSubstring("HOST can't be reached, or the platform doesn't allow it"))
	})
}
