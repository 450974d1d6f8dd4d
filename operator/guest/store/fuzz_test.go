// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kjson "sigs.k8s.io/json"
)

// FuzzList looks for a list or a watch of a guest that panics, that takes more memory than was measured, or of which the operator reads
// something else than an API server's client does.
func FuzzList(f *testing.F) {
	node := likeReal("a")
	node.Status.Images, node.ManagedFields = node.Status.Images[:1], nil
	list := &corev1.NodeList{Items: []corev1.Node{*node}}
	list.ResourceVersion, list.Kind, list.APIVersion = "1", "NodeList", "v1"
	inJSON, _ := json.Marshal(list)
	f.Add(inJSON)
	f.Add([]byte(`{"items":[{"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1e-999999999","memory":1e9}}},{},null,7,"a",[]],"metadata":{"continue":"a"}}`))
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a","labels":{"a":"\u0062"}},"spec":{"taints":[{},{"timeAdded":"2026-12-01t06:00:00z"}]}}}` + "\n"))
	s := New(Config{Guest: &rest.Config{}, Charge: func(int) {}, Live: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()})
	d, err := s.decoderOf(kindKey{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node")}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		check := func(raw []byte) {
			object, problem, err := d.read(raw)
			if err != nil {
				return
			}
			if size := Size(object); size > 16<<20 {
				t.Errorf("%d bytes of %q", size, raw)
			}
			if problem == "" {
				same(t, raw, object)
			}
		}
		_, _ = readItems(bytes.NewReader(content), func(raw []byte) error { check(raw); return nil })
		frames := newStream(bytes.NewReader(content))
		for {
			_, raw, err := frames.event()
			if err != nil {
				break
			}
			check(raw)
		}
		body := &watchBody{bytes.NewReader(content)}
		_, cancel := context.WithCancel(t.Context())
		e := &events{decoder: d, stream: newStream(body), body: body, cancel: cancel}
		defer e.Close()
		for {
			if _, _, err := e.Decode(); err != nil {
				return
			}
		}
	})
}

type watchBody struct{ *bytes.Reader }

func (*watchBody) Close() error { return nil }

// same compares what the operator read with what a client reads.
func same(t *testing.T, raw []byte, object client.Object) {
	t.Helper()
	read := &corev1.Node{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, read); err != nil {
		return
	}
	read.ManagedFields, read.Status.Images, read.Status.Conditions = nil, nil, nil
	if !equality.Semantic.DeepEqual(read, object) {
		t.Errorf("%q\nis read as %+v\nand not as   %+v", raw, object, read)
	}
}
