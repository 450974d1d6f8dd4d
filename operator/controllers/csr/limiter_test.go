// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/operator/guest/outage"
)

// table is where requests take turns; queued are those that came back without a call.
type table struct {
	*limiter
	clock *clocktesting.FakePassiveClock
	queue workqueue.TypedRateLimitingInterface[Key]
}

func newTable(t *testing.T) *table {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(now)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[Key]())
	t.Cleanup(queue.ShutDown)
	table := &table{limiter: newLimiter(clock), clock: clock, queue: queue}
	NewWithT(t).Expect(table.limiter.queue.Start(t.Context(), queue)).To(Succeed())
	return table
}

func (t *table) step(d time.Duration) { t.clock.SetTime(t.clock.Now().Add(d)) }

func (t *table) queued() []string {
	var names []string
	for t.queue.Len() > 0 {
		key, _ := t.queue.Get()
		t.queue.Done(key)
		names = append(names, key.Name)
	}
	return names
}

// begun takes turns for requests until one isn't let, and returns how many were.
func (t *table) begun(guest string, requests int) int {
	for i := range requests {
		if ok, _ := t.acquire(keyOf(guest, i)); !ok {
			return i
		}
	}
	return requests
}

func keyOf(guest string, i int) Key {
	return Key{HostedCluster: types.NamespacedName{Namespace: "clusters", Name: guest}, Name: fmt.Sprint(i)}
}

func TestTurns(t *testing.T) {
	t.Run("When one guest has many requests, it should have a few workers, and the others theirs", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		g.Expect(table.begun("blue", 1000)).To(Equal(perGuest))
		g.Expect(table.begun("green", 1000)).To(Equal(perGuest))
		g.Expect(perGuest * 10).To(BeNumerically("<", workers))
	})

	t.Run("When a request is done, the one that waits longest should come back, once each", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", perGuest)
		for _, i := range []int{7, 8, 7, 9} {
			ok, requeueAfter := table.acquire(keyOf("blue", i))
			g.Expect(ok).To(BeFalse())
			g.Expect(requeueAfter).To(BeZero())
		}
		g.Expect(table.queued()).To(BeEmpty())
		for i, want := range []string{"7", "8", "9"} {
			g.Expect(table.release(keyOf("blue", i), unknown, 0)).To(BeZero())
			g.Expect(table.queued()).To(Equal([]string{want}))
			ok, _ := table.acquire(keyOf("blue", 7+i))
			g.Expect(ok).To(BeTrue())
		}
	})

	t.Run("When everything is done, nothing should be left", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", 1)
		table.release(keyOf("blue", 0), answers, 0)
		table.begun("green", 1)
		g.Expect(table.release(keyOf("green", 0), unresponsive, 0)).To(Equal(outage.MinBackoff))
		g.Expect(table.guests).To(HaveLen(1), "the rest is remembered")
		table.step(outage.MinBackoff)
		table.begun("green", 1)
		table.release(keyOf("green", 0), unknown, 0)
		g.Expect(table.guests).To(HaveLen(1))
		table.drop(keyOf("green", 0).HostedCluster)
		g.Expect(table.guests).To(BeEmpty())
	})

	t.Run("When a guest doesn't answer, it should be left alone, longer each time, and be tried by one request", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", perGuest)
		g.Expect(table.release(keyOf("blue", 0), unresponsive, 0)).To(Equal(outage.MinBackoff), "this one comes back by time")
		for i := range perGuest - 1 { // they were under way
			table.step(time.Second)
			g.Expect(table.release(keyOf("blue", i+1), unresponsive, 0)).To(BeZero())
		}
		g.Expect(table.begun("blue", 100)).To(BeZero())
		for i := range 20 {
			ok, requeueAfter := table.acquire(keyOf("blue", 10+i))
			g.Expect(ok).To(BeFalse())
			g.Expect(requeueAfter).To(BeZero())
		}
		g.Expect(table.queued()).To(BeEmpty())
		for _, backoff := range []time.Duration{2 * outage.MinBackoff, 4 * outage.MinBackoff, 8 * outage.MinBackoff} {
			table.step(outage.MaxBackoff)
			g.Expect(table.begun("blue", 3)).To(Equal(1))
			g.Expect(table.release(keyOf("blue", 0), unresponsive, 0)).To(Equal(backoff))
		}
		for range 10 {
			table.step(outage.MaxBackoff)
			g.Expect(table.begun("blue", 1)).To(Equal(1))
			table.release(keyOf("blue", 0), unresponsive, 0)
		}
		table.step(outage.MaxBackoff)
		ok, _ := table.acquire(keyOf("blue", 0))
		g.Expect(ok).To(BeTrue())
		table.queued()

		g.Expect(table.release(keyOf("blue", 0), answers, 0)).To(BeZero())
		g.Expect(table.queued()).To(HaveLen(perGuest), "it answers: all go on")
		g.Expect(table.begun("blue", 100)).To(Equal(perGuest))
	})

	t.Run("When the request that tries finds nothing to ask for, the next one should try", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", 1)
		table.release(keyOf("blue", 0), unresponsive, 0)
		table.acquire(keyOf("blue", 1))
		table.acquire(keyOf("blue", 2))
		table.step(outage.MinBackoff)
		table.acquire(keyOf("blue", 0))
		table.release(keyOf("blue", 0), unknown, 0)
		g.Expect(table.queued()).To(Equal([]string{"1"}))
		table.acquire(keyOf("blue", 1))
		g.Expect(table.release(keyOf("blue", 1), unresponsive, 0)).To(Equal(2 * outage.MinBackoff))
		g.Expect(table.queued()).To(BeEmpty())
	})

	t.Run("When others know already that a guest doesn't answer, it should be left alone as long as they say", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", 2)
		g.Expect(table.release(keyOf("blue", 0), unresponsive, time.Minute)).To(Equal(time.Minute))
		g.Expect(table.release(keyOf("blue", 1), unresponsive, time.Minute)).To(BeZero())
		table.step(time.Minute - 1)
		g.Expect(table.begun("blue", 1)).To(BeZero())
		table.step(1)
		g.Expect(table.begun("blue", 2)).To(Equal(1))
	})

	t.Run("When the connection is gone, its requests should go at once", func(t *testing.T) {
		g, table := NewWithT(t), newTable(t)
		table.begun("blue", 1)
		table.release(keyOf("blue", 0), unresponsive, 0)
		for i := range 20 {
			table.acquire(keyOf("blue", i))
		}
		table.step(outage.MinBackoff)
		table.acquire(keyOf("blue", 0))
		table.release(keyOf("blue", 0), gone, 0)
		g.Expect(table.queued()).To(HaveLen(perGuest))
	})
}
