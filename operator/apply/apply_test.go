// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// counting is a client with a cache of what the operator made, which counts what it writes.
func counting(t *testing.T) (client.Client, *atomic.Int64) {
	t.Helper()
	g := NewWithT(t)
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{apply.LabelManagedBy: apply.FieldOwner})}
	cl, err := cluster.New(clusters.Management.Config, func(o *cluster.Options) {
		o.Scheme = clusters.Management.Client.Scheme()
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.ConfigMap{}: ours, &rbacv1.RoleBinding{}: ours}
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- cl.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the cache ended with %v", err)
		}
	})
	writes := &atomic.Int64{}
	return interceptor.NewClient(withWatch{cl.GetClient()}, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			writes.Add(1)
			return c.Apply(ctx, obj, opts...)
		},
	}), writes
}

// withWatch makes a client fit for an interceptor; nothing here watches by it.
type withWatch struct{ client.Client }

func (w withWatch) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	panic("nothing watches")
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
}

func TestObjects(t *testing.T) {
	ctx, admin := t.Context(), clusters.Management.Client
	cached, writes := counting(t)
	applier := apply.New()
	owner := configMap("owner", nil)
	NewWithT(t).Expect(admin.Create(ctx, owner)).To(Succeed())
	desired := configMap("applied", map[string]string{"ours": "1"})
	settle := func(g Gomega) {
		g.Eventually(func(g Gomega) {
			before := writes.Load()
			g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
			g.Expect(writes.Load()).To(Equal(before))
		}).Should(Succeed())
	}
	live := func(g Gomega) *corev1.ConfigMap {
		object := &corev1.ConfigMap{}
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(desired), object)).To(Succeed())
		return object
	}

	t.Run("When an object is missing, it should make it, with its owner and our label", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
		object := live(g)
		g.Expect(object.Data).To(Equal(desired.Data))
		g.Expect(metav1.IsControlledBy(object, owner)).To(BeTrue())
		g.Expect(object.Labels).To(HaveKeyWithValue(apply.LabelManagedBy, apply.FieldOwner))
		g.Expect(desired.Labels).To(BeEmpty(), "what was passed in was changed")
		for _, field := range object.ManagedFields {
			if field.Operation == metav1.ManagedFieldsOperationApply {
				g.Expect(field.Manager).To(Equal(apply.FieldOwner))
			}
		}
	})

	t.Run("When nothing has changed, it should make no request", func(t *testing.T) {
		g := NewWithT(t)
		settle(g)
		before := live(g).ResourceVersion
		settle(g)
		g.Expect(live(g).ResourceVersion).To(Equal(before))
	})

	t.Run("When a person edits it, it should heal what is ours and leave the rest", func(t *testing.T) {
		g := NewWithT(t)
		object := live(g)
		object.Data = map[string]string{"ours": "2", "theirs": "1"}
		g.Expect(admin.Update(ctx, object)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
			g.Expect(live(g).Data).To(Equal(map[string]string{"ours": "1", "theirs": "1"}))
		}).Should(Succeed())
		settle(g)
	})

	t.Run("When a field is no longer desired, it should remove it", func(t *testing.T) {
		g := NewWithT(t)
		desired.Data = map[string]string{"new": "1"}
		g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
		g.Expect(live(g).Data).To(Equal(map[string]string{"new": "1", "theirs": "1"}))
		settle(g)
	})

	t.Run("When our label is taken away, it should still find and heal the object", func(t *testing.T) {
		g := NewWithT(t)
		object := live(g)
		object.Labels = nil
		g.Expect(admin.Update(ctx, object)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
			g.Expect(live(g).Labels).To(HaveKey(apply.LabelManagedBy))
		}).Should(Succeed())
		settle(g)
	})

	t.Run("When it was deleted, it should make it again", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Delete(ctx, live(g))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(applier.Objects(ctx, cached, owner, desired)).To(Succeed())
			g.Expect(live(g).Data).To(Equal(map[string]string{"new": "1"}))
		}).Should(Succeed())
	})

	t.Run("When a binding was replaced by one to another role, it should replace it", func(t *testing.T) {
		g := NewWithT(t)
		binding := func(role string) *rbacv1.RoleBinding {
			return &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bound", Labels: map[string]string{apply.LabelManagedBy: apply.FieldOwner}},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
				Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "default"}},
			}
		}
		g.Expect(admin.Create(ctx, binding("evil"))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(applier.Objects(ctx, cached, owner, binding("good"))).To(Succeed())
			object := binding("")
			g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.RoleRef.Name).To(Equal("good"))
		}).Should(Succeed())
	})

	t.Run("When one object is refused, it should apply the others and name the one", func(t *testing.T) {
		g := NewWithT(t)
		nowhere := configMap("nowhere", nil)
		nowhere.Namespace = "does-not-exist"
		other := configMap("other", map[string]string{"a": "b"})
		err := applier.Objects(ctx, cached, nil, nowhere, other)
		g.Expect(err).To(MatchError(ContainSubstring("ConfigMap does-not-exist/nowhere")))
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())
		g.Expect(other.OwnerReferences).To(BeEmpty())
	})
}
