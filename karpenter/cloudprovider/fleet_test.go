// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/leasetest"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
)

// leased is a fixture with a lease, which has a clock of its own.
type leased struct {
	*fixture
	lease *leasetest.Lease
	clk   *clocktesting.FakeClock
}

// write changes the lease.
func (f *leased) write(change func(*limit.Lease)) {
	f.t.Helper()
	f.lease.Write(f.t, change)
}

// leasedFixture is a fixture with a lease of some spot machines, and of others as many as one likes.
func leasedFixture(t *testing.T, spot int64) *leased {
	t.Helper()
	f := &leased{fixture: newFixture(t), clk: clocktesting.NewFakeClock(time.Now())}
	f.lease = leasetest.NewLease(t, f.clk, []division.Rule{
		{Pool: "quota/spot/machines", Resource: capacity.Machines, Selector: division.Selector{CapacityTypes: []string{karpv1.CapacityTypeSpot}}},
		{Pool: "limit/cpu", Resource: capacity.VCPUs},
	}, division.Amounts{"quota/spot/machines": spot, "limit/cpu": 6000})
	f.provider.Capacity, f.store.Capacity = f.lease.Limiter, f.lease.Limiter
	f.store.Delete(f.nodeClass.Name)
	f.offer()
	return f
}

func TestCreateWithinLease(t *testing.T) {
	t.Run("When the lease has room, it should say on the Machine what it takes", func(t *testing.T) {
		f := leasedFixture(t, 1)
		nodeClaim, _ := f.launch("fits", needs3)
		m := f.machine(nodeClaim.Name)
		taken := annotation.MachineOf(m)
		f.Expect(taken).To(And(HaveField("InstanceType", "c4-large"), HaveField("CapacityType", "spot"), HaveField("VCPUs", int64(4000))))
		f.Expect(taken).To(And(HaveField("Price", 0.03), HaveField("OnDemand", 0.1)))
		report, ok := f.lease.Limiter.Report()
		f.Expect(ok).To(BeTrue())
		f.Expect(report.Reserved["quota/spot/machines"]).To(Equal(int64(1)))
	})
	t.Run("When the cheapest has no room and none can be granted, it should take the next", func(t *testing.T) {
		f := leasedFixture(t, 0)
		_, created := f.launch("on-demand", needs3)
		f.Expect(created.Labels).To(HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
	})
	t.Run("When nothing has room, it should say which pools leave nothing, and let Karpenter plan again", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) { l.Limit = division.Amounts{} })
		f.Expect(f.refused("nothing", nil)).To(MatchError(ContainSubstring("CapacityLease leaves nothing of limit/cpu, quota/spot/machines")))
	})
	t.Run("When more may be granted, it should ask for it, end the launch, and take the next offering only after a while", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) {
			l.Available = division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
		})
		f.ends(cloudprovider.WaitingForCapacityReason, "waits", needs3)
		f.Expect(f.recorder.Messages()).To(ContainElement(ContainSubstring("quota/spot/machines")))
		once := []division.Request{{Charges: division.Amounts{"quota/spot/machines": 1, "limit/cpu": 4000}, Count: 1}}
		requests := func() []division.Request {
			report, _ := f.lease.Limiter.Report()
			return report.Requests
		}
		f.Expect(requests()).To(Equal(once), "the pods still want it")

		f.clk.Step(10 * time.Second) // after which Karpenter makes another NodeClaim for them
		f.refused("waits-again", needs3)
		f.Expect(requests()).To(Equal(once), "it takes over the request")

		f.clk.Step(capacityprovider.GrantWait - 10*time.Second)
		_, created := f.launch("has-waited", needs3)
		f.Expect(created.Labels).To(HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
		f.Expect(requests()).To(BeEmpty())
	})
	t.Run("When nothing is granted in time, it should let Karpenter plan without, and ask again later", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) {
			l.Limit, l.Available = division.Amounts{}, division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
		})
		available := func() []string { return f.launchable(f.ctx, "general") }
		f.Expect(available()).NotTo(BeEmpty())
		f.ends(cloudprovider.WaitingForCapacityReason, "waits", nil)
		f.Expect(available()).NotTo(BeEmpty())
		f.clk.Step(capacityprovider.GrantWait)
		f.Expect(f.refused("in-vain", nil)).To(MatchError(ContainSubstring("hasn't granted more of limit/cpu within 15s")))
		f.Expect(available()).To(BeEmpty())
		f.clk.Step(capacityprovider.BackOffTTL)
		f.Expect(available()).NotTo(BeEmpty())
	})
	t.Run("When a commitment lowers the price, it should choose by it and keep the list price on the Machine", func(t *testing.T) {
		f := leasedFixture(t, 5)
		f.write(func(l *limit.Lease) {
			l.Commitments.Commitments = []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "c4-large", Instances: 1}}
		})
		nodeClaim, created := f.launch("committed", nil)
		f.Expect(created.Labels).To(And(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"), HaveKeyWithValue(v1alpha1.NodePriceLabel, "0.1")))
		m := f.machine(nodeClaim.Name)
		f.Expect(m.Annotations).To(HaveKeyWithValue(v1alpha1.PriceAnnotation, "0.1"))
		f.Expect(annotation.MachineOf(m)).To(And(HaveField("Price", 0.1), HaveField("OnDemand", 0.1)))
	})
	t.Run("When a NodeClaim is given up, it should return what its launch took", func(t *testing.T) {
		f := leasedFixture(t, 1)
		nodeClaim := f.claim("given-up", needs3)
		taken := capacity.Machine{Offering: capacity.Offering{InstanceType: "c4-large", Zone: "a", CapacityType: karpv1.CapacityTypeSpot}, VCPUs: 4000}
		done, _ := f.lease.Limiter.Reserve(nodeClaim.Name, taken)
		done()
		f.Expect(karpcloudprovider.IsNodeClaimNotFoundError(f.provider.Delete(f.ctx, nodeClaim))).To(BeTrue())
		done, _ = f.lease.Limiter.Reserve("other", taken)
		f.Expect(done).To(BeNil())
		f.clk.Step(division.InFlight)
		f.write(func(*limit.Lease) {})
		done, _ = f.lease.Limiter.Reserve("other", taken)
		f.Expect(done).NotTo(BeNil())
	})
}

func TestCreateAfterGrant(t *testing.T) {
	t.Run("When it is granted while a launch waits, it should launch in the same call", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) {
			l.Available = division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
		})
		nodeClaim := f.claim("granted", needs3)
		go func() {
			for range f.lease.Limiter.Triggered() {
				if report, _ := f.lease.Limiter.Report(); len(report.Requests) > 0 {
					f.write(func(l *limit.Lease) {
						l.Limit = division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
					})
					return
				}
			}
		}()
		created, err := f.provider.Create(f.ctx, nodeClaim)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(created.Labels).To(HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))
	})
	t.Run("When it is granted after a launch has ended, it should say so, and the next should find it", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) {
			l.Available = division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
		})
		grants := 0
		f.lease.Limiter.OnGrant(func() { grants++ })
		f.refused("ends", needs3)
		grant := func(l *limit.Lease) {
			l.Limit = division.Amounts{"quota/spot/machines": 1, "limit/cpu": 6000}
		}
		f.write(grant)
		f.Expect(grants).To(Equal(1))
		_, created := f.launch("next", needs3)
		f.Expect(created.Labels).To(HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))
		report, _ := f.lease.Limiter.Report()
		f.Expect(report.Requests).To(BeEmpty())
		f.write(grant)
		f.Expect(grants).To(Equal(1), "nothing waits any more")
	})
}

func TestInTime(t *testing.T) {
	t.Run("When the lease has no room, it should offer what might be granted in time to whoever requests that, and say what it takes", func(t *testing.T) {
		f := leasedFixture(t, 0)
		f.write(func(l *limit.Lease) {
			l.Limit, l.Attainable = division.Amounts{}, division.Amounts{"limit/cpu": 2000}
		})
		f.Expect(f.launchable(f.ctx, "general")).To(BeEmpty())
		small := f.launchable(f.provider.InTime(f.ctx, f.lease.Limiter.InTime), "general")
		f.Expect(small).To(And(Not(BeEmpty()), Not(ContainElement("c4-large"))), "of four vCPUs, two may be granted")
		f.write(func(l *limit.Lease) { l.Attainable = division.Amounts{"limit/cpu": 4000} })
		f.Expect(f.launchable(f.provider.InTime(f.ctx, f.lease.Limiter.InTime), "general")).To(ContainElements(append(small, "c4-large")))
		f.Expect(f.launchable(f.ctx, "general")).To(BeEmpty())

		instanceTypes, err := f.store.InstanceTypes(f.nodeClass.Name)
		f.Expect(err).NotTo(HaveOccurred())
		for _, it := range instanceTypes {
			if it.Name == "c4-large" {
				taken, ok := f.provider.MachineOf(f.nodeClass.Name, it.Name, it.Offerings[0])
				f.Expect(ok).To(BeTrue())
				f.Expect(taken).To(And(HaveField("InstanceType", "c4-large"), HaveField("VCPUs", int64(4000))))
			}
		}
		_, ok := f.provider.MachineOf("none", "c4-large", instanceTypes[0].Offerings[0])
		f.Expect(ok).To(BeFalse())
	})
	t.Run("When others use what is guaranteed of a reservation, it should offer what they have to return to whoever asks for that", func(t *testing.T) {
		p := newPlanner(t)
		pool := "reservation/" + block
		lease := leasetest.NewLease(t, clocktesting.NewFakeClock(time.Now()),
			[]division.Rule{{Pool: pool, Resource: capacity.Machines, Reservation: block}}, division.Amounts{})
		lease.Write(t, func(l *limit.Lease) {
			l.Attainable = division.Amounts{pool: 2}
		})
		p.provider.Capacity, p.store.Capacity = lease.Limiter, lease.Limiter
		p.store.Delete(p.nodeClass.Name)
		p.selectsReserved()
		reserved := func(ctx context.Context) karpcloudprovider.Offerings {
			instanceTypes, err := p.provider.GetInstanceTypes(ctx, p.pools[0])
			p.Expect(err).NotTo(HaveOccurred())
			var offerings karpcloudprovider.Offerings
			for _, it := range instanceTypes {
				for _, o := range it.Offerings.Launchable() {
					if o.CapacityType() == karpv1.CapacityTypeReserved {
						offerings = append(offerings, o)
					}
				}
			}
			return offerings
		}
		p.Expect(reserved(p.ctx)).To(BeEmpty())
		p.Expect(reserved(p.provider.InTime(p.ctx, lease.Limiter.InTime))).To(ConsistOf(HaveField("ReservationCapacity", 2)))
		lease.Write(t, func(l *limit.Lease) { l.Attainable = nil })
		p.Expect(reserved(p.provider.InTime(p.ctx, lease.Limiter.InTime))).To(BeEmpty())
	})
}
