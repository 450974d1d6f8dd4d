// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
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
)

// expectServed expects the operator to do what a HostedCluster's author requests next: to pause it.
func expectServed(t *testing.T, hostedCluster *v1beta1.HostedCluster) {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	before := &v1beta1.HostedCluster{}
	g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(hostedCluster), before)).To(Succeed())
	after := before.DeepCopy()
	after.Spec.PausedUntil = ptr.To("true")
	g.Expect(management.Patch(t.Context(), after, client.MergeFrom(before))).To(Succeed())
	g.Eventually(condition(t, hostedCluster, v1beta1.AutoNodeEnabled)).Should(ContainSubstring("/Paused"))
}

// TestBudget is an admin of a guest whose API server sends nodes without end, each with a kubelet version of its own and annotations of the largest
// size, to fill the memory of the operator that serves all guests. It counts bytes: after the burst, the budget passes one byte a second.
func TestBudget(t *testing.T) {
	const (
		label = "hostile-budget"
		burst = 8 << 20
		// buffers is what kernels hold of the connection, at most.
		buffers = 32 << 20
	)
	g, ctx := NewWithT(t), t.Context()
	serveUntil(t, ctx, clusters.Management.Config, label, func(options *operator.Options) {
		options.GuestBudget = egress.Budget{Bytes: burst, PerSecond: 1, Grace: time.Hour, Backoff: time.Hour}
		options.GuestTimeout = 2 * time.Second
	})
	honest := honestGuest(t)
	var sent atomic.Int64
	annotation := strings.Repeat(flooded, 200<<10/len(flooded))
	endless := listen(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" || r.URL.Query().Get("watch") == "" {
			honest.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		for i := 0; ; i++ {
			n, err := fmt.Fprintf(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%[1]d","uid":"u%[1]d","resourceVersion":"1","labels":{"karpenter.sh/nodepool":"a"},`+
				`"annotations":{"a":%[2]q}},"status":{"nodeInfo":{"kubeletVersion":"v1.%[1]d.0"}}}}`+"\n", i, annotation)
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	content, err := clientcmd.Write(*endless.kubeconfig())
	g.Expect(err).NotTo(HaveOccurred())
	image := servePayload(t)
	controlPlane(t, client.ObjectKey{Namespace: "budget-honest", Name: "honest"}, "budget/honest", guestKubeconfig(t))
	neighbour := hosted(t, "budget", "honest", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })
	g.Eventually(condition(t, neighbour, v1beta1.GuestReachable)).Should(HavePrefix("True/AsExpected"))
	controlPlane(t, client.ObjectKey{Namespace: "budget-endless", Name: "endless"}, "budget/endless", content)
	flood := hosted(t, "budget", "endless", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })

	t.Run("When a guest sends without end, GuestReachable should report that it exceeds its budget, and the operator should read no more than that", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(condition(t, flood, v1beta1.GuestReachable)).Should(MatchRegexp("^(True|False)/OverBudget: "))
		g.Expect(sent.Load()).To(BeNumerically("<", burst+buffers))
	})

	t.Run("When that is so, its neighbour should be served as before", func(t *testing.T) {
		g := NewWithT(t)
		expectServed(t, neighbour)
		g.Expect(condition(t, neighbour, v1beta1.GuestReachable)()).To(HavePrefix("True/"))
		g.Expect(sent.Load()).To(BeNumerically("<", burst+buffers))
	})
}
