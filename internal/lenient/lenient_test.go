// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// machine is a Machine's JSON, with keys in the order in which API servers write them.
func machine(name, updated string, version int) string {
	return fmt.Sprintf(`{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Machine","metadata":{"name":%q,"namespace":"clusters-blue","resourceVersion":"%d","uid":%q},`+
		`"spec":{"clusterName":"blue","providerID":"example://%s"},"status":{"lastUpdated":%q,"phase":"Running"}}`, name, version, name, name, updated)
}

func machines(items ...string) string {
	return `{"apiVersion":"cluster.x-k8s.io/v1beta2","items":[` + strings.Join(items, ",") + `],"kind":"MachineList","metadata":{"resourceVersion":"10"}}`
}

const good, bad = "2026-12-01T06:00:00Z", "2026-12-01t06:00:00z"

// server serves Machines. Its watches send what a test gives them.
type server struct {
	list     atomic.Value
	lists    atomic.Int32
	watches  atomic.Int32
	events   chan string
	requests atomic.Int32
}

func (s *server) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	s.requests.Add(1)
	w.Header().Set("Content-Type", "application/json")
	if request.URL.Query().Get("watch") == "" {
		s.lists.Add(1)
		_, _ = io.WriteString(w, s.list.Load().(string))
		return
	}
	if request.URL.Query().Get("sendInitialEvents") != "" { // as an API server without streaming lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	s.watches.Add(1)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-request.Context().Done():
			return
		case event := <-s.events:
			_, _ = io.WriteString(w, event)
			w.(http.Flusher).Flush()
		}
	}
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{clusterv1.GroupVersion})
	m.Add(clusterv1.GroupVersion.WithKind("Machine"), meta.RESTScopeNamespace)
	return m
}

func serve(t *testing.T, list string) (*server, *rest.Config) {
	t.Helper()
	s := &server{events: make(chan string)}
	s.list.Store(list)
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	return s, &rest.Config{Host: listening.URL}
}

func newDecoder(t testing.TB, report func(object *metav1.PartialObjectMetadata, why string)) *Decoder {
	t.Helper()
	return New(testScheme(t), "undecodable", report)
}

// cached is a running cache whose answers go through a Decoder.
func cached(t *testing.T, d *Decoder, config *rest.Config) cache.Cache {
	t.Helper()
	d.Wrap(config)
	watched, err := cache.New(config, cache.Options{Scheme: d.scheme, Mapper: mapper()})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	running, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = watched.Start(running) }()
	t.Cleanup(func() { stop(); <-ended })
	return watched
}

func TestInformer(t *testing.T) {
	ctx := t.Context()
	s, config := serve(t, machines(machine("one", good, 1), machine("two", bad, 2)))
	reports := make(chan string, 10)
	d := newDecoder(t, func(object *metav1.PartialObjectMetadata, why string) { reports <- object.Name + ": " + why })
	watched := cached(t, d, config)
	get := func(name string) *clusterv1.Machine {
		m := &clusterv1.Machine{}
		if watched.Get(ctx, client.ObjectKey{Namespace: "clusters-blue", Name: name}, m) != nil {
			return nil
		}
		return m
	}
	version := func(name string) func() string {
		return func() string {
			if m := get(name); m != nil {
				return m.ResourceVersion
			}
			return ""
		}
	}
	count := func() int { return testutil.CollectAndCount(d) }

	t.Run("When one object of a list can't be decoded, all should be there, and that one reported", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(version("two")).Should(Equal("2"))
		g.Expect(version("one")()).To(Equal("1"))
		g.Expect(<-reports).To(HavePrefix("two: status.lastUpdated: "))
		g.Expect(get("two").Spec.ProviderID).To(Equal("example://two"), "what can be decoded stays")
		g.Expect(get("two").Status.LastUpdated.UTC().Format("2006-01-02T15:04:05Z")).To(Equal(good), "a time is understood")
		g.Expect(count()).To(Equal(1))
	})
	t.Run("When events of such objects follow, the watch should go on without another list", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(s.watches.Load).Should(BeNumerically(">", 0))
		requests := s.requests.Load()
		for i := range 20 {
			s.events <- `{"type":"MODIFIED","object":` + machine("two", bad, 20+i) + "}\n"
		}
		s.events <- `{"type":"MODIFIED","object":` + machine("one", good, 40) + "}\n"
		g.Eventually(version("one")).Should(Equal("40"))
		g.Expect(version("two")()).To(Equal("39"))
		g.Expect(s.requests.Load()).To(Equal(requests))
		g.Expect(reports).To(BeEmpty(), "one reason, one report")
	})
	t.Run("When it can be decoded again, it should not be counted", func(t *testing.T) {
		g := NewWithT(t)
		s.events <- `{"type":"MODIFIED","object":` + machine("two", good, 41) + "}\n"
		g.Eventually(version("two")).Should(Equal("41"))
		g.Expect(count()).To(BeZero())
	})
}

// A watch meets its first object that can't be decoded.
func TestWatch(t *testing.T) {
	of := func(value string) func(version int) string {
		return func(version int) string { return machine("two", value, version) }
	}
	for name, two := range map[string]func(version int) string{
		"When a watch meets its first such object":     of(bad),
		"When it meets a quantity that takes too long": of(`1e-999999999`),
		"When it meets text that looks like such a quantity": func(version int) string {
			return strings.Replace(machine("two", good, version), `"uid"`, `"annotations":{"a":"1e9999"},"uid"`, 1)
		},
	} {
		t.Run(name+", the informer should go on without another list", func(t *testing.T) {
			g, ctx := NewWithT(t), t.Context()
			s, config := serve(t, machines(machine("one", good, 1)))
			d := newDecoder(t, func(*metav1.PartialObjectMetadata, string) {})
			watched := cached(t, d, config)
			list := &clusterv1.MachineList{}
			g.Eventually(func() error { return watched.List(ctx, list) }).Should(Succeed())
			lists := s.lists.Load()
			s.events <- `{"type":"ADDED","object":` + two(2) + "}\n"
			g.Eventually(func() int { _ = watched.List(ctx, list); return len(list.Items) }).Should(Equal(2))
			s.events <- `{"type":"MODIFIED","object":` + two(3) + "}\n"
			s.events <- `{"type":"MODIFIED","object":` + machine("one", good, 4) + "}\n"
			g.Eventually(func(g Gomega) {
				m := &clusterv1.Machine{}
				g.Expect(watched.Get(ctx, client.ObjectKey{Namespace: "clusters-blue", Name: "one"}, m)).To(Succeed())
				g.Expect(m.ResourceVersion).To(Equal("4"))
			}).Should(Succeed())
			g.Expect(s.lists.Load()).To(Equal(lists))
		})
	}
}

func TestDirect(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	s, config := serve(t, machines(machine("one", good, 1), machine("two", bad, 2)))
	reports := make(chan string, 10)
	d := newDecoder(t, func(object *metav1.PartialObjectMetadata, why string) { reports <- object.Name })
	d.Wrap(config)
	live, err := client.New(config, client.Options{Scheme: d.scheme, Mapper: mapper()})
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("When a client lists, all should be there", func(t *testing.T) {
		g := NewWithT(t)
		list := &clusterv1.MachineList{}
		g.Expect(live.List(ctx, list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(2))
		g.Expect(reports).To(Receive(Equal("two")))
		g.Expect(reports).To(BeEmpty())
	})
	t.Run("When it reads one, it should get it", func(t *testing.T) {
		g := NewWithT(t)
		s.list.Store(machine("two", bad, 2))
		m := &clusterv1.Machine{}
		g.Expect(live.Get(ctx, client.ObjectKey{Namespace: "clusters-blue", Name: "two"}, m)).To(Succeed())
		g.Expect(m.Spec.ProviderID).To(Equal("example://two"))
	})
}

// BenchmarkList decodes a list as API machinery does, and as the Decoder does beside it, in ns/op.
func BenchmarkList(b *testing.B) {
	items := make([]string, 2000)
	for i := range items {
		items[i] = machine(fmt.Sprintf("general-%d", i), good, i)
	}
	raw := []byte(machines(items...))
	b.Run("machinery", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &clusterv1.MachineList{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoder", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		d := newDecoder(b, nil)
		for b.Loop() {
			d.answer(raw, "")
		}
	})
}

// Whatever of a NodePool's text is JSON must be decodable afterwards, and quickly.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"name":"a"},"spec":{"limits":{"cpu":"1e-999999999"},"template":{"spec":{"taints":[{"timeAdded":"x"}]}}}}`,
		`{"spec":[],"metadata":{"annotations":[],"labels":{"a":1},"creationTimestamp":{}},"status":{"conditions":{}}}`,
		`{"spec":{"disruption":{"budgets":[{"duration":1,"nodes":{}}],"consolidateAfter":[]},"weight":"1"}}`, `{"metadata":[]}`, `{"metadata":{"ownerReferences":[1]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		decoded, why, err := Decode(raw, &karpv1.NodePool{}, standard)
		if err != nil {
			return
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(decoded, &karpv1.NodePool{}); err != nil {
			t.Errorf("%s\nbecame %s, of which was left out %s: %v", raw, decoded, why, err)
		}
	})
}
