// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/operator/guest/store"
)

// TestNeighbours connects to 200 guests, one of which fills the operator's memory with the default bounds.
func TestNeighbours(t *testing.T) {
	const guests, nodes = 200, 20
	const bomb = 1_500_000 // items of three bytes: 4.3 MiB, which were 5.4 GiB when whole lists were decoded
	const line = `{"type":"ADDED","object":{"metadata":{"name":"n%d","resourceVersion":"1"}}}` + "\n"
	g, ctx := NewWithT(t), t.Context()
	joined := make(chan struct{}) // closed when each honest guest gets another node
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var guest int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d/", &guest); err != nil || !strings.HasSuffix(r.URL.Path, "/nodes") {
			_, _ = io.WriteString(w, "{}")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case query.Get("watch") != "" && guest == 1: // small nodes without end
			lines := &strings.Builder{}
			for n := 0; r.Context().Err() == nil; n++ {
				fmt.Fprintf(lines, line, n)
				if lines.Len() < 64<<10 {
					continue
				}
				if _, err := io.WriteString(w, lines.String()); err != nil {
					return
				}
				lines.Reset()
			}
		case query.Get("watch") != "":
			w.(http.Flusher).Flush()
			select {
			case <-joined:
				_, _ = fmt.Fprintf(w, line, nodes)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
		case guest == 0:
			_, _ = io.WriteString(w, `{"items":[`+strings.Repeat("{},", bomb-1)+`{}]}`)
		default:
			items := make([]string, nodes)
			for n := range items {
				items[n] = fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, n)
			}
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[`+strings.Join(items, ",")+`]}`)
		}
	}))
	t.Cleanup(server.Close)

	scheme := runtime.NewScheme()
	g.Expect(errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme))).To(Succeed())
	management := fake.NewClientBuilder().WithScheme(scheme)
	keys := make([]client.ObjectKey, guests)
	for i := range keys {
		keys[i] = client.ObjectKey{Namespace: "clusters", Name: fmt.Sprint(i)}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: keys[i].Namespace, Name: keys[i].Name}}
		cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
		management.WithObjects(cluster)
	}
	var mu sync.Mutex
	changes := map[string]int{}
	connections := New(Config{
		Management: management.Build(), Scheme: scheme, Clock: clock.RealClock{}, Retry: time.Hour, Timeout: time.Minute, Backoff: time.Hour,
		Kinds:  func(schema.GroupVersionKind) store.Kind { return store.Kind{} },
		Charge: func(string, int) {}, Noticed: func(context.Context, client.ObjectKey) {},
		Wanted: func(context.Context, *clusterv1.Cluster) bool { return true },
		Access: func(_ context.Context, key client.ObjectKey) (*rest.Config, error) {
			return &rest.Config{Host: server.URL + "/" + key.Name}, nil
		},
		Probed: func(context.Context, client.ObjectKey, func() error) {},
		Changed: func(_ context.Context, key client.ObjectKey) {
			mu.Lock()
			defer mu.Unlock()
			changes[key.Name]++
		},
	})
	stop, ended := context.WithCancel(ctx)
	t.Cleanup(func() { ended(); _ = connections.Start(stop) })
	connect := func(key client.ObjectKey) *Guest {
		_, err := connections.Reconcile(ctx, reconcile.Request{NamespacedName: key})
		g.Expect(err).NotTo(HaveOccurred())
		guest, err := connections.Guest(key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(guest.Store.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(Succeed())
		return guest
	}
	honest := make([]*Guest, 0, guests)
	for _, key := range keys[2:] {
		honest = append(honest, connect(key))
	}
	count := func(guest *Guest) int {
		list := &corev1.NodeList{}
		g.Expect(guest.Store.List(ctx, list)).To(Succeed())
		return len(list.Items)
	}
	for _, guest := range honest {
		g.Expect(count(guest)).To(Equal(nodes))
	}
	before, peak := heap(), uint64(0)
	attackers := []*Guest{connect(keys[0]), connect(keys[1])}
	for _, key := range keys[:2] {
		g.Eventually(func() error {
			goruntime.ReadMemStats(&memory)
			peak = max(peak, memory.HeapInuse)
			return connections.Health(key).Exceeded
		}, 10*time.Minute, 10*time.Millisecond).Should(HaveOccurred(), "When a guest exceeds its bounds, it should be disconnected")
		_, err := connections.Guest(key)
		g.Expect(err).To(MatchError(ErrNotConnected))
	}
	after := heap()
	close(joined)
	for i, guest := range honest {
		g.Eventually(func() int { return count(guest) }).Should(Equal(nodes+1), "When another guest does that, what changes elsewhere should still be seen")
		g.Expect(connections.Guest(keys[i+2])).To(BeIdenticalTo(guest))
		g.Expect(changes[keys[i+2].Name]).To(Equal(1), "no other guest is lost")
	}
	t.Logf("%d honest guests with %d nodes each: %d MiB of heap before, %d MiB in use at most, %d MiB after", len(honest), nodes, before>>20, peak>>20, after>>20)
	g.Expect(peak).To(BeNumerically("<", before+600<<20))
	g.Expect(after).To(BeNumerically("<", before+64<<20), "what was kept of it is dropped")
	goruntime.KeepAlive(attackers)
}

var memory goruntime.MemStats

// heap is what is in use after a collection.
func heap() uint64 {
	goruntime.GC()
	goruntime.ReadMemStats(&memory)
	return memory.HeapAlloc
}
