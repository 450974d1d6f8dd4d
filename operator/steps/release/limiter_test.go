// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

// hang makes a registry answer nothing until the test ends.
func (s *origin) hang(t *testing.T) {
	t.Helper()
	hold := make(chan struct{})
	s.hold.Store(&hold)
	t.Cleanup(func() { close(hold) })
}

// tenant is a HostedCluster that wants a payload.
func tenant(name, image string) *scope.Scope {
	s := scopeOf(image)
	s.HostedCluster.Name = name
	return s
}

func TestSlots(t *testing.T) {
	// want has a payload pulled, or begins to, and returns whether it was resolved.
	want := func(t *testing.T, r *Resolver, s *scope.Scope) bool {
		t.Helper()
		_, err := r.Reconcile(t.Context(), s)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return s.Release != nil
	}
	resolver := func(clock *clocktesting.FakePassiveClock) *Resolver {
		r := New(Config{PullSecrets: &secrets{}, Clock: clock})
		r.puller.waitTimeout = time.Millisecond
		return r
	}

	t.Run("When many hosted clusters name a registry that hangs, another's payload should be pulled at once", func(t *testing.T) {
		g, dead, alive := NewWithT(t), newOrigin(t), newOrigin(t)
		r := resolver(clocktesting.NewFakePassiveClock(time.Now()))
		tag := alive.push(t, "3", karpenter("1.36.3"))
		dead.hang(t)
		for i := range 3 * pulls {
			g.Expect(want(t, r, tenant(fmt.Sprint("dead-", i), fmt.Sprintf("%s/release:%d", dead.host, i)))).To(BeFalse())
		}
		g.Eventually(dead.requests.Load).Should(BeEquivalentTo(pullsFrom))
		r.puller.waitTimeout = time.Minute
		g.Expect(want(t, r, tenant("alive", tag))).To(BeTrue())
		g.Expect(dead.requests.Load()).To(BeEquivalentTo(pullsFrom))
	})

	t.Run("When a mirror hangs, another hosted cluster's payload of the same source should be pulled at once", func(t *testing.T) {
		g, dead, alive := NewWithT(t), newOrigin(t), newOrigin(t)
		r := resolver(clocktesting.NewFakePassiveClock(time.Now()))
		tag := alive.push(t, "3", karpenter("1.36.3"))
		dead.hang(t)
		for i := range 3 * pulls {
			s := tenant(fmt.Sprint("mirrored-", i), fmt.Sprintf("%s/release:%d", alive.host, i))
			s.HostedCluster.Spec.ImageContentSources = []v1beta1.ImageContentSource{{Source: alive.host, Mirrors: []string{dead.host}}}
			g.Expect(want(t, r, s)).To(BeFalse())
		}
		r.puller.waitTimeout = time.Minute
		g.Expect(want(t, r, tenant("alive", tag))).To(BeTrue())
	})

	t.Run("When many registries hang, their retries should leave room for others, and one that answers again should be as any other", func(t *testing.T) {
		g, alive := NewWithT(t), newOrigin(t)
		clock := clocktesting.NewFakePassiveClock(time.Now())
		r := resolver(clock)
		r.options.Timeout = 50 * time.Millisecond
		tag := alive.push(t, "3", karpenter("1.36.3"))
		var dead []*origin
		var tenants []*scope.Scope
		for i := range 2 * pulls {
			dead = append(dead, newOrigin(t))
			dead[i].hang(t)
			tenants = append(tenants, tenant(fmt.Sprint("dead-", i), dead[i].host+"/release:3"))
		}
		for _, s := range tenants {
			g.Eventually(func() string { want(t, r, s); return resolvedReason(s) }).Should(Equal("False/RegistryUnreachable"))
		}

		clock.SetTime(clock.Now().Add(maxBackoff))
		r.options.Timeout = time.Minute
		for _, s := range tenants {
			g.Expect(want(t, r, s)).To(BeFalse())
		}
		r.puller.waitTimeout = time.Minute
		g.Expect(want(t, r, tenant("alive", tag))).To(BeTrue())
	})
}

func TestNamespaces(t *testing.T) {
	resolver := func() *Resolver {
		r := New(Config{PullSecrets: &secrets{}, Clock: clocktesting.NewFakePassiveClock(time.Now())})
		r.puller.waitTimeout = time.Millisecond
		return r
	}
	begin := func(t *testing.T, r *Resolver, s *scope.Scope) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), s)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(result.Wait).To(BeTrue())
	}

	t.Run("When one namespace names more registries that hang than there are pulls, another's payload should be pulled at once", func(t *testing.T) {
		g, alive, r := NewWithT(t), newOrigin(t), resolver()
		tag := alive.push(t, "3", karpenter("1.36.3"))
		for i := range 2 * pulls {
			dead := newOrigin(t)
			dead.hang(t)
			s := tenant(fmt.Sprint("dead-", i), dead.host+"/release:3")
			s.HostedCluster.Namespace = "hostile"
			begin(t, r, s)
		}
		r.puller.waitTimeout = 20 * time.Second // a pull that hangs takes a minute
		s := tenant("alive", tag)
		_, err := r.Reconcile(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Release).NotTo(BeNil())
	})

	t.Run("When a namespace pulls a payload through a mirror that hangs, another's pull of the same payload should not wait for it", func(t *testing.T) {
		g, alive, dead, r := NewWithT(t), newOrigin(t), newOrigin(t), resolver()
		ref, err := payload.Resolve(t.Context(), alive.push(t, "3", karpenter("1.36.3")), payload.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		dead.hang(t)
		hostile := tenant("dead", ref)
		hostile.HostedCluster.Namespace = "hostile"
		hostile.HostedCluster.Spec.ImageContentSources = []v1beta1.ImageContentSource{{Source: alive.host, Mirrors: []string{dead.host}}}
		begin(t, r, hostile)
		g.Eventually(dead.requests.Load).Should(BeNumerically(">", 0))
		r.puller.waitTimeout = 20 * time.Second
		s := tenant("alive", ref)
		_, err = r.Reconcile(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Release).NotTo(BeNil())
	})

	t.Run("When one HostedCluster changes in a loop, its pulls should be bounded, and the end of one should wake it", func(t *testing.T) {
		g, dead, r := NewWithT(t), newOrigin(t), resolver()
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		g.Expect(r.Source().Start(t.Context(), queue)).To(Succeed())
		hold := make(chan struct{})
		dead.hold.Store(&hold)
		for i := range 2 * inFlightOf {
			s := tenant("loop", dead.host+"/release:3")
			s.HostedCluster.Annotations = map[string]string{v1beta1.ResolveReleaseAnnotation: fmt.Sprint(i)}
			begin(t, r, s)
		}
		inFlight := func() int {
			r.puller.mu.Lock()
			defer r.puller.mu.Unlock()
			return len(r.puller.inFlight)
		}
		g.Expect(inFlight()).To(Equal(inFlightOf))
		close(hold)
		g.Eventually(inFlight).Should(BeZero())
		who, _ := queue.Get()
		g.Expect(who.Name).To(Equal("loop"))
	})

	t.Run("When namespaces wait, the one with the fewest pulls should be next", func(t *testing.T) {
		g, s := NewWithT(t), newLimiter()
		enter := func(namespace string) *waiter {
			w := &waiter{from: fmt.Sprint(namespace, len(s.waiting), s.taken), namespace: namespace, begin: make(chan struct{})}
			s.waiting = append(s.waiting, w)
			s.admit()
			return w
		}
		var first []*waiter
		for range pullsOf {
			first = append(first, enter("a"))
		}
		enter("a")
		g.Expect(s.of).To(Equal(map[string]int{"a": pullsOf}))
		enter("b")
		enter("b")
		enter("b")
		c := enter("c")
		g.Expect(s.taken).To(Equal(pulls))
		s.release(first[0], false)
		g.Expect(c.begin).To(BeClosed())
		g.Expect(s.of).To(Equal(map[string]int{"a": pullsOf - 1, "b": 2, "c": 1}))
	})
}

func TestAdmit(t *testing.T) {
	began := func(w *waiter) bool {
		select {
		case <-w.begin:
			return true
		default:
			return false
		}
	}
	tenants := 0
	enter := func(s *limiter, from string) *waiter {
		tenants++
		w := &waiter{from: from, namespace: fmt.Sprint(tenants), begin: make(chan struct{})}
		s.waiting = append(s.waiting, w)
		s.admit()
		return w
	}

	t.Run("When a pull ends, the one that waits longest and may begin should begin", func(t *testing.T) {
		g, s := NewWithT(t), newLimiter()
		var first []*waiter
		for i := range pulls {
			first = append(first, enter(s, fmt.Sprint(i/pullsFrom)))
			g.Expect(began(first[i])).To(BeTrue())
		}
		same, other := enter(s, "0"), enter(s, "other")
		g.Expect(began(same) || began(other)).To(BeFalse())
		s.release(first[pullsFrom], false) // of "1"
		g.Expect(began(same)).To(BeFalse(), "its registry has its share")
		g.Expect(began(other)).To(BeTrue())
		s.release(first[0], false)
		g.Expect(began(same)).To(BeTrue())
	})

	t.Run("When a registry couldn't be reached, one pull from it should be tried at a time, and all again once it answers", func(t *testing.T) {
		g, s := NewWithT(t), newLimiter()
		s.release(enter(s, "a"), true)
		one, two, three := enter(s, "a"), enter(s, "a"), enter(s, "a")
		g.Expect([]bool{began(one), began(two), began(three)}).To(Equal([]bool{true, false, false}))
		s.release(one, true)
		g.Expect([]bool{began(two), began(three)}).To(Equal([]bool{true, false}))
		s.release(two, false)
		g.Expect(began(three)).To(BeTrue())
		g.Expect(s.retrying).To(BeZero())
		s.release(three, false)
		g.Expect(s.running).To(BeEmpty())
		g.Expect(s.taken).To(BeZero())
	})

	t.Run("When many registries couldn't be reached, half of the concurrency limit should be kept from them", func(t *testing.T) {
		g, s := NewWithT(t), newLimiter()
		for i := range 2 * pulls {
			s.release(enter(s, fmt.Sprint(i)), true)
		}
		count := 0
		for i := range 2 * pulls {
			if began(enter(s, fmt.Sprint(i))) {
				count++
			}
		}
		g.Expect(count).To(Equal(retries))
		g.Expect(began(enter(s, "new"))).To(BeTrue())
	})
}
