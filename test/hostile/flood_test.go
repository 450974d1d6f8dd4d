// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// TestFlood is an admin of a guest whose API server answers every write with a megabyte of other words each time, to fill what the operator
// writes.
func TestFlood(t *testing.T) {
	const label = "hostile-flood"
	g, ctx := NewWithT(t), t.Context()
	var statusWrites, events atomic.Int64
	config := rest.CopyConfig(clusters.Management.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			switch {
			case request.Method == http.MethodGet:
			case strings.HasSuffix(request.URL.Path, "/hostedclusters/flood/status"):
				statusWrites.Add(1)
			case strings.Contains(request.URL.Path, "/events"):
				events.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	serveAs(t, config, label)

	honest := honestGuest(t)
	var refused atomic.Int64
	guest := listen(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			honest.ServeHTTP(w, r)
			return
		}
		words := fmt.Sprintf("\x1b[2J\n%d ", refused.Add(1)) + strings.Repeat("flood ", 1<<17)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Reason: metav1.StatusReasonInternalError, Message: words,
		})
	})
	content, err := clientcmd.Write(*guest.kubeconfig())
	g.Expect(err).NotTo(HaveOccurred())
	controlPlane(t, client.ObjectKey{Namespace: "admin-flood", Name: "flood"}, "admin/flood", content)

	tag := servePayload(t)
	hostedCluster := hosted(t, "admin", "flood", label, func(hostedCluster *v1beta1.HostedCluster) { hostedCluster.Spec.Release.Image = tag })

	t.Run("When a guest floods errors, conditions, status and events should stay short and few", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(condition(t, hostedCluster, v1beta1.AutoNodeEnabled)).Should(ContainSubstring("flood"))
		g.Consistently(func(g Gomega) {
			read := &v1beta1.HostedCluster{}
			g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKeyFromObject(hostedCluster), read)).To(Succeed())
			for _, c := range read.Status.Conditions {
				g.Expect(len(c.Message)).To(BeNumerically("<=", 1024), c.Type)
				g.Expect(c.Message).NotTo(ContainSubstring("\x1b"), c.Type)
				g.Expect(strings.Count(c.Message, "flood ")).To(BeNumerically("<", 200), c.Type)
			}
		}, 5*time.Second).Should(Succeed())
		t.Logf("%d refused writes came to %d writes of the status and %d of events", refused.Load(), statusWrites.Load(), events.Load())
		g.Expect(statusWrites.Load()).To(BeNumerically("<", 40))
		g.Expect(events.Load()).To(BeNumerically("<", 40))
		list := &corev1.EventList{}
		g.Expect(clusters.Management.Client.List(ctx, list, client.InNamespace("admin"))).To(Succeed())
		for _, event := range list.Items {
			g.Expect(len(event.Message)).To(BeNumerically("<=", 1024))
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
