// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var configMaps = corev1.SchemeGroupVersion.WithKind("ConfigMap")

func configMap(name, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version, Labels: map[string]string{"name": name}},
		Data:       map[string]string{"kept": name, "dropped": name},
	}
}

// drop is a transform.
func drop(object any) (any, error) {
	if o, ok := object.(*corev1.ConfigMap); ok {
		delete(o.Data, "dropped")
	}
	return object, nil
}

// recorder is a handler that remembers what it was called for.
type recorder struct{ calls []string }

func (r *recorder) handler() toolscache.ResourceEventHandler {
	name := func(object any) string { return object.(client.Object).GetName() }
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, first bool) { r.calls = append(r.calls, fmt.Sprintf("add %s %t", name(object), first)) },
		UpdateFunc: func(before, after any) {
			r.calls = append(r.calls, fmt.Sprintf("update %s %s to %s", name(after), before.(client.Object).GetResourceVersion(), after.(client.Object).GetResourceVersion()))
		},
		DeleteFunc: func(object any) { r.calls = append(r.calls, "delete "+name(object)) },
	}
}

func (r *recorder) seen() []string {
	seen := slices.Sorted(slices.Values(r.calls))
	r.calls = nil
	return seen
}

func TestKind(t *testing.T) {
	newOne := func() (*kind, *recorder) {
		k, r := newKind(configMaps, true, drop), &recorder{}
		k.handle(r.handler())
		return k, r
	}

	t.Run("When the first list arrives, it should call the handlers for each object, and count as listed", func(t *testing.T) {
		g := NewWithT(t)
		k, r := newOne()
		g.Expect(k.isListed()).To(BeFalse())
		g.Expect(k.Replace([]any{configMap("a", "1"), configMap("b", "1")}, "1")).To(Succeed())
		g.Expect(k.isListed()).To(BeTrue())
		g.Expect(r.seen()).To(Equal([]string{"add a true", "add b true"}))
	})

	t.Run("When a later list lacks an object, it should call the handlers for what has changed meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		k, r := newOne()
		g.Expect(k.Replace([]any{configMap("a", "1"), configMap("b", "1")}, "1")).To(Succeed())
		r.seen()
		g.Expect(k.Replace([]any{configMap("b", "2"), configMap("c", "2")}, "2")).To(Succeed())
		g.Expect(r.seen()).To(Equal([]string{"add c false", "delete a", "update b 1 to 2"}))
	})

	t.Run("When objects change, it should call the handlers in order, and keep what the transform leaves", func(t *testing.T) {
		g := NewWithT(t)
		k, r := newOne()
		g.Expect(k.Add(configMap("a", "1"))).To(Succeed())
		g.Expect(k.Update(configMap("a", "2"))).To(Succeed())
		kept, err := k.get(client.ObjectKey{Namespace: "default", Name: "a"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kept.(*corev1.ConfigMap).Data).To(Equal(map[string]string{"kept": "a"}))
		g.Expect(k.Delete(configMap("a", "3"))).To(Succeed())
		g.Expect(k.Delete(configMap("a", "3"))).To(Succeed())
		g.Expect(r.calls).To(Equal([]string{"add a false", "update a 1 to 2", "delete a"}))
	})

	t.Run("When a handler comes later, it should be called for the objects there are", func(t *testing.T) {
		g := NewWithT(t)
		k, first := newOne()
		g.Expect(k.Replace([]any{configMap("a", "1")}, "1")).To(Succeed())
		first.seen()
		late := &recorder{}
		k.handle(late.handler())
		g.Expect(late.seen()).To(Equal([]string{"add a true"}))
		g.Expect(first.seen()).To(BeEmpty())
	})

	t.Run("When metadata arrives, it should get its kind, which the API server doesn't say", func(t *testing.T) {
		g := NewWithT(t)
		k := newKind(configMaps, true, nil)
		partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		partial.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		g.Expect(k.Add(partial)).To(Succeed())
		kept, err := k.get(client.ObjectKey{Name: "a"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kept.GetObjectKind().GroupVersionKind()).To(Equal(configMaps))
	})
}

// newStore has a watch of ConfigMaps, which the test feeds, and an API server with one Secret.
func newStore(t *testing.T, timeout time.Duration) (*Store, *kind) {
	t.Helper()
	live := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).
		WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "live"}}).Build()
	s := New(Config{Live: live, Timeout: timeout, Charge: func(int) {}, Kinds: func(schema.GroupVersionKind) Kind { return Kind{} }})
	t.Cleanup(s.Close)
	k := newKind(configMaps, true, drop)
	s.kinds[kindKey{configMaps, false}] = k
	return s, k
}

func TestRead(t *testing.T) {
	ctx := t.Context()
	a := client.ObjectKey{Namespace: "default", Name: "a"}
	s, k := newStore(t, time.Minute)
	NewWithT(t).Expect(k.index("initial", func(object client.Object) []string { return []string{object.GetName()[:1]} })).To(Succeed())
	NewWithT(t).Expect(k.Replace([]any{configMap("a", "1"), configMap("ab", "1"), configMap("c", "1")}, "1")).To(Succeed())
	names := func(list *corev1.ConfigMapList) []string {
		names := []string{}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		slices.Sort(names)
		return names
	}

	t.Run("When a kind is watched, it should read a copy", func(t *testing.T) {
		g := NewWithT(t)
		for range 2 {
			read := &corev1.ConfigMap{}
			g.Expect(s.Get(ctx, a, read)).To(Succeed())
			g.Expect(read.Data).To(Equal(map[string]string{"kept": "a"}))
			g.Expect(read.GroupVersionKind()).To(Equal(configMaps))
			read.Data["kept"] = "changed"
		}
		list := &corev1.ConfigMapList{}
		g.Expect(s.List(ctx, list)).To(Succeed())
		g.Expect(names(list)).To(Equal([]string{"a", "ab", "c"}))
		g.Expect(list.Items[0].GroupVersionKind()).To(Equal(configMaps))
	})

	t.Run("When an object is missing, it should say so", func(t *testing.T) {
		err := s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "missing"}, &corev1.ConfigMap{})
		NewWithT(t).Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	})

	t.Run("When only metadata is wanted of a kind that is watched whole, it should come from that watch", func(t *testing.T) {
		g := NewWithT(t)
		read := &metav1.PartialObjectMetadata{}
		read.SetGroupVersionKind(configMaps)
		g.Expect(s.Get(ctx, a, read)).To(Succeed())
		g.Expect(read.Labels).To(HaveKeyWithValue("name", "a"))
		g.Expect(read.GroupVersionKind()).To(Equal(configMaps))
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		g.Expect(s.List(ctx, list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(3))
	})

	t.Run("When a list has selectors, it should list what they select", func(t *testing.T) {
		g := NewWithT(t)
		for want, options := range map[string][]client.ListOption{
			"[a ab]":   {client.MatchingFields{"initial": "a"}, client.UnsafeDisableDeepCopy},
			"[ab]":     {client.MatchingFields{"initial": "a"}, client.MatchingLabels{"name": "ab"}},
			"[]":       {client.InNamespace("other")},
			"[a ab c]": {client.InNamespace("default")},
		} {
			list := &corev1.ConfigMapList{}
			g.Expect(s.List(ctx, list, options...)).To(Succeed())
			g.Expect(fmt.Sprint(names(list))).To(Equal(want))
		}
		for _, unknown := range []client.ListOption{client.MatchingFields{"unknown": "a"}, client.MatchingFields{"initial": "a", "unknown": "b"}, client.Limit(1)} {
			g.Expect(s.List(ctx, &corev1.ConfigMapList{}, unknown)).NotTo(Succeed())
		}
	})

	t.Run("When a kind isn't watched, it should read it from the API server", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "live"}, &corev1.Secret{})).To(Succeed())
		list := &corev1.SecretList{}
		g.Expect(s.List(ctx, list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
	})
}

func TestListed(t *testing.T) {
	ctx := t.Context()
	key := client.ObjectKey{Namespace: "default", Name: "a"}

	t.Run("When the first list doesn't come in time, it should say that", func(t *testing.T) {
		s, _ := newStore(t, time.Millisecond)
		NewWithT(t).Expect(s.Get(ctx, key, &corev1.ConfigMap{})).To(MatchError(context.DeadlineExceeded))
	})

	t.Run("When the caller gives up, it should return", func(t *testing.T) {
		s, _ := newStore(t, time.Minute)
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		NewWithT(t).Expect(s.List(ctx, &corev1.ConfigMapList{})).To(MatchError(context.Canceled))
	})

	t.Run("When the first list comes while it waits, it should read", func(t *testing.T) {
		g := NewWithT(t)
		s, k := newStore(t, time.Minute)
		read := make(chan error)
		go func() { read <- s.Get(ctx, key, &corev1.ConfigMap{}) }()
		g.Consistently(read, "50ms").ShouldNot(Receive())
		g.Expect(k.Replace([]any{configMap("a", "1")}, "1")).To(Succeed())
		g.Eventually(read).Should(Receive(BeNil()))
	})

	t.Run("When it was closed, it should start no watch, and wait for none", func(t *testing.T) {
		g := NewWithT(t)
		s, _ := newStore(t, time.Minute)
		s.Close()
		g.Expect(s.Get(ctx, key, &corev1.ConfigMap{})).To(MatchError(ErrClosed))
		g.Expect(s.Handle(&corev1.Secret{}, toolscache.ResourceEventHandlerFuncs{})).To(MatchError(ErrClosed))
	})
}
