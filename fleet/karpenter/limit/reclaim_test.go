// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestReclaims(t *testing.T) {
	const pool = "reservation/cr-1"
	f := leased(t, division.Amounts{pool: 3, "limit/cpu": 100_000})
	// next is the reclaim that the cluster has to follow first.
	next := func(p *Provider) division.Reclaim {
		_, reclaims := p.Reclaims()
		return reclaims.Next(pool, 3)
	}
	f.Expect(next(f.Provider)).To(BeZero())
	for _, name := range []string{"a", "b", "c"} {
		f.spent(name, reserved)
	}
	f.grant(func(l *Lease) {
		l.AccountName, l.ReclaimGracePeriod = "production", time.Hour
		l.Lease.Reclaims = division.Reclaims{pool: {{Limit: 1, For: []string{"clusters/blue"}}}}
	})
	f.step()
	by := next(f.Provider).By
	f.Expect(by).To(And(BeTemporally(">=", f.clock.Now().Add(time.Hour)), BeTemporally("<", f.clock.Now().Add(time.Hour+4*time.Minute))))
	t.Run("When the lease asks for capacity, it should say what the cluster may keep, and who needs the rest", func(t *testing.T) {
		account, reclaims := f.Reclaims()
		NewWithT(t).Expect(account).To(Equal("production"))
		NewWithT(t).Expect(reclaims).To(Equal(division.Reclaims{pool: {{Limit: 1, For: []string{"clusters/blue"}, By: by}}}))
		NewWithT(t).Expect(f.Taken("a")).To(Equal(division.Amounts{pool: 1, "limit/cpu": 8000}))
		NewWithT(t).Expect(f.Taken("unknown")).To(BeEmpty())
	})
	t.Run("When another process takes over, it should keep the deadlines that the first one has reported, and no later ones", func(t *testing.T) {
		g := NewWithT(t)
		for _, reported := range []time.Time{by.Add(-10 * time.Minute), by.Add(24 * time.Hour)} {
			successor := New(f.Config)
			f.grant(func(l *Lease) {
				l.Status.Reclaim = []autonodev1alpha1.CapacityReclaim{{Pool: pool, Limit: 1, By: new(scalar.NewTime(reported))}}
			})
			_, err := successor.Step(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			want := by
			if reported.Before(by) {
				want = reported
			}
			g.Expect(next(successor).By).To(BeTemporally("==", want))
		}
	})
	t.Run("When a machine has gone, it should launch none in its place", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.Step(3 * division.InFlight)
		delete(f.machines, "a")
		f.ForgetMachine("a")
		f.step()
		g.Expect(f.Spend("d", reserved)).To(BeNil())
		g.Expect(f.Offer(reserved, 1).Available).To(BeFalse())
	})
	t.Run("When nothing is asked any more, it should say so, and launch again", func(t *testing.T) {
		g := NewWithT(t)
		f.grant(func(l *Lease) { l.Lease.Reclaims = nil })
		f.step()
		g.Expect(next(f.Provider)).To(BeZero())
		g.Expect(f.Spend("d", reserved)).NotTo(BeNil())
	})
}

func TestCanReclaim(t *testing.T) {
	const pool = "reservation/cr-1"
	f := leased(t, division.Amounts{pool: 1, "limit/cpu": 100_000})
	f.spent("a", reserved)
	f.Expect(f.CanReclaim()).To(BeFalse())
	f.grant(func(l *Lease) {
		l.Attainable = division.Amounts{pool: 3, "limit/cpu": 100_000}
	})
	f.step()
	t.Run("When others use what is guaranteed, it should request machines up to that", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(f.CanReclaim()).To(BeTrue())
		g.Expect(f.InTime(reserved)).To(Equal(2))
	})
	t.Run("When a machine takes more of another pool than might be granted, it should request none", func(t *testing.T) {
		g := NewWithT(t)
		f.grant(func(l *Lease) { l.Attainable = division.Amounts{pool: 3, "limit/cpu": 4000} })
		f.step()
		g.Expect(f.InTime(reserved)).To(BeZero())
	})
	t.Run("When the cluster uses all that is guaranteed to it, it should request nothing of others", func(t *testing.T) {
		g := NewWithT(t)
		f.grant(func(l *Lease) {
			l.Attainable = division.Amounts{pool: 1, "limit/cpu": 100_000}
		})
		f.step()
		g.Expect(f.CanReclaim()).To(BeFalse())
		g.Expect(f.InTime(reserved)).To(BeZero())
	})
}
