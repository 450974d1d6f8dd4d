// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestGrants(t *testing.T) {
	f := newFixture(t, "grants", "blue", "green")
	blue, green := f.karpenters["blue"], f.karpenters["green"]

	t.Run("When a cluster joins, it should have a lease that the record names, of its component", func(t *testing.T) {
		g := NewWithT(t)
		f.reconcile()
		f.reconcile()
		lease, grant := blue.lease(), f.granted("blue")
		g.Expect(lease.Spec.Account.UID).To(BeEquivalentTo(f.account.UID))
		g.Expect(lease.OwnerReferences).To(ConsistOf(HaveField("Name", v1beta1.KarpenterComponent)))
		g.Expect(grant.Lease).To(BeEquivalentTo(lease.UID))
		g.Expect(grant.Sequence).To(And(Equal(lease.Spec.Sequence), BeNumerically(">", f.clock.Now().Unix())))
		g.Expect(conversion.Rules(lease.Spec.Pools)).To(ConsistOf(division.Rule{
			Pool: reserved, Resource: capacity.Machines, Reservation: "cr-1", Selector: division.Selector{InstanceTypes: []string{typeName}, Zones: []string{"a"}},
		}))
		g.Expect(conversion.Lease(lease).Available[reserved]).To(BeNumerically(">", 0))
	})
	t.Run("When clusters call for more than there is, they should use all of it and no more", func(t *testing.T) {
		g := NewWithT(t)
		blue.want(8)
		f.settle()
		green.want(8)
		f.settle()
		g.Expect(blue.machines() + green.machines()).To(Equal(10))
		f.pass(figures)
		g.Expect(f.account.Status.FullestPool).To(Equal("reservation/cr-1 10/10"))
		g.Expect(f.account.Status.Pools).To(ConsistOf(And(HaveField("Granted", "10"), HaveField("Limit", "10"), HaveField("Waiting", Not(BeEmpty())))))
		g.Expect(f.account.Status.ClusterCount).To(HaveValue(BeEquivalentTo(2)))
		g.Expect(f.condition(autonodev1alpha1.Ready)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", f.account.Generation)))
	})
	t.Run("When nothing changes, it should write nothing", func(t *testing.T) {
		f.pass(time.Minute) // figures
		before := f.writes
		f.pass(time.Minute)
		f.reconcile()
		NewWithT(t).Expect(f.writes).To(Equal(before))
	})
	t.Run("When machines go, it should grant what they used to whoever waits, after an acknowledgement", func(t *testing.T) {
		g := NewWithT(t)
		clear(blue.demand) // its pods are gone
		for name := range blue.seen {
			blue.holder.Withdraw(name)
		}
		waiting := green.machines()
		blue.remove(1)
		f.settle()
		g.Expect(green.machines()).To(Equal(waiting + 1))
		g.Expect(blue.machines() + green.machines()).To(Equal(10))
	})
	t.Run("When a lease is deleted, it should keep what was granted, and a new one should have a newer sequence", func(t *testing.T) {
		g := NewWithT(t)
		before, old := f.granted("blue"), blue.lease()
		g.Expect(clusters.Management.Client.Delete(t.Context(), old)).To(Succeed())
		f.reconcile()
		g.Expect(f.granted("blue").Granted).To(Equal(before.Granted))
		f.reconcile()
		f.reconcile()
		g.Expect(blue.lease().UID).NotTo(Equal(old.UID))
		g.Expect(f.granted("blue").Lease).To(BeEquivalentTo(blue.lease().UID))
		g.Expect(blue.lease().Spec.Sequence).To(BeNumerically(">", old.Spec.Sequence))
	})
	change := func(selector autonodev1alpha1.CapacitySelector) {
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "all", Selector: selector, Limits: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Number(64)}}}
		})
	}
	t.Run("When there is one more pool, it should lease it, and count what its machines take", func(t *testing.T) {
		g := NewWithT(t)
		change(autonodev1alpha1.CapacitySelector{})
		f.settle()
		g.Expect(conversion.Rules(blue.lease().Spec.Pools)).To(HaveLen(2))
		f.settleAfter(time.Minute)
		g.Expect(f.account.Status.Pools).To(ContainElement(And(HaveField("Name", "quota/all/cpu"), HaveField("Used", "20"), HaveField("Limit", "64"))))
	})
	t.Run("When a rule changes and no amount, it should ask for a new acknowledgement", func(t *testing.T) {
		g := NewWithT(t)
		before := blue.lease().Spec
		change(autonodev1alpha1.CapacitySelector{InstanceTypes: []string{typeName}}) // all machines are of this type
		f.reconcile()
		now := blue.lease().Spec
		g.Expect(now.Sequence).To(BeNumerically(">", before.Sequence))
		for i := range now.Pools {
			g.Expect(now.Pools[i]).To(And(HaveField("Limit", before.Pools[i].Limit), HaveField("Granted", before.Pools[i].Granted)))
		}
	})
}

func TestUnspent(t *testing.T) {
	t.Run("When a cluster doesn't need what it holds for a while, it should return", func(t *testing.T) {
		f := newFixture(t, "unspent", "blue")
		blue := f.karpenters["blue"]
		blue.want(4)
		f.settle()
		f.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(4)))
		blue.remove(3)
		f.settle()
		f.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(4)))
		f.settleAfter(idle)
		f.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(1)))
	})
	t.Run("When a Karpenter is silent, what it was asked for should stay granted, and a condition should say so", func(t *testing.T) {
		f := newFixture(t, "silent", "blue", "green")
		blue, green := f.karpenters["blue"], f.karpenters["green"]
		blue.want(10)
		f.settle()
		blue.remove(10)
		delete(f.karpenters, "blue")
		for name := range blue.seen { // its Machines are gone, and it may launch others
			f.Controller.counter.remove(client.ObjectKey{Namespace: blue.namespace, Name: name})
		}
		green.want(1)
		f.settle()
		f.Expect(f.granted("blue").Limit).NotTo(HaveKey(reserved))
		f.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(10)))
		f.Expect(green.machines()).To(BeZero())
		f.clock.SetTime(f.clock.Now().Add(silent))
		f.reconcile()
		f.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionFalse, autonodev1alpha1.NotAcknowledgedReason, "silent/blue"))
		f.Expect(f.events.Events).To(Receive(ContainSubstring(autonodev1alpha1.NotAcknowledgedReason)))
		blue.step()
		f.karpenters["blue"] = blue
		clear(blue.demand)
		f.settle()
		f.Expect(green.machines()).To(Equal(1))
	})
}

func TestCommitments(t *testing.T) {
	t.Run("When there are commitments, the lease should have them and the machines that they may cover", func(t *testing.T) {
		f := newFixture(t, "committed", "blue")
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Commitments = []autonodev1alpha1.CapacityCommitment{
				{Name: "plan", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "0.5", DiscountPercent: ptr.To(scalar.Text("0"))},
				{Name: "instances", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: ptr.To(int32(2)), Price: "0.06"},
			}
		})
		f.karpenters["blue"].want(5) // at 0.1 an hour each; two are covered as instances
		f.settle()
		f.pass(hints)
		lease := f.karpenters["blue"].lease()
		committed := conversion.CommittedTo(lease)
		f.Expect(committed.Commitments).To(ConsistOf(
			And(HaveField("Name", "plan"), HaveField("HourlySpend", 0.5)), And(HaveField("Name", "instances"), HaveField("Instances", 2.0), HaveField("InstanceType", "m5.large")),
		))
		runs := And(HaveField("InstanceType", "m5.large"), HaveField("Count", int64(5)), HaveField("Price", 0.1))
		f.Expect(committed.Machines).To(ConsistOf(And(runs, HaveField("Idle", false)), And(runs, HaveField("Idle", true))), "five run, and five more are reserved")
		f.Expect(lease.Spec.Counted).To(BeEmpty(), "they are in a reservation, of which commitments lower no price")
	})
	t.Run("When clusters share a commitment, it should offer the rest of it to one at a time", func(t *testing.T) {
		f := newFixture(t, "shared-commitment", "blue", "green")
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Commitments = []autonodev1alpha1.CapacityCommitment{{
				Name: "instances", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: ptr.To(int32(3)), Price: "0.06",
			}}
		})
		f.clock.SetTime(f.clock.Now().Truncate(turn).Add(turn)) // turns go by the clock, and hints take a part of one
		offered := map[string][]float64{}
		for range 2 {
			f.settle()
			f.pass(hints)
			sum := 0.0
			for _, cluster := range []string{"blue", "green"} {
				unused := conversion.CommittedTo(f.karpenters[cluster].lease()).Commitments[0].Instances
				offered[cluster], sum = append(offered[cluster], unused), sum+unused
			}
			f.Expect(sum).To(Equal(3.0))
			f.clock.SetTime(f.clock.Now().Add(turn))
		}
		f.Expect(offered["blue"]).To(ConsistOf(1.0, 2.0))
		f.Expect(offered["green"]).To(ConsistOf(1.0, 2.0))
	})
	t.Run("When Machines of a cluster have a forged zone, catalog or price, the others should learn the commitments nevertheless", func(t *testing.T) {
		f := newFixture(t, "forged", "blue", "green")
		plan := autonodev1alpha1.CapacityCommitment{Name: "plan", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "1", DiscountPercent: ptr.To(scalar.Number(20))}
		narrow := plan
		narrow.Name, narrow.Selector = "narrow", autonodev1alpha1.CapacitySelector{Zones: []string{"a"}, Catalogs: []string{"general"}}
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Commitments = []autonodev1alpha1.CapacityCommitment{plan, narrow}
		})
		for name, annotations := range map[string]map[string]string{
			"zone":    {v1alpha1.OfferingZoneAnnotation: strings.Repeat("z", 300)},
			"catalog": {v1alpha1.TemplateSourceAnnotation: "InstanceTypeCatalog." + v1alpha1.Group + "/" + strings.Repeat("c", 300) + "/m5.large"},
			"price":   {v1alpha1.MachineSizeAnnotation: "vcpus=1,memory=1,price=1e-300"},
		} {
			machine := f.karpenters["blue"].machine(name, "", capacity.Machine{})
			delete(machine.Labels, corev1.LabelTopologyZone)
			maps.Copy(machine.Annotations, annotations)
			f.karpenters["blue"].create(machine)
		}
		f.settle()
		f.pass(hints)
		lease := f.karpenters["green"].lease()
		f.Expect(lease.Spec.Commitments).To(HaveLen(2))
		f.Expect(lease.Spec.Machines).To(ContainElement(And(HaveField("Price", "0.1"), HaveField("Zone", ""), HaveField("Catalog", ""))))
	})
	t.Run("When a plan's rates are in a ConfigMap, it should read them, and keep the last ones", func(t *testing.T) {
		f := newFixture(t, "rates", "blue")
		rates := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rates"}, Data: map[string]string{"rates.csv": "instanceType,rate\nm5.large,0.07\n"}}
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Commitments = []autonodev1alpha1.CapacityCommitment{{
				Name: "csp", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "1", RatesFrom: &autonodev1alpha1.CapacityRatesSource{Namespace: "default", Name: "rates", Key: "rates.csv"},
			}}
		})
		f.settle()
		f.read()
		f.Expect(f.account.Status.Unusable).To(ContainElement(And(HaveField("Field", "commitments[csp].ratesFrom"), HaveField("Message", ContainSubstring("there is no ConfigMap default/rates")))))
		f.Expect(clusters.Management.Client.Create(t.Context(), rates)).To(Succeed())
		f.settleAfter(quotaInterval)
		f.pass(hints)
		f.Expect(conversion.CommittedTo(f.karpenters["blue"].lease()).Commitments).To(ConsistOf(HaveField("Rates", map[string]float64{"m5.large": 0.07})))
		f.Expect(clusters.Management.Client.Delete(t.Context(), rates)).To(Succeed())
		f.settleAfter(quotaInterval)
		f.Expect(conversion.CommittedTo(f.karpenters["blue"].lease()).Commitments).To(ConsistOf(HaveField("Rates", map[string]float64{"m5.large": 0.07})))
		f.read()
		f.Expect(f.account.Status.Unusable).To(ContainElement(HaveField("Message", ContainSubstring("the last rates stay"))))
	})
}

func TestLimits(t *testing.T) {
	f := newFixture(t, "limits", "blue", "green")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Members = append([]autonodev1alpha1.CapacityMember{{
			HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "limits", Name: "blue"},
			Limits:        autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text("6")},
		}}, spec.Members...)
	})
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	t.Run("When a cluster has a limit of its own, it should be granted at once and never exceeded", func(t *testing.T) {
		g := NewWithT(t)
		f.reconcile()
		f.reconcile()
		g.Expect(conversion.Lease(blue.lease()).Limit).To(Equal(division.Amounts{"limit/cpu": 6000}))
		blue.want(5)
		f.settle()
		g.Expect(blue.machines()).To(Equal(3))
	})
	t.Run("When the limit is lowered, it should be asked back", func(t *testing.T) {
		g := NewWithT(t)
		blue.remove(3)
		clear(blue.demand)
		f.settle()
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members[0].Limits["cpu"] = scalar.Text("4") })
		f.settle()
		g.Expect(conversion.Lease(blue.lease()).Limit).To(HaveKeyWithValue("limit/cpu", int64(4000)))
	})
	t.Run("When a report has absurd figures, it should lower no other cluster's grant nor exceed the pool", func(t *testing.T) {
		g := NewWithT(t)
		green.want(10)
		f.settle()
		before, granted := f.granted("blue"), f.granted("green")
		lease := green.lease()
		lease.Status = autonodev1alpha1.CapacityLeaseStatus{
			AcknowledgedSequence: 1 << 60, Reserved: []autonodev1alpha1.PoolAmount{{Pool: reserved, Amount: 1 << 62}, {Pool: "others", Amount: 5}, {Pool: reserved, Amount: 1}},
			Requests: []autonodev1alpha1.CapacityRequest{
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: reserved, Amount: 1 << 62}}, Count: 1 << 62},
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: reserved, Amount: 1}}, Count: 1 << 62}, {Charges: []autonodev1alpha1.PoolAmount{}, Count: 9},
			},
			Unavailable: []autonodev1alpha1.UnavailableOffering{{Until: scalar.NewTime(f.clock.Now().AddDate(9, 0, 0))}},
		}
		g.Expect(clusters.Management.Client.Status().Update(t.Context(), lease)).To(Succeed())
		f.reconcile()
		f.reconcile()
		g.Expect(f.granted("blue").Granted).To(Equal(before.Granted))
		g.Expect(f.granted("green").Granted).To(Equal(granted.Granted))
		g.Expect(blue.lease().Spec.Unavailable).To(BeEmpty())
	})
}

func TestQuota(t *testing.T) {
	f := newFixture(t, "quota", "blue", "green")
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	limit := func(cpu string) {
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "all", Limits: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text(cpu)}}}
		})
		f.settle()
	}
	total := func() int { return blue.machines() + green.machines() }
	t.Run("When a quota is reached, the clusters should launch no more within it", func(t *testing.T) {
		limit("8") // machines of two vCPUs
		blue.want(4)
		green.want(4)
		f.settle()
		NewWithT(t).Expect(total()).To(Equal(4))
	})
	t.Run("When it is raised, they should launch what fits", func(t *testing.T) {
		limit("12")
		f.settle()
		g := NewWithT(t)
		g.Expect(total()).To(Equal(6))
		g.Expect(f.condition(autonodev1alpha1.Ready)).To(HaveField("Reason", autonodev1alpha1.AsExpectedReason))
	})
	t.Run("When it is lowered below what is used, nothing should be removed and no cluster granted more, and the condition should say so", func(t *testing.T) {
		limit("6")
		f.settleAfter(figures)
		g := NewWithT(t)
		g.Expect(total()).To(Equal(6))
		g.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.OverLimitReason, "machines take more than the limit: quota/all/cpu 12/6; none is removed"))
		clear(blue.demand)
		blue.holder.WithdrawAll()
		blue.remove(1)
		f.settle()
		g.Expect(total()).To(Equal(5), "another cluster waits, and the limit has no room for it")
	})
	t.Run("When enough machines have gone, it should be as expected again", func(t *testing.T) {
		for _, k := range f.karpenters {
			clear(k.demand)
			k.holder.WithdrawAll()
			k.remove(k.machines())
		}
		f.settle()
		NewWithT(t).Expect(f.condition(autonodev1alpha1.Ready)).To(HaveField("Reason", autonodev1alpha1.AsExpectedReason))
	})
	t.Run("When a cluster's own limit is lowered below what it uses, the condition should name the cluster", func(t *testing.T) {
		green.want(2)
		f.settle()
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Members = append([]autonodev1alpha1.CapacityMember{{
				HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "quota", Name: "green"}, Limits: autonodev1alpha1.CapacityAmounts{"machines": scalar.Number(1)},
			}}, spec.Members...)
		})
		f.settle()
		g := NewWithT(t)
		g.Expect(green.machines()).To(Equal(2))
		g.Expect(f.condition(autonodev1alpha1.Ready)).To(And(HaveField("Reason", autonodev1alpha1.OverLimitReason), HaveField("Message", ContainSubstring("limit/machines of quota/green 2/1"))))
	})
}

func TestMembers(t *testing.T) {
	t.Run("When a component loses its labels for a moment, its cluster should stay a member", func(t *testing.T) {
		f := newFixture(t, "labels", "blue")
		blue := f.karpenters["blue"]
		blue.want(2)
		f.settle()
		component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: blue.namespace, Name: v1beta1.KarpenterComponent}}
		f.Expect(clusters.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(component), component)).To(Succeed())
		component.Labels = nil
		f.Expect(clusters.Management.Client.Update(t.Context(), component)).To(Succeed())
		before := blue.lease().Spec
		f.settle()
		f.Expect(blue.lease().Spec).To(Equal(before))
		f.Expect(f.account.Status.ClusterCount).To(HaveValue(BeEquivalentTo(1)))
	})
	t.Run("When a cluster leaves, its lease should limit nothing after it acknowledged, and its machines should count until they are gone", func(t *testing.T) {
		f := newFixture(t, "leaves", "blue", "green")
		blue, green := f.karpenters["blue"], f.karpenters["green"]
		blue.want(4)
		f.settle()
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Members = []autonodev1alpha1.CapacityMember{{HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "leaves", Name: "green"}}}
		})
		f.settle()
		f.Expect(blue.lease().Spec).To(And(HaveField("Account", BeNil()), HaveField("Pools", BeEmpty())))
		f.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionTrue, autonodev1alpha1.MembersLeavingReason, ""))
		green.want(10)
		f.settle()
		f.Expect(green.machines()).To(Equal(6))
		blue.remove(4)
		f.settle()
		f.settleAfter(3 * division.InFlight)
		f.Expect(f.granted("blue")).To(BeNil())
		f.Expect(green.machines()).To(Equal(10))
	})
	t.Run("When two accounts claim a cluster, the older one should have it until its members release it", func(t *testing.T) {
		f := newFixture(t, "claimed", "blue")
		f.settle()
		other := &fixture{T: t, WithT: f.WithT, Controller: f.Controller, clock: f.clock, namespace: "claimed", karpenters: f.karpenters, events: f.events}
		other.account = &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "claimed-too"}, Spec: specOf("claimed")}
		f.create(other.account)
		t.Cleanup(func() { f.forget(other.account) })
		other.settle()
		f.Expect(other.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionFalse, autonodev1alpha1.ClaimedByOthersReason, "claimed/blue (account claimed)"))
		f.Expect(f.karpenters["blue"].lease().Spec.Account.Name).To(Equal("claimed"))
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members = nil })
		f.settle()
		other.settle()
		f.Expect(f.karpenters["blue"].lease().Spec.Account.Name).To(Equal("claimed-too"))
		f.Expect(other.condition(autonodev1alpha1.Ready)).To(HaveField("Status", metav1.ConditionTrue))
		f.karpenters["blue"].want(3)
		other.settle()
		f.Expect(f.karpenters["blue"].machines()).To(Equal(3))
	})
	t.Run("When an account is lost and created again, it should count what its leases had granted", func(t *testing.T) {
		f := newFixture(t, "lost", "blue", "green")
		blue, green := f.karpenters["blue"], f.karpenters["green"]
		blue.want(7)
		f.settle()
		blue.remove(7) // it may launch seven others
		for name := range blue.seen {
			f.Controller.counter.remove(client.ObjectKey{Namespace: blue.namespace, Name: name})
		}
		delete(f.karpenters, "blue")
		f.forget(f.account)
		f.account = &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: specOf("lost")}
		f.create(f.account)
		green.want(10)
		f.settle()
		f.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(7)))
		f.Expect(green.machines()).To(Equal(3))
	})
	t.Run("When an account is deleted while it is in use, leases should stay as they are until its members are released, and it cost nothing then", func(t *testing.T) {
		f := newFixture(t, "deleted", "blue")
		f.karpenters["blue"].want(2)
		f.settle()
		before := f.karpenters["blue"].lease().Spec
		f.Expect(f.Controller.Cost("deleted")).NotTo(BeNil())
		f.Expect(clusters.Management.Client.Delete(t.Context(), f.account)).To(Succeed())
		f.settle()
		f.Expect(f.karpenters["blue"].lease().Spec).To(Equal(before))
		f.Expect(f.karpenters["blue"].machines()).To(Equal(2))
		f.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionFalse, autonodev1alpha1.AccountDeletedReason,
			"leases of 1 cluster stay as they are; empty spec.members to release them"))
		f.Expect(f.karpenters["blue"].lease().Spec.Account).NotTo(BeNil())
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members = nil })
		f.karpenters["blue"].remove(2)
		f.settle()
		f.Expect(f.karpenters["blue"].lease().Spec.Account).To(BeNil())
		f.clock.SetTime(f.clock.Now().Add(3 * division.InFlight))
		f.read()
		_, err := f.Controller.Reconcile(t.Context(), f.account.DeepCopy())
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(clusters.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(f.account), f.account)).To(MatchError(ContainSubstring("not found")))
		f.Expect(f.Controller.Cost("deleted")).To(BeNil())
	})
	t.Run("When entries are malformed, it should name them, and use the others", func(t *testing.T) {
		f := newFixture(t, "malformed", "blue")
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Members[0].Guaranteed = []autonodev1alpha1.CapacityShare{{Reservation: spec.Reservations[0].ID, Amounts: autonodev1alpha1.CapacityAmounts{"machines": scalar.Text("many")}}}
		})
		f.karpenters["blue"].want(2)
		f.settle()
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.SomeUnusableReason, `spec.members[0].guaranteed[0].amounts.machines: "many" is not a quantity; the other entries are in use`))
		f.Expect(f.karpenters["blue"].machines()).To(Equal(2))
	})
	t.Run("When members match nothing and a reservation has ended, it should name them, and use the others", func(t *testing.T) {
		f := newFixture(t, "useless", "blue")
		member := func(name string) autonodev1alpha1.CapacityMember {
			return autonodev1alpha1.CapacityMember{HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "useless", Name: name}}
		}
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Members = append([]autonodev1alpha1.CapacityMember{member("absent"), member("blue")}, spec.Members[0],
				autonodev1alpha1.CapacityMember{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"example.com/team": "none"}}})
			spec.Reservations = append(spec.Reservations, autonodev1alpha1.CapacityReservation{
				ID: "cr-0", InstanceType: typeName, Zone: "a", Count: 4, Expires: ptr.To(scalar.NewTime(f.clock.Now().Add(-time.Hour))),
			})
		})
		f.karpenters["blue"].want(2)
		f.settle()
		entry := func(field, message string) OmegaMatcher {
			return And(HaveField("Field", field), HaveField("Message", ContainSubstring(message)))
		}
		f.Expect(f.account.Status.Unusable).To(ConsistOf(
			entry("reservations[cr-0].expires", "has passed"),
			entry("members[useless/absent]", "matches no hosted cluster with AutoNode on platform ClusterAPI"),
			entry("members[2]", "matches no hosted cluster but those of earlier entries"),
			entry("members[3]", "matches no hosted cluster with AutoNode on platform ClusterAPI"),
		))
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.SomeUnusableReason, "and 1 more; the other entries are in use"))
		f.Expect(f.karpenters["blue"].machines()).To(Equal(2))
		f.join("absent")
		f.settle()
		f.Expect(f.account.Status.Unusable).NotTo(ContainElement(HaveField("Field", "members[useless/absent]")), "it is there now")
	})
	t.Run("When no cluster matches, it should say so", func(t *testing.T) {
		f := newFixture(t, "without-members")
		f.reconcile()
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.NoMembersReason, ""))
	})
}

func TestUnreadableLimit(t *testing.T) {
	t.Run("When more is guaranteed than a limit, it should say so", func(t *testing.T) {
		f := newFixture(t, "promised", "blue", "green")
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "all", Limits: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Number(6)}}}
			share := []autonodev1alpha1.CapacityShare{{Quota: "all", Amounts: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Number(4)}}}
			spec.Members = nil
			for i, name := range []string{"blue", "green"} {
				spec.Members = append(spec.Members, autonodev1alpha1.CapacityMember{
					HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: "promised", Name: name}, Guaranteed: share, Priority: int32(i),
				})
			}
		})
		f.settle()
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.OverGuaranteedReason, "more is guaranteed than the limit: quota/all/cpu 8/6; members with a higher priority have theirs first"))
	})
	t.Run("When a limit is malformed, the last one should stay in force, and without one nothing more should be launched", func(t *testing.T) {
		f := newFixture(t, "mistyped", "blue")
		limit := func(cpu string) {
			f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
				spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "many", Limits: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text(cpu), "gpus": scalar.Number(3)}}}
			})
			f.settle()
		}
		f.karpenters["blue"].want(2)
		limit("12B")
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionFalse, autonodev1alpha1.LimitsUnusableReason, `spec.quotas[many].limits.cpu: its limit stays 0: "12B" is not a quantity; the other entries are in use`))
		f.Expect(f.account.Status.Pools).To(HaveLen(3))
		f.Expect(f.karpenters["blue"].machines()).To(BeZero())
		limit("6")
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionTrue, autonodev1alpha1.AsExpectedReason, ""))
		f.Expect(f.karpenters["blue"].machines()).To(Equal(2))
		limit("12 B")
		f.Expect(f.condition(autonodev1alpha1.Ready)).To(is(metav1.ConditionFalse, autonodev1alpha1.LimitsUnusableReason, `spec.quotas[many].limits.cpu: its limit stays 6: "12 B" is not a quantity; the other entries are in use`))
		f.karpenters["blue"].want(4)
		f.settle()
		f.Expect(f.karpenters["blue"].machines()).To(Equal(3), "of two CPUs each")
	})
}
