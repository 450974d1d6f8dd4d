// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/operator/guest/wire"
)

const enough = 1 << 20

var (
	nodes = wire.Of(reflect.TypeFor[corev1.Node]())
	pools = wire.Of(reflect.TypeFor[karpv1.NodePool]())
	some  = nodes.Only("metadata", "spec.providerID", "status.capacity.cpu", "status.nodeInfo.kubeletVersion")
)

func node() *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": `"b\`}}, Spec: corev1.NodeSpec{ProviderID: "p", PodCIDR: "c"}}
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi")}
	node.Status.NodeInfo.KubeletVersion, node.Status.NodeInfo.OSImage = "v1", "os"
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}}
	return node
}

func marshal(t testing.TB, object any) []byte {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestOnly(t *testing.T) {
	g := NewWithT(t)
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": `"b\`}}, Spec: corev1.NodeSpec{ProviderID: "p"}}
	want.Status.Capacity, want.Status.NodeInfo.KubeletVersion = corev1.ResourceList{"cpu": resource.MustParse("4")}, "v1"
	filtered, checked, err := some.FilterJSON(nil, marshal(t, node()), enough)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(checked.Faults).To(BeEmpty())
	read := &corev1.Node{}
	g.Expect(some.Decode(filtered, enough, read)).To(BeEmpty())
	g.Expect(marshal(t, read)).To(MatchJSON(marshal(t, want)), "When fields are chosen, JSON should keep no others")
	raw, err := node().Marshal()
	g.Expect(err).NotTo(HaveOccurred())
	filtered, checked, err = some.FilterProtobuf(nil, raw, enough)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(checked.Faults).To(BeEmpty())
	read = &corev1.Node{}
	g.Expect(read.Unmarshal(filtered)).To(Succeed())
	g.Expect(marshal(t, read)).To(MatchJSON(marshal(t, want)), "When fields are chosen, protobuf should keep no others")

	filtered, _, err = nodes.FilterProtobuf(nil, raw, enough)
	g.Expect(err).NotTo(HaveOccurred())
	read = &corev1.Node{}
	g.Expect(read.Unmarshal(filtered)).To(Succeed())
	g.Expect(marshal(t, read)).To(MatchJSON(marshal(t, node())), "When none are chosen, all should be kept")
}

// TestQuantities parses none of what takes minutes: kubernetes/kubernetes#106386.
func TestQuantities(t *testing.T) {
	for name, text := range map[string]string{
		"a large negative exponent": `"1e-999999999"`, "a large exponent": `"1E+999999999"`, "a number": `1e-999999999`, "white space": `" 1e-999999999 "`,
		"a long number": `"` + strings.Repeat("9", 300) + `"`,
	} {
		t.Run("When a quantity has "+name+", it should be left out and named", func(t *testing.T) {
			g := NewWithT(t)
			raw := []byte(`{"metadata":{"name":"a"},"spec":{"limits":{"nodes":"3","cpu":` + text + `}}}`)
			checked, err := pools.CheckJSON(raw, enough)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(checked.Faults).To(HaveLen(1))
			filtered, checked, err := pools.FilterJSON(nil, raw, enough)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(checked.Faults).To(HaveExactElements(HaveField("Path", "spec.limits.cpu")))
			g.Expect(filtered).To(MatchJSON(`{"metadata":{"name":"a"},"spec":{"limits":{"nodes":"3"}}}`))
		})
	}

	t.Run("When it is in protobuf, it should be left out and named", func(t *testing.T) {
		g := NewWithT(t)
		raw, err := node().Marshal()
		g.Expect(err).NotTo(HaveOccurred())
		raw = bytes.Replace(raw, []byte("1Gi"), []byte("1e-999999999"), 1)
		// The lengths that the text is within: those of the entry and the quantity.
		raw = lengthen(t, raw, []byte("memory"), 9)
		filtered, checked, err := nodes.FilterProtobuf(nil, raw, enough)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(checked.Faults).To(HaveExactElements(HaveField("Path", "status.capacity.memory")))
		read := &corev1.Node{}
		g.Expect(read.Unmarshal(filtered)).To(Succeed())
		g.Expect(read.Status.Capacity).To(HaveLen(1))
	})
}

// lengthen makes a status of a Node whose capacity of a resource has grown by so many bytes.
func lengthen(t *testing.T, raw, name []byte, by int) []byte {
	t.Helper()
	at := bytes.Index(raw, name)
	raw[at+len(name)+1] += byte(by) // the quantity
	raw[at+len(name)+3] += byte(by) // its text
	raw[at-3] += byte(by)           // the entry
	for i := range raw[:at-4] {     // the status
		if raw[i] == 0x1a && int(raw[i+1]) == len(raw)-i-2-by {
			raw[i+1] += byte(by)
			return raw
		}
	}
	t.Fatal("no status")
	return nil
}

func TestDecode(t *testing.T) {
	for name, test := range map[string]struct{ raw, path string }{
		"a duration overflows":          {`{"spec":{"template":{"spec":{"expireAfter":"999999999999999h"}},"replicas":3}}`, "spec.template.spec.expireAfter"},
		"a time is in lower case":       {`{"spec":{"replicas":3},"status":{"conditions":[{"type":"A","lastTransitionTime":"2026-12-01t06:00:00z"}]}}`, "status.conditions.lastTransitionTime"},
		"a quantity isn't one":          {`{"spec":{"replicas":3,"limits":{"cpu":"1e1.5"}}}`, "spec.limits.cpu"},
		"a list is a text":              {`{"spec":{"replicas":3,"disruption":{"budgets":"all"}}}`, "spec.disruption.budgets"},
		"a number is beyond its type's": {`{"spec":{"replicas":3,"weight":99999999999}}`, "spec.weight"},
	} {
		t.Run("When "+name+", it should be left out, and the rest decoded", func(t *testing.T) {
			g := NewWithT(t)
			filtered, checked, err := pools.FilterJSON(nil, []byte(test.raw), enough)
			g.Expect(err).NotTo(HaveOccurred())
			pool := &karpv1.NodePool{}
			faults, err := pools.Decode(filtered, enough, pool)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(append(checked.Faults, faults...)).To(HaveExactElements(HaveField("Path", test.path)))
			g.Expect(pool.Spec.Replicas).To(HaveValue(BeEquivalentTo(3)))
		})
	}
}

func TestCost(t *testing.T) {
	definitions := wire.Of(reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]())
	repeat := func(before, each, after string) []byte {
		return []byte(before + strings.Repeat(each+",", 200_000) + each + after)
	}
	for name, test := range map[string]struct {
		of  *wire.Type
		raw []byte
	}{
		"taints":        {nodes, repeat(`{"spec":{"taints":[`, `{}`, `]}}`)},
		"addresses":     {nodes, repeat(`{"status":{"addresses":[`, `{}`, `]}}`)},
		"owners":        {nodes, repeat(`{"metadata":{"ownerReferences":[`, `{}`, `]}}`)},
		"schemas":       {definitions, repeat(`{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"allOf":[`, `{}`, `]}}}]}}`)},
		"items":         {definitions, repeat(`{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"items":[`, `{}`, `]}}}]}}`)},
		"deep schemas":  {definitions, []byte(strings.Repeat(`{"spec":`, 1000))},
		"unread fields": {nodes, repeat(`{"unread":[`, `{}`, `]}`)},
	} {
		t.Run("When a text has many "+name+", it should cost more than allowed", func(t *testing.T) {
			_, err := test.of.CheckJSON(test.raw, 4<<20)
			NewWithT(t).Expect(err).To(MatchError(wire.ErrTooLarge))
		})
	}

	t.Run("When a text is measured, it should cost what it takes decoded, and not much more", func(t *testing.T) {
		g := NewWithT(t)
		n := node()
		for i := range 1000 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprint("k", i), Value: "v"})
			n.Annotations = map[string]string{fmt.Sprint("k", i): "v"}
		}
		checked, err := nodes.CheckJSON(marshal(t, n), enough)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(checked.Cost).To(And(BeNumerically(">", wire.Size(n)), BeNumerically("<", 3*wire.Size(n))))
		raw, err := n.Marshal()
		g.Expect(err).NotTo(HaveOccurred())
		checked, err = nodes.CheckProtobuf(raw, enough)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(checked.Cost).To(And(BeNumerically(">", wire.Size(n)), BeNumerically("<", 3*wire.Size(n))))
		_, err = nodes.CheckProtobuf(raw, 32<<10)
		g.Expect(err).To(MatchError(wire.ErrTooLarge))
	})
}

func TestMalformed(t *testing.T) {
	for _, raw := range []string{``, `{`, `{"a"`, `{"a":`, `{"a":}`, `{"metadata":{"name":"a}`, `{"metadata":{}},`, `{,}`, `[`, `]`, `,`, `{"spec":{"taints":[{},]}}`, `{"a":1]`, `{"metadata" {}}`, `{"unread":[}]`, "\"\\"} {
		g := NewWithT(t)
		_, _, err := nodes.FilterJSON(nil, []byte(raw), enough)
		if err == nil { // some is left for the decoder to find
			g.Expect(json.Valid([]byte(raw))).To(BeFalse(), raw)
			_, err = nodes.Decode([]byte(raw), enough, &corev1.Node{})
		}
		g.Expect(err).To(HaveOccurred(), raw)
	}
}

// list is the list of so many nodes, in JSON and in protobuf.
func list(t testing.TB, count int) (inJSON, inProtobuf []byte) {
	t.Helper()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "next"}}
	for i := range count {
		n := node()
		n.Name = fmt.Sprint("node-", i)
		list.Items = append(list.Items, *n)
	}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	buffer := &bytes.Buffer{}
	if err := protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(list, buffer); err != nil {
		t.Fatal(err)
	}
	return marshal(t, list), buffer.Bytes()
}

func TestItems(t *testing.T) {
	inJSON, inProtobuf := list(t, 100)
	_, empty := list(t, 0)
	for name, test := range map[string]struct {
		raw   []byte
		count int
	}{
		"JSON": {inJSON, 100}, "protobuf": {inProtobuf, 100}, "empty protobuf": {empty, 0}, "empty JSON": {[]byte(` { "items" : [ ] , "metadata" : { "resourceVersion":"7", "continue":"next" } } `), 0},
		"null": {[]byte(`{"items":null,"metadata":{"resourceVersion":"7", "continue":"next"}}`), 0},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			t.Run("When a list arrives as "+name+", "+how+", it should be split", func(t *testing.T) {
				g := NewWithT(t)
				n := 0
				found, err := wire.Items(reader(bytes.NewReader(test.raw)), enough, func(o wire.Object) error {
					read := &corev1.Node{}
					if o.Protobuf {
						g.Expect(read.Unmarshal(o.Raw)).To(Succeed())
					} else {
						g.Expect(json.Unmarshal(o.Raw, read)).To(Succeed())
					}
					g.Expect(read.Name).To(Equal(fmt.Sprint("node-", n)))
					n++
					return nil
				})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found).To(Equal(wire.ListMeta{ResourceVersion: "7", Continue: "next"}))
				g.Expect(n).To(Equal(test.count))
			})
		}
	}

	t.Run("When a list ends early, or an item is larger than allowed, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		nothing := func(wire.Object) error { return nil }
		for _, raw := range [][]byte{inJSON, inProtobuf} {
			for _, end := range []int{2, 10, 100, len(raw) / 2, len(raw) - 20} {
				_, err := wire.Items(bytes.NewReader(raw[:end]), enough, nothing)
				g.Expect(err).To(HaveOccurred(), "%d of %q", end, raw[:4])
			}
		}
		_, err := wire.Items(strings.NewReader(`{"items":[{"a":"`+strings.Repeat("x", 1<<20)+`"}]}`), 64<<10, nothing)
		g.Expect(err).To(MatchError(wire.ErrTooLarge))
		_, err = wire.Items(strings.NewReader("k8s\x00\x12\x80\x80\x80\x08\x12\x80\x80\x80\x07"), 64<<10, nothing)
		g.Expect(err).To(MatchError(wire.ErrTooLarge))
	})
}

func TestEvents(t *testing.T) {
	object, err := runtime.Encode(protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme), node())
	if err != nil {
		t.Fatal(err)
	}
	event, err := (&metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: object}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	frame := append([]byte{0, 0, byte(len(event) >> 8), byte(len(event))}, event...)
	line := append(marshal(t, &metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: marshal(t, node())}}), '\n')
	for name, raw := range map[string][]byte{"protobuf": frame, "JSON": line} {
		t.Run("When a watch sends "+name+", it should be split into events", func(t *testing.T) {
			g := NewWithT(t)
			events := wire.NewEvents(iotest.HalfReader(bytes.NewReader(bytes.Repeat(raw, 50))), enough)
			for range 50 {
				kind, object, err := events.Next()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(kind).To(Equal("ADDED"))
				read := &corev1.Node{}
				if object.Protobuf {
					g.Expect(read.Unmarshal(object.Raw)).To(Succeed())
				} else {
					g.Expect(json.Unmarshal(object.Raw, read)).To(Succeed())
				}
				g.Expect(read.Name).To(Equal("a"))
			}
			_, _, err := events.Next()
			g.Expect(err).To(MatchError(io.EOF))
			_, _, err = wire.NewEvents(bytes.NewReader(raw[:len(raw)-5]), enough).Next()
			g.Expect(err).To(MatchError(io.ErrUnexpectedEOF))
		})
	}

	t.Run("When an event is larger than allowed, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		_, _, err := wire.NewEvents(strings.NewReader(`{"type":"ADDED","object":{"a":"`+strings.Repeat("x", 1<<20)), 64<<10).Next()
		g.Expect(err).To(MatchError(wire.ErrTooLarge))
		_, _, err = wire.NewEvents(bytes.NewReader([]byte{0, 0xff, 0xff, 0xff, 1}), 64<<10).Next()
		g.Expect(err).To(MatchError(wire.ErrTooLarge))
	})
}

func TestSize(t *testing.T) {
	g := NewWithT(t)
	const count = 2000
	before, after := goruntime.MemStats{}, goruntime.MemStats{}
	raw := marshal(t, node())
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
	g.Expect(wire.Size(kept[0])).To(BeNumerically("~", took, took/2), "When an object is kept, its size should be near to what it takes")
}
