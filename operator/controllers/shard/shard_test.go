// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/controllers/shard"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

const (
	namespace = "shards"
	label     = "autonode.io/shard"
)

// view is what an operator's cache would hold: what its selector matches, or a HostedCluster as it was once.
type view struct {
	client.Client
	selector labels.Selector
	stale    map[client.ObjectKey]*v1beta1.HostedCluster
}

func (v *view) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if stale, ok := v.stale[key]; ok {
		stale.DeepCopyInto(obj.(*v1beta1.HostedCluster))
		return nil
	}
	if err := v.Client.Get(ctx, key, obj, opts...); err != nil {
		return err
	}
	if !v.selector.Matches(labels.Set(obj.GetLabels())) {
		return v.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: "there-is-none"}, &v1beta1.HostedCluster{})
	}
	return nil
}

// worker is a shard, and what it came to do.
type worker struct {
	*shard.Shard
	view       *view
	clock      *clocktesting.FakePassiveClock
	reconciler reconcile.Reconciler
	worked     int
	released   []string
}

func (w *worker) Reconcile(_ context.Context, hostedCluster *v1beta1.HostedCluster) (reconcile.Result, error) {
	if hostedCluster.Status.Operator != w.Identity() {
		panic("it works on what it doesn't hold")
	}
	w.worked++
	return reconcile.Result{}, nil
}

// newWorker makes an operator whose Lease has that name.
func newWorker(g Gomega, name, selector string) *worker {
	parsed, err := labels.Parse(selector)
	g.Expect(err).NotTo(HaveOccurred())
	w := &worker{
		view:  &view{Client: clusters.Management.Client, selector: parsed, stale: map[client.ObjectKey]*v1beta1.HostedCluster{}},
		clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	config := shard.Config{
		Management: w.view, Live: clusters.Management.Client, Selector: parsed, Clock: w.clock,
		Released: func(hostedCluster *v1beta1.HostedCluster) { w.released = append(w.released, hostedCluster.Name) },
	}
	if name != "" {
		config.Lease = client.ObjectKey{Namespace: namespace, Name: name}
	}
	w.Shard = shard.New(config)
	w.reconciler = w.Reconciler(w)
	return w
}

func (w *worker) handle(ctx context.Context, g Gomega, name string) reconcile.Result {
	result, err := w.reconciler.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}})
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return result
}

func create(ctx context.Context, g Gomega, name, shard string) *v1beta1.HostedCluster {
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{label: shard}},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: "registry.example/release:1.36.3"}},
	}
	g.Expect(clusters.Management.Client.Create(ctx, hostedCluster)).To(Succeed())
	return hostedCluster
}

func get(ctx context.Context, g Gomega, name string) *v1beta1.HostedCluster {
	return scopetest.Get(ctx, g, clusters.Management.Client, namespace, name, &v1beta1.HostedCluster{})
}

func relabel(ctx context.Context, g Gomega, name, shard string) {
	hostedCluster := get(ctx, g, name)
	before := hostedCluster.DeepCopy()
	hostedCluster.Labels[label] = shard
	g.Expect(clusters.Management.Client.Patch(ctx, hostedCluster, client.MergeFrom(before))).To(Succeed())
}

// lease makes the Lease of a running operator.
func lease(ctx context.Context, g Gomega, name string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("pod-1"), LeaseDurationSeconds: ptr.To(int32(15))},
	}
	g.Expect(clusters.Management.Client.Create(ctx, l)).To(Succeed())
	return l
}

func TestShard(t *testing.T) {
	g := NewWithT(t)
	ctx, management := t.Context(), clusters.Management.Client
	g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())

	t.Run("When a HostedCluster has no holder, it should acquire it, and continue without another request", func(t *testing.T) {
		g := NewWithT(t)
		a := newWorker(g, "free-a", label+"=a")
		create(ctx, g, "free", "a")
		a.handle(ctx, g, "free")
		g.Expect(a.worked).To(Equal(1))
		taken := get(ctx, g, "free")
		g.Expect(taken.Status.Operator).To(Equal(namespace + "/free-a"))
		a.handle(ctx, g, "free")
		g.Expect(a.worked).To(Equal(2))
		g.Expect(get(ctx, g, "free").ResourceVersion).To(Equal(taken.ResourceVersion))
	})

	t.Run("When there is no election, it should work on everything and record nothing", func(t *testing.T) {
		g := NewWithT(t)
		alone := newWorker(g, "", "")
		create(ctx, g, "alone", "a")
		alone.handle(ctx, g, "alone")
		g.Expect(alone.worked).To(Equal(1))
		g.Expect(get(ctx, g, "alone").Status.Operator).To(BeEmpty())
	})

	t.Run("When it is relabelled, the new operator should wait until the old one has released it, and the old one should release it once", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newWorker(g, "moved-a", label+"=a"), newWorker(g, "moved-b", label+"=b")
		lease(ctx, g, "moved-a")
		create(ctx, g, "moved", "a")
		a.handle(ctx, g, "moved")
		relabel(ctx, g, "moved", "b")
		g.Expect(b.handle(ctx, g, "moved").RequeueAfter).To(BeNumerically("~", 15*time.Second, time.Second))
		g.Expect(b.worked).To(BeZero())

		a.handle(ctx, g, "moved")
		g.Expect(a.worked).To(Equal(1))
		g.Expect(a.released).To(Equal([]string{"moved"}))
		g.Expect(get(ctx, g, "moved").Status.Operator).To(BeEmpty())
		b.handle(ctx, g, "moved")
		g.Expect(b.worked).To(Equal(1))
		a.handle(ctx, g, "moved")
		g.Expect(a.released).To(HaveLen(1))
		g.Expect(get(ctx, g, "moved").Status.Operator).To(Equal(namespace + "/moved-b"))
	})

	t.Run("When it is relabelled there and back before the old operator looks, that one should keep it", func(t *testing.T) {
		g := NewWithT(t)
		a := newWorker(g, "back-a", label+"=a")
		create(ctx, g, "back", "a")
		a.handle(ctx, g, "back")
		a.view.selector = labels.Nothing() // the cache has seen that it left, and not yet that it is back
		a.handle(ctx, g, "back")
		g.Expect(a.released).To(BeEmpty())
		g.Expect(get(ctx, g, "back").Status.Operator).To(Equal(namespace + "/back-a"))
	})

	t.Run("When the cache still reports a hold that the operator gave up, it should ask the API server and keep off", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newWorker(g, "late-a", label+"=a"), newWorker(g, "late-b", label+"=b")
		create(ctx, g, "late", "a")
		a.handle(ctx, g, "late")
		held := get(ctx, g, "late")
		relabel(ctx, g, "late", "b")
		a.handle(ctx, g, "late")
		b.handle(ctx, g, "late")
		a.view.stale[client.ObjectKeyFromObject(held)] = held
		g.Expect(a.handle(ctx, g, "late").RequeueAfter).NotTo(BeZero())
		g.Expect(a.worked).To(Equal(1))
		g.Expect(get(ctx, g, "late").Status.Operator).To(Equal(namespace + "/late-b"))
	})

	t.Run("When two operators reach for the same HostedCluster, one should have it", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newWorker(g, "both-a", label), newWorker(g, "both-b", label)
		lease(ctx, g, "both-a")
		free := create(ctx, g, "both", "a")
		b.view.stale[client.ObjectKeyFromObject(free)] = free
		a.handle(ctx, g, "both")
		g.Expect(b.handle(ctx, g, "both").RequeueAfter).NotTo(BeZero())
		g.Expect(a.worked).To(Equal(1))
		g.Expect(b.worked).To(BeZero())
		delete(b.view.stale, client.ObjectKeyFromObject(free))
		g.Expect(b.handle(ctx, g, "both").RequeueAfter).NotTo(BeZero())
		g.Expect(b.worked).To(BeZero(), "the selectors overlap, and the first keeps it")
	})

	t.Run("When the holder has released its Lease, it should take over", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newWorker(g, "ended-a", label), newWorker(g, "ended-b", label)
		l := lease(ctx, g, "ended-a")
		create(ctx, g, "ended", "a")
		a.handle(ctx, g, "ended")
		l.Spec.HolderIdentity = ptr.To("")
		g.Expect(management.Update(ctx, l)).To(Succeed())
		b.handle(ctx, g, "ended")
		g.Expect(b.worked).To(Equal(1))
	})

	t.Run("When the holder's Lease isn't renewed for its duration, it should take over, and not before", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newWorker(g, "dead-a", label), newWorker(g, "dead-b", label)
		l := lease(ctx, g, "dead-a")
		create(ctx, g, "dead", "a")
		a.handle(ctx, g, "dead")
		b.handle(ctx, g, "dead")
		b.clock.SetTime(b.clock.Now().Add(14 * time.Second))
		g.Expect(b.handle(ctx, g, "dead").RequeueAfter).To(Equal(time.Second))

		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		g.Expect(management.Update(ctx, l)).To(Succeed())
		b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
		g.Expect(b.handle(ctx, g, "dead").RequeueAfter).To(Equal(15 * time.Second))
		g.Expect(b.worked).To(BeZero())

		b.clock.SetTime(b.clock.Now().Add(15 * time.Second))
		b.handle(ctx, g, "dead")
		g.Expect(b.worked).To(Equal(1))
		g.Expect(get(ctx, g, "dead").Status.Operator).To(Equal(namespace + "/dead-b"))
	})

	t.Run("When a HostedCluster left the selector while the operator was away, it should release it at its start", func(t *testing.T) {
		g := NewWithT(t)
		create(ctx, g, "away", "a")
		newWorker(g, "away-a", label+"=a").handle(ctx, g, "away")
		relabel(ctx, g, "away", "b")

		again := newWorker(g, "away-a", label+"=a")
		queue := &queue{}
		g.Expect(again.Source().Start(ctx, queue)).To(Succeed())
		g.Expect(queue.added).To(Equal([]reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: namespace, Name: "away"}}}))
		again.handle(ctx, g, "away")
		g.Expect(get(ctx, g, "away").Status.Operator).To(BeEmpty())
	})

	t.Run("When a HostedCluster is deleted, it should forget it", func(t *testing.T) {
		g := NewWithT(t)
		a := newWorker(g, "gone-a", label+"=a")
		hostedCluster := create(ctx, g, "gone", "a")
		a.handle(ctx, g, "gone")
		g.Expect(management.Delete(ctx, hostedCluster)).To(Succeed())
		a.handle(ctx, g, "gone")
		g.Expect(a.released).To(BeEmpty())
		create(ctx, g, "gone", "a")
		a.handle(ctx, g, "gone")
		g.Expect(get(ctx, g, "gone").Status.Operator).To(Equal(namespace + "/gone-a"))
	})
}

// queue remembers what was added to it.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	added []reconcile.Request
}

func (q *queue) Add(request reconcile.Request) { q.added = append(q.added, request) }
