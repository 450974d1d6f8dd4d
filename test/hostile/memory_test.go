// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/store"
)

// withNodes is a guest whose API server lists nodes by list and watches them by watch, and is honest otherwise. It has no watches that begin
// with a list.
func withNodes(t *testing.T, list, watch http.HandlerFunc) []byte {
	t.Helper()
	honest := honestGuest(t)
	server := listen(t, true, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != "/api/v1/nodes":
			w.Header().Del("Content-Type")
			honest.ServeHTTP(w, r)
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case query.Get("watch") != "":
			watch(w, r)
		default:
			list(w, r)
		}
	})
	content, err := clientcmd.Write(*server.kubeconfig())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

// TestMemory is three admins of guests who fill the operator's memory within their budget of bytes, or burn its CPU: one by a list of three
// bytes an object, one by nodes without end, and one by quantities that take half an hour to parse.
func TestMemory(t *testing.T) {
	const (
		label = "hostile-memory"
		empty = `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`
		node  = `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"labels":{"karpenter.sh/nodepool":"a"}},"status":{"capacity":{"cpu":%q}}}`
	)
	g, ctx := NewWithT(t), t.Context()
	serveUntil(t, ctx, clusters.Management.Config, label, func(options *operator.Options) {
		options.GuestBudget = egress.Budget{Backoff: time.Hour}
		options.GuestBounds = store.Bounds{Objects: 2000}
	})
	idle := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	var bombs, added atomic.Int64
	guests := map[string][]byte{
		"bomb": withNodes(t, func(w http.ResponseWriter, _ *http.Request) {
			bombs.Add(1)
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[`+strings.Repeat("{},", 1_500_000)+`{}]}`)
		}, idle),
		"trickle": withNodes(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, empty) }, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				lines := &strings.Builder{}
				for range 100 {
					fmt.Fprintf(lines, `{"type":"ADDED","object":`+node+"}\n", fmt.Sprint("n", added.Add(1)), "1")
				}
				if _, err := io.WriteString(w, lines.String()); err != nil {
					return
				}
			}
		}),
		"exponent": withNodes(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`+node+`,`+node+`]}`, "attack", "1e-999999999", "whole", "4")
		}, idle),
		"honest": guestKubeconfig(t),
	}
	image := servePayload(t)
	hostedClusters := map[string]*v1beta1.HostedCluster{}
	for _, name := range []string{"honest", "bomb", "trickle", "exponent"} {
		controlPlane(t, client.ObjectKey{Namespace: "memory-" + name, Name: name}, "memory/"+name, guests[name])
		hostedClusters[name] = hosted(t, "memory", name, label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })
	}
	reachable := func(name string) func() string { return condition(t, hostedClusters[name], v1beta1.GuestReachable) }

	t.Run("When a guest exceeds what is kept of it, it should be disconnected, and say why", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{"bomb", "trickle"} {
			g.Eventually(reachable(name)).Should(And(HavePrefix("False/OverBudget: "), ContainSubstring("more than 2000 objects")))
		}
		g.Expect(bombs.Load()).To(BeEquivalentTo(1))
		g.Expect(added.Load()).To(BeNumerically("<", 1_000_000))
	})

	t.Run("When a quantity takes long to parse, its object should be named, and the others counted", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(reachable("exponent")).Should(And(HavePrefix("True/ObjectsUnreadable: "), ContainSubstring("Node attack: status.capacity.cpu: ")))
		g.Eventually(func() int32 {
			read := &v1beta1.HostedCluster{}
			g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKeyFromObject(hostedClusters["exponent"]), read)).To(Succeed())
			return ptr.Deref(ptr.Deref(read.Status.AutoNode, v1beta1.AutoNodeStatus{}).VCPUs, 0)
		}).Should(BeEquivalentTo(4))
	})

	t.Run("When all that is so, their neighbour should be served as before", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(reachable("honest")).Should(HavePrefix("True/AsExpected"))
		expectServed(t, hostedClusters["honest"])
	})
	g.Expect(reachable("bomb")()).To(HavePrefix("False/OverBudget: "))
}
