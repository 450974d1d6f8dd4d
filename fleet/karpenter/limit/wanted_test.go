// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

// m16 is a machine that takes as much as eight of large.
var m16 = capacity.Machine{Offering: capacity.Offering{InstanceType: "m5.4xlarge", Zone: "a", CapacityType: "on-demand"}, VCPUs: 16000}

func TestWant(t *testing.T) {
	requests := func(f *fixture) []division.Request {
		f.t.Helper()
		report, ok := f.Report()
		f.Expect(ok).To(BeTrue())
		return report.Requests
	}
	attainable := func(l *Lease) { l.Attainable = division.Amounts{"limit/cpu": 16000} }
	t.Run("When pods wait for what no offering has room for, it should request that until it isn't wanted any more", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.grant(attainable)
		f.step()
		f.spent("a", large)
		f.Expect(f.Offer(m16, 1).Available).To(BeFalse())
		f.Expect(f.Short()).To(BeTrue())
		f.Expect(f.InTime(m16)).To(BeNumerically(">", 0))
		once := []division.Request{{Charges: division.Amounts{"limit/cpu": 16000}, Count: 1}}
		for range 3 {
			f.Want(map[capacity.Machine]int64{m16: 1})
			f.Expect(requests(f)).To(Equal(once))
			f.clock.Step(division.LeftTTL / 2)
		}
		f.clock.Step(division.LeftTTL)
		f.Expect(requests(f)).To(BeEmpty())
	})
	t.Run("When it is granted, launches should plan again, and one take the request over", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.grant(attainable)
		f.step()
		granted := 0
		f.OnGrant(func() { granted++ })
		f.Want(map[capacity.Machine]int64{m16: 1})
		f.grant(func(l *Lease) { l.Limit = division.Amounts{"limit/cpu": 16000} })
		f.step()
		f.Expect(granted).To(Equal(1))
		f.Expect(f.Spend("n-1", m16)).NotTo(BeNil())
		f.Expect(requests(f)).To(BeEmpty())
	})
	t.Run("When a machine is larger than all that might be granted, it should not be wanted", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.grant(func(l *Lease) { l.Attainable = division.Amounts{"limit/cpu": 8000} })
		f.step()
		f.Expect(f.InTime(m16)).To(BeZero())
	})
	t.Run("When the lease reports nothing about that, it should want nothing", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.Expect(f.Short()).To(BeFalse())
		f.Expect(f.InTime(m16)).To(BeZero())
	})
	t.Run("When others reclaim capacity, it should launch nothing into what its own machines leave", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 4000})
		f.spent("a", large)
		f.Expect(f.Offer(large, 1).Available).To(BeTrue())
		f.grant(func(l *Lease) { l.Sequence--; l.Lease.Reclaims = division.Reclaims{"limit/cpu": {{}}} })
		f.step()
		f.Expect(f.Offer(large, 1).Available).To(BeFalse())
		f.Expect(f.Spend("b", large)).To(BeNil())
		f.grant(func(l *Lease) { l.Sequence--; l.Lease.Reclaims = nil })
		f.step()
		f.Expect(f.Offer(large, 1).Available).To(BeTrue())
		f.Expect(f.Spend("b", large)).NotTo(BeNil())
	})
}

// TestLargeBesideSmall: two Karpenters share 32 vCPUs. One has them all, in small machines that are replaced again and again; the other has a
// higher priority, and requires 16.
func TestLargeBesideSmall(t *testing.T) {
	g := NewWithT(t)
	const pool = "limit/cpu"
	limit := division.Amounts{pool: 32000}
	small, big := leased(t, division.Amounts{}), leased(t, division.Amounts{})
	big.clock = small.clock
	big.Provider.Clock = small.clock
	clusters := map[string]*fixture{"small": small, "big": big}
	record, priorities := map[string]division.Grant{}, map[string]int32{"big": 1}
	decide := func() {
		account := division.Account{Limits: limit, Preemption: true, Record: record, Now: small.clock.Now(), First: 10, Members: map[string]division.Member{}}
		for name, f := range clusters {
			used := division.Amounts{}
			for _, m := range f.machines {
				used[pool] += m.VCPUs
			}
			l := f.live.Lease
			if report, ok := f.Report(); ok {
				l.Report = report
			}
			account.Members[name] = division.Member{Priority: priorities[name], Used: used, Lease: &l}
		}
		decision := division.Decide(account)
		record = decision.Record
		for name, f := range clusters {
			f.grant(func(l *Lease) {
				l.Sequence, l.Limit, l.Granted = record[name].Sequence, record[name].Limit, record[name].Granted
				l.Lease.Reclaims, l.Available, l.Attainable = decision.Reclaims[name], decision.Available[name], decision.Attainable[name]
			})
			f.step()
		}
	}
	// launch does what Karpenter core does with pods that wait for machines: it launches what is offered, and the rest is wanted.
	launch := func(f *fixture, m capacity.Machine, names ...string) (waiting []string) {
		for i, name := range names {
			if !f.Offer(m, 1).Available {
				f.Want(map[capacity.Machine]int64{m: int64(len(names) - i)})
				waiting = append(waiting, names[i:]...)
				break
			}
			if f.Spend(name, m) == nil {
				f.Request(name, m)
				waiting = append(waiting, name)
				continue
			}
			f.done(name)
			f.machines[name] = m
			f.ObserveMachine(name, m)
		}
		for _, name := range waiting {
			f.Abandon(name, true)
		}
		return waiting
	}
	var pods []string
	for i := range 16 {
		pods = append(pods, fmt.Sprint("first-", i))
	}
	for range 5 {
		decide()
		pods = launch(small, large, pods...)
	}
	g.Expect(small.machines).To(HaveLen(16))
	small.clock.Step(5 * time.Minute)
	large := large
	for i := range 40 {
		small.clock.Step(10 * time.Second)
		for name := range small.machines { // one goes, and its pods want another
			delete(small.machines, name)
			small.ForgetMachine(name)
			break
		}
		pods = launch(small, large, append(pods, fmt.Sprint("again-", i))...)
		waiting := launch(big, m16, "big")
		g.Expect(len(small.machines)*2000 + len(big.machines)*16000).To(BeNumerically("<=", 32000))
		if len(waiting) == 0 {
			return
		}
		decide()
	}
	t.Errorf("the large machine isn't launched beside %d small ones; record %+v", len(small.machines), record)
}
