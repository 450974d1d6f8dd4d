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
	"github.com/autonode-io/autonode/internal/fairness"
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

// tenant is a HostedCluster that needs a payload.
func tenant(name, image string) *scope.Scope {
	s := scopeOf(image)
	s.HostedCluster.Name = name
	return s
}

// impatient returns a resolver that waits for no pull, and whose time stands still.
func impatient() (*Resolver, *clocktesting.FakePassiveClock) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	r := New(Config{PullSecrets: &secrets{}, Clock: clock})
	r.puller.waitTimeout = time.Millisecond
	return r, clock
}

// want has a payload pulled, or begins to, and returns whether it was resolved.
func want(t *testing.T, r *Resolver, s *scope.Scope) bool {
	t.Helper()
	reconciled(t, r, s)
	return s.Release != nil
}

func TestSlots(t *testing.T) {
	t.Run("When many hosted clusters name a registry that hangs, another's payload should be pulled at once", func(t *testing.T) {
		g, dead, alive := NewWithT(t), newOrigin(t), newOrigin(t)
		r, _ := impatient()
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
		r, _ := impatient()
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
		r, clock := impatient()
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
	t.Run("When one namespace names more registries that hang than there are pulls, another's payload should be pulled at once", func(t *testing.T) {
		g, alive := NewWithT(t), newOrigin(t)
		r, _ := impatient()
		tag := alive.push(t, "3", karpenter("1.36.3"))
		for i := range 2 * pulls {
			dead := newOrigin(t)
			dead.hang(t)
			s := tenant(fmt.Sprint("dead-", i), dead.host+"/release:3")
			s.HostedCluster.Namespace = "hostile"
			g.Expect(reconciled(t, r, s).Wait).To(BeTrue())
		}
		r.puller.waitTimeout = 20 * time.Second // a pull that hangs takes a minute
		g.Expect(want(t, r, tenant("alive", tag))).To(BeTrue())
	})

	t.Run("When a namespace pulls a payload through a mirror that hangs, another's pull of the same payload should not wait for it", func(t *testing.T) {
		g, alive, dead := NewWithT(t), newOrigin(t), newOrigin(t)
		r, _ := impatient()
		ref, err := payload.Resolve(t.Context(), alive.push(t, "3", karpenter("1.36.3")), payload.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		dead.hang(t)
		hostile := tenant("dead", ref)
		hostile.HostedCluster.Namespace = "hostile"
		hostile.HostedCluster.Spec.ImageContentSources = []v1beta1.ImageContentSource{{Source: alive.host, Mirrors: []string{dead.host}}}
		g.Expect(reconciled(t, r, hostile).Wait).To(BeTrue())
		g.Eventually(dead.requests.Load).Should(BeNumerically(">", 0))
		r.puller.waitTimeout = 20 * time.Second
		g.Expect(want(t, r, tenant("alive", ref))).To(BeTrue())
	})

	t.Run("When one HostedCluster changes in a loop, its pulls should be bounded, and the end of one should wake it", func(t *testing.T) {
		g, dead := NewWithT(t), newOrigin(t)
		r, _ := impatient()
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		g.Expect(r.Source().Start(t.Context(), queue)).To(Succeed())
		hold := make(chan struct{})
		dead.hold.Store(&hold)
		for i := range 2 * inFlightOf {
			s := tenant("loop", dead.host+"/release:3")
			s.HostedCluster.Annotations = map[string]string{v1beta1.ResolveReleaseAnnotation: fmt.Sprint(i)}
			g.Expect(reconciled(t, r, s).Wait).To(BeTrue())
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
}

func TestAdmit(t *testing.T) {
	begun := func(p *pull) bool { return len(p.begin) > 0 }
	tenants := 0
	// enter starts a pull of a tenant's own, or has it wait.
	enter := func(l *limiter, from string) (p *pull, release func(unreachable bool)) {
		tenants++
		p = &pull{from: from, namespace: fmt.Sprint(tenants), begin: make(chan []fairness.Class, 1)}
		if admitted, ok := l.pulls.Acquire(p); ok {
			p.begin <- admitted
		}
		return p, func(unreachable bool) { l.release(p, <-p.begin, unreachable) }
	}

	t.Run("When a pull ends, the one that waits longest and may begin should begin", func(t *testing.T) {
		g, l := NewWithT(t), newLimiter()
		var ends []func(bool)
		for i := range pulls {
			p, end := enter(l, fmt.Sprint(i/pullsFrom))
			g.Expect(begun(p)).To(BeTrue())
			ends = append(ends, end)
		}
		same, _ := enter(l, "0")
		other, _ := enter(l, "other")
		g.Expect(begun(same) || begun(other)).To(BeFalse())
		ends[pullsFrom](false) // of "1"
		g.Expect(begun(same)).To(BeFalse(), "its registry has its share")
		g.Expect(begun(other)).To(BeTrue())
		ends[0](false)
		g.Expect(begun(same)).To(BeTrue())
	})

	t.Run("When one namespace has many pulls, it should leave room for another's", func(t *testing.T) {
		g, l := NewWithT(t), newLimiter()
		count := 0
		for i := range pulls {
			if _, ok := l.pulls.Acquire(&pull{from: fmt.Sprint(i), namespace: "a"}); ok {
				count++
			}
		}
		g.Expect(count).To(Equal(pullsOf))
	})

	t.Run("When a registry couldn't be reached, one pull from it should be tried at a time, and all again once it answers", func(t *testing.T) {
		g, l := NewWithT(t), newLimiter()
		_, end := enter(l, "a")
		end(true)
		one, endOne := enter(l, "a")
		two, endTwo := enter(l, "a")
		three, _ := enter(l, "a")
		g.Expect([]bool{begun(one), begun(two), begun(three)}).To(Equal([]bool{true, false, false}))
		endOne(true)
		g.Expect([]bool{begun(two), begun(three)}).To(Equal([]bool{true, false}))
		endTwo(false)
		g.Expect(begun(three)).To(BeTrue())
	})

	t.Run("When many registries couldn't be reached, half of the concurrency limit should be kept from them", func(t *testing.T) {
		g, l := NewWithT(t), newLimiter()
		for i := range 2 * pulls {
			_, end := enter(l, fmt.Sprint(i))
			end(true)
		}
		count := 0
		for i := range 2 * pulls {
			if p, _ := enter(l, fmt.Sprint(i)); begun(p) {
				count++
			}
		}
		g.Expect(count).To(Equal(retries))
		p, _ := enter(l, "new")
		g.Expect(begun(p)).To(BeTrue())
	})
}
