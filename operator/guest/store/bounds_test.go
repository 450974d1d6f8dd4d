// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const noStreams = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`

// answers is an API server that lists nodes by list, and watches them by watch. A nil list is a watch that begins with one.
func answers(t *testing.T, list, watch http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "" && list != nil:
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write([]byte(noStreams))
		case query.Get("watch") == "":
			list(w, r)
		default:
			watch(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func empty(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"},"items":[]}`))
}

func idles(w http.ResponseWriter, r *http.Request) {
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// endless sends nodes without end, each with another name.
func endless(sent *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			lines := &strings.Builder{}
			for range 100 {
				fmt.Fprintf(lines, `{"type":"ADDED","object":{"metadata":{"name":"n%d","labels":{"a":"b"}}}}`+"\n", sent.Add(1))
			}
			if _, err := w.Write([]byte(lines.String())); err != nil {
				return
			}
		}
	}
}

func anyKind(schema.GroupVersionKind) Kind { return Kind{} }

// TestExceeded fills the memory of the operator within a guest's budget of bytes.
func TestExceeded(t *testing.T) {
	sent := &atomic.Int64{}
	for name, test := range map[string]struct {
		bounds      Bounds
		list, watch http.HandlerFunc
	}{
		"lists a million and a half of empty items": {Bounds{}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"},"items":[` + strings.Repeat("{},", 1_500_000) + `{}]}`))
		}, idles},
		"lists page after page": {Bounds{Objects: 1000}, func(w http.ResponseWriter, _ *http.Request) {
			items := strings.Repeat(`{"metadata":{"name":"a"}},`, 400) // a server that pages may repeat itself
			_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1","continue":"more"},"items":[` + items + `{"metadata":{"name":"b"}}]}`))
		}, idles},
		"lists large objects": {Bounds{Bytes: 1 << 20}, func(w http.ResponseWriter, _ *http.Request) {
			item := `{"metadata":{"name":"a","annotations":{"a":"` + strings.Repeat("x", 1<<16) + `"}}},`
			_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"},"items":[` + strings.Repeat(item, 100) + `{}]}`))
		}, idles},
		"adds nodes without end":         {Bounds{Objects: 1000}, empty, endless(sent)},
		"begins a list that doesn't end": {Bounds{Objects: 1000}, nil, endless(sent)},
		"sends an object of eight MiB": {Bounds{}, empty, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"a":"` + strings.Repeat("x", 8<<20)))
		}},
		"lists a text of eight MiB": {Bounds{}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"` + strings.Repeat("x", 8<<20)))
		}, idles},
	} {
		t.Run("When a guest "+name+", its Store should close and keep nothing", func(t *testing.T) {
			g := NewWithT(t)
			exceeded := make(chan error, 100)
			before, after := goruntime.MemStats{}, goruntime.MemStats{}
			server := answers(t, test.list, test.watch)
			goruntime.ReadMemStats(&before)
			s := storeOf(t, server, anyKind, func(c *Config) {
				c.Bounds, c.Exceeded = test.bounds, func(why error) { exceeded <- why }
			})
			g.Expect(s.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(Succeed())
			var why error
			g.Eventually(exceeded).Should(Receive(&why))
			g.Expect(why.Error()).To(HavePrefix("it"))
			err := s.List(t.Context(), &corev1.NodeList{})
			g.Expect(err).To(MatchError(ErrClosed))
			g.Expect(err).To(MatchError(why))
			g.Expect(s.Get(t.Context(), client.ObjectKey{Name: "n1"}, &corev1.Node{})).To(MatchError(ErrClosed))
			g.Expect(s.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(MatchError(ErrClosed))
			goruntime.ReadMemStats(&after)
			g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 256<<20), "all that was allocated meanwhile, by the server too")
			s.usage.mu.Lock()
			kept := s.usage.retained
			s.usage.mu.Unlock()
			g.Expect(s.usage.bounds.check(kept)).To(Succeed())
			g.Consistently(exceeded, "50ms").ShouldNot(Receive(), "once is enough")
		})
	}
}

func TestAccount(t *testing.T) {
	g := NewWithT(t)
	k := newKind(configMaps, true, nil)
	for range 100 { // whatever happens, no bound is used up
		g.Expect(k.Replace([]any{configMap("a", "1"), configMap("b", "1")}, "1")).To(Succeed())
		g.Expect(k.Update(configMap("a", "22"))).To(Succeed())
		g.Expect(k.Delete(configMap("b", "1"))).To(Succeed())
		_, err := k.collect(configMap("c", "1"))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(k.usage.retained).To(Equal(Bounds{Objects: 1, Bytes: sizeOf(configMap("a", "22"))}))
	k.usage.release(k)
	g.Expect(k.usage.collected).To(BeZero())
	g.Expect(k.Replace(nil, "2")).To(Succeed())
	g.Expect(k.usage.retained).To(BeZero())
}

// withQuantity is a node whose number of CPUs is that text.
func withQuantity(t *testing.T, name, cpu string) string {
	t.Helper()
	raw, err := json.Marshal(likeReal(name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(raw), `"capacity":{"cpu":"110"`, `"capacity":{"cpu":"`+cpu+`"`, 1)
}

// watchOf is a watch of these events.
func watchOf(events <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case <-r.Context().Done():
				return
			case event := <-events:
				_, _ = w.Write([]byte(event + "\n"))
			}
			w.(http.Flusher).Flush()
		}
	}
}

func TestUnreadable(t *testing.T) {
	listed := func(w http.ResponseWriter, _ *http.Request) {
		costly := `{"metadata":{"name":"costly"},"spec":{"taints":[` + strings.Repeat("{},", 1<<20) + `{}]}}`
		_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"},"items":[` + strings.Join([]string{
			withQuantity(t, "bad", "1e-999999999"), withQuantity(t, "worse", "1e1.5"), costly, `{"metadata":{"name":7}}`, `{"metadata":{"name":"a\u001b[2J"}}`, `{"metadata":{"name":"` + strings.Repeat("x", 254) + `"}}`, withQuantity(t, "good", "4"),
		}, ",") + `]}`))
	}
	events := make(chan string)
	g := NewWithT(t)
	noticed := &atomic.Int64{}
	s := storeOf(t, answers(t, listed, watchOf(events)), anyKind, func(c *Config) { c.Noticed = func() { noticed.Add(1) } })
	g.Expect(s.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(Succeed())
	cpus := func() map[string]string {
		nodes, found := &corev1.NodeList{}, map[string]string{}
		g.Expect(s.List(t.Context(), nodes)).To(Succeed())
		for i := range nodes.Items {
			found[nodes.Items[i].Name] = nodes.Items[i].Status.Capacity.Cpu().String()
		}
		return found
	}
	g.Expect(cpus()).To(Equal(map[string]string{"bad": "0", "worse": "0", "good": "4"}), "When a quantity can't be read, the rest of its node and every other node should be")
	count, example := s.Unreadable()
	g.Expect(count).To(Equal(3))
	g.Expect(example).To(HavePrefix(`Node bad: status.capacity.cpu: "1e-999999999" isn't a quantity`))
	g.Expect(noticed.Load()).To(BeEquivalentTo(3))

	listing := &corev1.NodeList{}
	g.Expect(s.Lists().List(t.Context(), listing)).To(Succeed(), "When the API server is asked for a list, it should be read likewise")
	g.Expect(listing.Items).To(HaveLen(3))
	g.Expect(listing.ResourceVersion).To(Equal("1"))

	for _, event := range []string{
		`{"type":"MODIFIED","object":` + withQuantity(t, "bad", "8") + `}`,
		`{"type":"MODIFIED","object":` + withQuantity(t, "good", "1e+999999999") + `}`,
		`{"type":"DELETED","object":` + withQuantity(t, "worse", "1e1.5") + `}`,
	} {
		events <- event
	}
	g.Eventually(cpus).Should(Equal(map[string]string{"bad": "8", "good": "0"}), "When an object is corrected or deleted, that should be seen")
	g.Eventually(func() string { _, example := s.Unreadable(); return example }).Should(HavePrefix("Node costly: "))
	count, _ = s.Unreadable()
	g.Expect(count).To(Equal(2))
}

func TestSelector(t *testing.T) {
	g := NewWithT(t)
	item := func(name, label string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"a":%q}}}`, name, label)
	}
	events := make(chan string)
	s := storeOf(t, answers(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"},"items":[` + item("ours", "b") + "," + item("foreign", "c") + `]}`))
	}, watchOf(events)), func(schema.GroupVersionKind) Kind { return Kind{Label: labels.SelectorFromSet(labels.Set{"a": "b"})} }, nil)
	g.Expect(s.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(Succeed())
	names := func() (names []string) {
		nodes := &corev1.NodeList{}
		g.Expect(s.List(t.Context(), nodes)).To(Succeed())
		for i := range nodes.Items {
			names = append(names, nodes.Items[i].Name)
		}
		return names
	}
	g.Expect(names()).To(ConsistOf("ours"), "When a guest sends objects that no watch selected, they should not be kept")
	events <- `{"type":"ADDED","object":` + item("another", "c") + `}`
	events <- `{"type":"MODIFIED","object":` + item("ours", "c") + `}`
	g.Eventually(names).Should(BeEmpty(), "When an object isn't selected any more, it should be dropped")
	events <- `{"type":"ADDED","object":` + item("ours", "b") + `}`
	g.Eventually(names).Should(ConsistOf("ours"))
}

// TestFormats reads what real API servers send.
func TestFormats(t *testing.T) {
	for name, test := range map[string]struct{ streams bool }{
		"a list": {}, "a watch": {streams: true},
	} {
		t.Run("When a guest sends "+name+", its nodes should be read", func(t *testing.T) {
			g := NewWithT(t)
			s := storeOf(t, serveNodes(t, 10, test.streams), anyKind, nil)
			g.Expect(s.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(Succeed())
			nodes := &corev1.NodeList{}
			g.Expect(s.List(t.Context(), nodes)).To(Succeed())
			g.Expect(nodes.Items).To(HaveLen(10))
			read := &corev1.Node{}
			g.Expect(s.Get(t.Context(), client.ObjectKey{Name: "node-3"}, read)).To(Succeed())
			want := likeReal("node-3")
			want.ManagedFields, want.Status.Images, want.Status.Conditions = nil, nil, nil // which no controller reads
			g.Expect(asJSON(t, read)).To(MatchJSON(asJSON(t, want)))
			partial := &metav1.PartialObjectMetadata{}
			partial.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
			g.Expect(s.Get(t.Context(), client.ObjectKey{Name: "node-3"}, partial)).To(Succeed())
			g.Expect(partial.Labels).To(Equal(want.Labels))
			if !test.streams {
				listing := &corev1.NodeList{}
				g.Expect(s.Lists().List(t.Context(), listing)).To(Succeed())
				g.Expect(listing.Items).To(HaveLen(10))
			}
		})
	}
}

func asJSON(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestStatus(t *testing.T) {
	read := func(status string) error {
		_, err := Decode([]byte(`{"metadata":{"name":"a"},"status":`+status+`}`), &v1alpha1.ClusterAPINodeClass{}, func(int) {})
		return err
	}
	g := NewWithT(t)
	const malformed = `{"type":"a","lastTransitionTime":"2026-12-01t06:00:00z"}`
	g.Expect(read(`{"conditions":[null,`+malformed+`]}`)).To(Succeed(), "When a condition is null, it shouldn't end the operator")
	g.Expect(read(`{"templates":[`+strings.Repeat("{},", 1<<17)+`{}],"conditions":[`+malformed+`]}`)).To(
		MatchError(ContainSubstring("too much memory")), "When a status would need too much memory, it shouldn't be decoded")
}

func TestSize(t *testing.T) {
	g := NewWithT(t)
	const count = 2000
	before, after := goruntime.MemStats{}, goruntime.MemStats{}
	raw := asJSON(t, likeReal("a"))
	kept := make([]*corev1.Node, count)
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	for i := range kept {
		kept[i] = &corev1.Node{}
		g.Expect(json.Unmarshal(raw, kept[i])).To(Succeed())
	}
	goruntime.GC()
	goruntime.ReadMemStats(&after)
	took := (int(after.HeapAlloc) - int(before.HeapAlloc)) / count
	g.Expect(Size(kept[0])).To(BeNumerically("~", took, took/2), "When an object is kept, its size should be near to what it takes")
}
