// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestLimiter(t *testing.T) {
	of := func(namespace string, n int) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}}
	}
	setUp := func(t *testing.T) (*limiter, sets.Set[types.NamespacedName], func() []reconcile.Request) {
		slow := sets.New[types.NamespacedName]()
		l := newLimiter(10, slow.Has) // 8 of a namespace, 4 slow ones, 2 of them of a namespace
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		t.Cleanup(queue.ShutDown)
		NewWithT(t).Expect(l.queue.Start(t.Context(), queue)).To(Succeed())
		return l, slow, func() (woken []reconcile.Request) {
			for queue.Len() > 0 {
				request, _ := queue.Get()
				queue.Done(request)
				woken = append(woken, request)
			}
			return woken
		}
	}
	// begin starts reconciliations of a namespace, and returns the ends of those that were admitted.
	begin := func(l *limiter, namespace string, n int) (ends []func()) {
		for i := range n {
			if release, ok := l.acquire(of(namespace, i)); ok {
				ends = append(ends, release)
			}
		}
		return ends
	}

	t.Run("When a namespace's HostedClusters hold its share of the workers, it should leave the rest to others, and wake the first that waits at an end", func(t *testing.T) {
		g := NewWithT(t)
		l, _, woken := setUp(t)
		ends := begin(l, "a", 12)
		g.Expect(ends).To(HaveLen(8))
		g.Expect(begin(l, "b", 1)).To(HaveLen(1))
		_, ok := l.acquire(of("a", 9))
		g.Expect(ok).To(BeFalse())
		g.Expect(woken()).To(BeEmpty())
		ends[3]()
		g.Expect(woken()).To(HaveExactElements(of("a", 8)))
		_, ok = l.acquire(of("a", 8))
		g.Expect(ok).To(BeTrue())
		ends[4]()
		g.Expect(woken()).To(HaveExactElements(of("a", 9)), "it waits once")
	})

	t.Run("When guests are slow, their HostedClusters should share few workers, each namespace half of these", func(t *testing.T) {
		g := NewWithT(t)
		l, slow, woken := setUp(t)
		for _, namespace := range []string{"a", "b", "c"} {
			for i := range 5 {
				slow.Insert(of(namespace, i).NamespacedName)
			}
		}
		a := begin(l, "a", 5)
		g.Expect(a).To(HaveLen(2))
		g.Expect(begin(l, "b", 5)).To(HaveLen(2))
		g.Expect(begin(l, "c", 5)).To(BeEmpty())
		_, ok := l.acquire(of("a", 6))
		g.Expect(ok).To(BeTrue(), "its guest isn't")
		a[0]()
		g.Expect(woken()).To(HaveExactElements(of("c", 0)), "the namespace with the fewest workers is next")
		a[1]()
		g.Expect(woken()).To(HaveExactElements(of("c", 1), of("a", 2)), "the other one that was woken hasn't taken its worker yet")
	})

	t.Run("When a request is above a limit, it should keep the back-off of its last error", func(t *testing.T) {
		g := NewWithT(t)
		l, _, _ := setUp(t)
		ends := begin(l, "a", 8)
		l.When(of("a", 9))
		_, ok := l.acquire(of("a", 9))
		g.Expect(ok).To(BeFalse())
		l.Forget(of("a", 9)) // as the controller does
		g.Expect(l.NumRequeues(of("a", 9))).To(Equal(1))
		ends[0]()
		_, ok = l.acquire(of("a", 9))
		g.Expect(ok).To(BeTrue())
		l.Forget(of("a", 9))
		g.Expect(l.NumRequeues(of("a", 9))).To(BeZero())
	})
}
