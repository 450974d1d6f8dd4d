// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestCharge is a guest whose objects cost more CPU time than their bytes show.
func TestCharge(t *testing.T) {
	const unreadable = `{"metadata":{"name":"a","uid":[1,2,3,4,5,6,7,8,9]}}`
	deep := `{"metadata":{"name":"a"},"spec":` + strings.Repeat(`{"a":`, 47) + `7` + strings.Repeat(`}`, 48)
	for name, test := range map[string]struct {
		event string
		want  int
	}{
		"a bookmark":                       {`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}`, eventCost},
		"a change":                         {`{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"1"}}}`, eventCost},
		"a deletion":                       {`{"type":"DELETED","object":{"metadata":{"name":"a"}}}`, eventCost},
		"an unknown event":                 {`{"type":"X"}`, eventCost},
		"an object that is decoded twice":  {`{"type":"ADDED","object":` + unreadable + `}`, 2*eventCost + len(unreadable)},
		"an object that is nested in vain": {`{"type":"ADDED","object":` + deep + `}`, eventCost + 10*len(deep)},
	} {
		t.Run("When a watch has "+name+", it should be charged", func(t *testing.T) {
			g := NewWithT(t)
			charged := 0
			s := New(Config{Charge: func(bytes int) { charged += bytes }, Live: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()})
			d, err := s.decoderOf(kindKey{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node")}, nil)
			g.Expect(err).NotTo(HaveOccurred())
			e := &events{decoder: d, stream: newStream(strings.NewReader(test.event + "\n" + test.event))}
			for err == nil {
				_, _, err = e.Decode()
			}
			g.Expect(err).To(MatchError(io.EOF))
			g.Expect(charged).To(Equal(2 * test.want))
		})
	}
}

func TestItems(t *testing.T) {
	nodes := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "next"}}
	for i := range 100 {
		nodes.Items = append(nodes.Items, *likeReal(fmt.Sprint("node-", i)))
	}
	list := asJSON(t, nodes)
	for name, test := range map[string]struct {
		raw   []byte
		count int
	}{
		"with a hundred items":   {list, 100},
		"without items":          {[]byte(` { "items" : [ ] , "metadata" : { "resourceVersion":"7", "continue":"next" } } `), 0},
		"with null for items":    {[]byte(`{"items":null,"metadata":{"resourceVersion":"7", "continue":"next"}}`), 0},
		"whose metadata is last": {[]byte(`{"items":[{"metadata":{"name":"node-0"}}],"metadata":{"resourceVersion":"7","continue":"next"}}`), 1},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{"by halves": iotest.HalfReader, "byte by byte": iotest.OneByteReader} {
			t.Run("When a list "+name+" arrives "+how+", it should be split", func(t *testing.T) {
				g := NewWithT(t)
				n := 0
				found, err := readItems(reader(bytes.NewReader(test.raw)), func(raw []byte) error {
					read := &corev1.Node{}
					g.Expect(json.Unmarshal(raw, read)).To(Succeed())
					g.Expect(read.Name).To(Equal(fmt.Sprint("node-", n)))
					n++
					return nil
				})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found).To(Equal(listMeta{ResourceVersion: "7", Continue: "next"}))
				g.Expect(n).To(Equal(test.count))
			})
		}
	}

	t.Run("When a list ends early, is malformed, or has an item larger than allowed, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		nothing := func([]byte) error { return nil }
		for _, end := range []int{0, 2, 10, 100, len(list) / 2, len(list) - 20} {
			_, err := readItems(bytes.NewReader(list[:end]), nothing)
			g.Expect(err).To(HaveOccurred(), "%d", end)
		}
		for _, raw := range []string{`[`, `{"items":[{},]}`, `{"items":[{}}`, `{"items":{}]`, `{7:[]}`, `{,}`, `null`, `"items"`} {
			_, err := readItems(strings.NewReader(raw), nothing)
			g.Expect(err).To(HaveOccurred(), raw)
		}
		_, err := readItems(strings.NewReader(`{"items":[{"a":"`+strings.Repeat("x", 2*maxText)+`"}]}`), nothing)
		g.Expect(err).To(MatchError(errTooLarge))
		for _, field := range []string{"resourceVersion", "continue"} {
			_, err = readItems(strings.NewReader(`{"metadata":{"`+field+`":"`+strings.Repeat("7", maxPosition+1)+`"},"items":[]}`), nothing)
			g.Expect(err).To(MatchError(errPosition), "every request would repeat it")
		}
	})
}

func TestEvents(t *testing.T) {
	line := func(name string) string {
		raw, err := json.Marshal(&metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: asJSON(t, likeReal(name))}})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return string(raw)
	}

	t.Run("When a watch sends events, it should be split", func(t *testing.T) {
		for separator, reader := range map[string]func(io.Reader) io.Reader{"": iotest.HalfReader, "\n": iotest.OneByteReader} {
			g := NewWithT(t)
			s := newStream(reader(strings.NewReader(strings.Repeat(line("a")+separator, 10))))
			for range 10 {
				kind, object, err := s.event()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(kind).To(Equal("ADDED"))
				read := &corev1.Node{}
				g.Expect(json.Unmarshal(object, read)).To(Succeed())
				g.Expect(read.Name).To(Equal("a"))
			}
			_, _, err := s.event()
			g.Expect(err).To(MatchError(io.EOF))
		}
	})

	t.Run("When an event has its object first, it should be found", func(t *testing.T) {
		g := NewWithT(t)
		kind, object, err := newStream(strings.NewReader(`{"object":{"a":1},"type":"DELETED"}`)).event()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kind + string(object)).To(Equal(`DELETED{"a":1}`))
	})

	t.Run("When an event ends early, is malformed, or is larger than allowed, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		_, _, err := newStream(strings.NewReader(line("a")[:50])).event()
		g.Expect(err).To(MatchError(io.ErrUnexpectedEOF))
		for _, raw := range []string{`[]`, `{"type":7}`, `{"type":"ADDED" "object":{}}`, "k8s\x00"} {
			_, _, err := newStream(strings.NewReader(raw)).event()
			g.Expect(err).To(HaveOccurred(), raw)
		}
		_, _, err = newStream(strings.NewReader(`{"type":"ADDED","object":{"a":"` + strings.Repeat("x", maxText))).event()
		g.Expect(err).To(MatchError(errTooLarge))
	})
}
