// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// removals of a workload's pods in a guest, as a watch reports them.
type removals struct {
	mu sync.Mutex
	at map[string]time.Time
}

// watchRemovals follows when pods of a workload were evicted or deleted, until the test ends.
func (c *cluster) watchRemovals(t *testing.T, workload string) *removals {
	t.Helper()
	watcher, err := c.guest.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": workload})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	r := &removals{at: map[string]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil && event.Type != watch.Bookmark {
				r.observe(pod)
			}
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	return r
}

func (r *removals) observe(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.at[pod.Name]; !known && pod.DeletionGracePeriodSeconds != nil {
		r.at[pod.Name] = pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	}
}

// times at which pods were removed.
func (r *removals) times() (times []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.at {
		times = append(times, at)
	}
	return times
}

// TestReclaim: two hosted clusters use reserved machines that are guaranteed to a third one, which requests them. The world is this
// test's own, as that of TestFleetCapacity.
func TestReclaim(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clusters := ownWorld(t, blue, green, red)
	clusters[0].leavesNoTrace(t)
	lender, borrower, blocked := clusters[0], clusters[1], clusters[2]
	management := lender.management
	account, _, _ := fleetObjects(g, "")
	member := func(c *cluster, machines int64) autonodev1alpha1.CapacityMember {
		m := autonodev1alpha1.CapacityMember{HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: c.key().Namespace, Name: c.key().Name}}
		if machines > 0 {
			m.Guaranteed = []autonodev1alpha1.CapacityShare{{
				Reservation: account.Spec.Reservations[0].ID, Amounts: autonodev1alpha1.CapacityAmounts{"machines": scalar.Number(machines)},
			}}
		}
		return m
	}
	account.Spec = autonodev1alpha1.CapacityAccountSpec{
		ReclaimGracePeriod: &scalar.Duration{Duration: time.Minute}, Reservations: account.Spec.Reservations,
		Members: []autonodev1alpha1.CapacityMember{member(lender, 3), member(borrower, 1), member(blocked, 0)},
	}
	account.Spec.Reservations[0].Count = 4
	g.Expect(management.Create(t.Context(), account)).To(Succeed())
	for _, c := range clusters {
		c.enableShared(t)
		c.workload(t, "web", 0, "3", onPool("shared"), apart)
	}
	shared := &fleet{clusters: clusters, management: management, account: account}
	shared.allowCapacityTypes(t, karpv1.CapacityTypeReserved)
	none := intstr.FromInt32(0)
	blocked.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none})
	removed := blocked.watchRemovals(t, "web")
	name := lender.key().Namespace + "/" + lender.key().Name
	status := func(g Gomega, ctx context.Context) autonodev1alpha1.CapacityPoolStatus {
		pools := shared.found(g, ctx).Status.Pools
		g.Expect(pools).To(HaveLen(1))
		return pools[0]
	}
	var by time.Time

	t.Run("When a guaranteed amount is unused, other clusters should use it", func(t *testing.T) {
		g := NewWithT(t)
		for c, replicas := range map[*cluster]int32{borrower: 3, blocked: 1} {
			c.scale(t, "web", replicas)
			c.waitRunning(t, "web")
		}
		g.Eventually(status).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(And(HaveField("Used", "4"), HaveField("Lent", "3")))
		g.Eventually(func(g Gomega, ctx context.Context) {
			budget := &policyv1.PodDisruptionBudget{}
			g.Expect(blocked.guest.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "web"}, budget)).To(Succeed())
			g.Expect(budget.Status.CurrentHealthy).To(Equal(int32(1)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
	t.Run("When its cluster requests it, the others should be asked for it, but for what is guaranteed to them", func(t *testing.T) {
		g := NewWithT(t)
		lender.scale(t, "web", 3)
		g.Eventually(func(g Gomega, ctx context.Context) {
			for c, keep := range map[*cluster]int64{borrower: 1, blocked: 0} {
				asked := shared.lease(g, ctx, c).Spec.Reclaim
				g.Expect(asked).NotTo(BeEmpty())
				g.Expect(asked[0]).To(And(HaveField("Limit", keep), HaveField("For", ConsistOf(name))))
				deadlines := shared.lease(g, ctx, c).Status.Reclaim
				g.Expect(deadlines).NotTo(BeEmpty())
				if c == blocked {
					by = deadlines[0].By.At()
				}
			}
			g.Expect(status(g, ctx)).To(HaveField("ReclaimingFor", ConsistOf(name)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		t.Logf("to be returned by %s, in %s", by.Format(time.TimeOnly), time.Until(by).Round(time.Second))
	})
	t.Run("When nodes may be disrupted, they should go one at a time, and never below what is guaranteed", func(t *testing.T) {
		strict := NewWithT(t)
		strict.Eventually(func(g Gomega, ctx context.Context) {
			leaving, staying := 0, 0
			for _, nodeClaim := range borrower.nodeClaims(g, ctx) {
				if nodeClaim.DeletionTimestamp != nil {
					leaving++
				} else {
					staying++
				}
			}
			strict.Expect(leaving).To(BeNumerically("<=", 1), "the budget")
			strict.Expect(staying).To(BeNumerically(">=", 1), "the guaranteed amount")
			g.Expect(leaving).To(BeZero())
			g.Expect(borrower.nodes(g, ctx)).To(HaveLen(1))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		strict.Expect(borrower.eventsOn(t.Context(), "NodeClaim", "CapacityReclaimed")).To(HaveEach(And(ContainSubstring(name), ContainSubstring("reservation/block-10"), ContainSubstring(account.Name))))
		strict.Expect(borrower.eventsOn(t.Context(), "Node", "CapacityReclaimed")).NotTo(BeEmpty())
	})
	t.Run("When a PodDisruptionBudget blocks, its pods should stay until the deadline and go afterwards", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			condition := meta.FindStatusCondition(shared.lease(g, ctx, blocked).Status.Conditions, autonodev1alpha1.CapacityReturned)
			g.Expect(condition).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring(name)))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(blocked.nodes(g, ctx)).To(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		times := removed.times()
		g.Expect(times).To(HaveLen(1))
		for _, at := range times {
			g.Expect(at).NotTo(BeTemporally("<", by), "a PodDisruptionBudget was broken before the deadline")
		}
		g.Expect(blocked.eventsOn(t.Context(), "NodeClaim", "CapacityReclaimed")).NotTo(BeEmpty())
	})
	t.Run("When they have gone, the cluster should use what is guaranteed to it, and nothing be asked any more", func(t *testing.T) {
		g := NewWithT(t)
		lender.waitRunning(t, "web")
		g.Eventually(func(g Gomega, ctx context.Context) {
			for _, c := range clusters {
				lease := shared.lease(g, ctx, c)
				g.Expect(lease.Spec.Reclaim).To(BeEmpty())
				g.Expect(meta.FindStatusCondition(lease.Status.Conditions, autonodev1alpha1.CapacityReturned)).To(BeNil())
			}
			g.Expect(status(g, ctx)).To(And(HaveField("Used", "4"), HaveField("Lent", ""), HaveField("Reclaiming", "")))
			g.Expect(borrower.nodes(g, ctx)).To(HaveLen(1))
			g.Expect(lender.nodes(g, ctx)).To(HaveLen(3))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}
