// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/controllers/csr"
)

var noon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

func TestParseSpec(t *testing.T) {
	amounts := func(key, value string) autonodev1alpha1.CapacityAmounts {
		return autonodev1alpha1.CapacityAmounts{key: scalar.Text(value)}
	}
	limited := func(limits autonodev1alpha1.CapacityAmounts) autonodev1alpha1.CapacityAccountSpec {
		return autonodev1alpha1.CapacityAccountSpec{Quotas: []autonodev1alpha1.CapacityQuota{{Name: "q", Limits: limits}}}
	}
	quota := func(key, value string) autonodev1alpha1.CapacityAccountSpec { return limited(amounts(key, value)) }
	expiring := func(expires *scalar.Time) autonodev1alpha1.CapacityAccountSpec {
		return autonodev1alpha1.CapacityAccountSpec{Reservations: []autonodev1alpha1.CapacityReservation{{ID: "r", Count: 3, Expires: expires}}}
	}
	commits := func(spend string, starts, ends *scalar.Time) autonodev1alpha1.CapacityAccountSpec {
		return autonodev1alpha1.CapacityAccountSpec{Commitments: []autonodev1alpha1.CapacityCommitment{{Name: "c", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: spend, Starts: starts, Ends: ends}}}
	}
	discounted := func(percent string, spec autonodev1alpha1.CapacityAccountSpec) autonodev1alpha1.CapacityAccountSpec {
		spec.Commitments[0].DiscountPercent = ptr.To(scalar.Text(percent))
		return spec
	}
	member := func(member autonodev1alpha1.CapacityMember, quotas ...autonodev1alpha1.CapacityQuota) autonodev1alpha1.CapacityAccountSpec {
		member.HostedCluster = &autonodev1alpha1.HostedClusterReference{Namespace: "a", Name: "b"}
		return autonodev1alpha1.CapacityAccountSpec{Quotas: quotas, Members: []autonodev1alpha1.CapacityMember{member}}
	}
	at := func(d time.Duration) *scalar.Time { return ptr.To(scalar.NewTime(noon.Add(d))) }
	for _, tc := range []struct {
		name    string
		spec    autonodev1alpha1.CapacityAccountSpec
		limits  division.Amounts
		problem string
		next    time.Time
		covered int
		// maximum of the first member.
		maximum division.Amounts
	}{
		{name: "When a quota is of vCPUs, it should be in thousandths", spec: quota("cpu", "1.5"), limits: division.Amounts{"quota/q/cpu": 1500}},
		{name: "When a quota is of memory, it should be in bytes", spec: quota("memory", "2Gi"), limits: division.Amounts{"quota/q/memory": 2 << 30}},
		{name: "When a quota is zero, it should be a limit", spec: quota("gpus", "0"), limits: division.Amounts{"quota/q/gpus": 0}},
		{name: "When a quantity is negative, nothing should be allowed", spec: quota("gpus", "-1"), limits: division.Amounts{"quota/q/gpus": 0}, problem: `"-1" is negative`},
		{name: "When a quantity is huge, nothing should be allowed", spec: quota("memory", "9e40"), limits: division.Amounts{"quota/q/memory": 0}, problem: `"9e40" is too large`},
		{name: "When a quantity is long, nothing should be allowed", spec: quota("cpu", strings.Repeat("1", 99)), limits: division.Amounts{"quota/q/cpu": 0}, problem: "has 99 characters"},
		{name: "When a quantity has an exponent that takes half an hour, nothing should be allowed at once", spec: quota("cpu", "1e-999999999"), limits: division.Amounts{"quota/q/cpu": 0}, problem: `"1e-999999999" is not a quantity`},
		{name: "When memory is a number of bytes, it should be a limit", limits: division.Amounts{"quota/q/memory": 1 << 40}, spec: limited(autonodev1alpha1.CapacityAmounts{"memory": scalar.Number(1 << 40)})},
		{name: "When a quota has no limit, it should be unusable", spec: limited(nil), problem: "is empty"},
		{name: "When a reservation expires, it should say when", limits: division.Amounts{"reservation/r": 3}, next: noon.Add(time.Hour), spec: expiring(at(time.Hour))},
		{name: "When a reservation has expired, it should have nothing and say so", limits: division.Amounts{"reservation/r": 0}, problem: "has passed", spec: expiring(at(0))},
		{
			name: "When it can't be read when a reservation expires, it should have nothing and say so", limits: division.Amounts{"reservation/r": 0},
			problem: `"2030-06-01T12:00:00+99:99" is not a time`, spec: expiring(&scalar.Time{Malformed: "2030-06-01T12:00:00+99:99"}),
		},
		{name: "When it can't be read when a commitment ends, it should be unusable", problem: `"never" is not a time`, spec: commits("1", nil, &scalar.Time{Malformed: "never"})},
		{name: "When a commitment begins later, it should not cover anything yet", next: noon.Add(time.Hour), spec: commits("1", at(time.Hour), nil)},
		{name: "When a commitment has ended, it should cover nothing", spec: commits("1", nil, at(-time.Hour))},
		{name: "When a commitment runs, it should cover", covered: 1, next: noon.Add(time.Hour), spec: discounted("27.5", commits("1", at(-1), at(time.Hour)))},
		{name: "When a commitment's spend isn't a number, it should be unusable", problem: `"lots" is not an amount`, spec: commits("lots", nil, nil)},
		{name: "When a commitment's spend is NaN, it should be unusable", problem: `"NaN" is not an amount`, spec: commits("NaN", nil, nil)},
		{name: "When a discount is all of the price, it should be unusable", problem: `"100" is not a percentage`, spec: discounted("100", commits("1", nil, nil))},
		{
			name: "When a guarantee is of nothing that is there, it should be unusable", problem: "no usable machines of reservation/r",
			spec: member(autonodev1alpha1.CapacityMember{Guaranteed: []autonodev1alpha1.CapacityShare{{Reservation: "r", Amounts: amounts("machines", "1")}}}),
		},
		{
			name: "When a member's own limit can't be read, nothing should be allowed", problem: `"12B" is not a quantity; until it is one, nothing more is launched that counts against it`,
			spec: member(autonodev1alpha1.CapacityMember{Limits: amounts("cpu", "12B")}), maximum: division.Amounts{"limit/cpu": 0},
		},
		{
			name: "When a member's maximum can't be read, nothing should be allowed", problem: `"12B" is not a quantity`, limits: division.Amounts{"quota/q/cpu": 8000},
			spec:    member(autonodev1alpha1.CapacityMember{Maximum: []autonodev1alpha1.CapacityShare{{Quota: "q", Amounts: amounts("cpu", "12B")}}}, quota("cpu", "8").Quotas...),
			maximum: division.Amounts{"quota/q/cpu": 0},
		},
		{
			name: "When a selector of namespaces is malformed, it should be unusable", problem: "is not a valid label selector operator",
			spec: autonodev1alpha1.CapacityAccountSpec{Members: []autonodev1alpha1.CapacityMember{{NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}},
			}}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			a := parseSpec(&tc.spec, nil, noon)
			if tc.problem != "" {
				g.Expect(a.unusable).To(ConsistOf(HaveField("Message", ContainSubstring(tc.problem))))
			} else {
				g.Expect(a.unusable).To(BeEmpty())
			}
			if tc.limits == nil {
				tc.limits = division.Amounts{}
			}
			g.Expect(a.limits).To(Equal(tc.limits))
			g.Expect(a.next).To(BeTemporally("==", tc.next))
			g.Expect(a.commitments).To(HaveLen(tc.covered))
			if tc.maximum != nil {
				g.Expect(a.members[0].maximum).To(Equal(tc.maximum))
			}
		})
	}
}

func TestUnavailableReports(t *testing.T) {
	at := func(instanceType, zone, reason string, d time.Duration) autonodev1alpha1.UnavailableOffering {
		return autonodev1alpha1.UnavailableOffering{InstanceType: instanceType, Zone: zone, CapacityType: "on-demand", Reason: reason, Until: scalar.NewTime(noon.Add(d))}
	}
	t.Run("When a cluster finds no capacity, the others should know for as long as it reports", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		b.post("blue", []autonodev1alpha1.UnavailableOffering{at("m5.large", "a", "Capacity", time.Minute)}, noon)
		g.Expect(unavailableFor("green", b.closures(noon))).To(ConsistOf(at("m5.large", "a", "Capacity", time.Minute)))
		g.Expect(unavailableFor("blue", b.closures(noon))).To(BeEmpty())
		g.Expect(unavailableFor("green", b.closures(noon.Add(time.Minute)))).To(BeEmpty())
	})
	t.Run("When a report names more than one offering, it should not count", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		b.post("blue", []autonodev1alpha1.UnavailableOffering{at("", "a", "", time.Minute), at("m5.*", "a", "", time.Minute), at("m5.large", "", "", time.Minute)}, noon)
		g.Expect(b).To(BeEmpty())
	})
	quota := func(atLeast int64, d time.Duration) autonodev1alpha1.UnavailableOffering {
		return autonodev1alpha1.UnavailableOffering{
			Reason: "Quota", Quota: "on-demand Standard vCPUs", Counts: autonodev1alpha1.PoolVCPUs, AtLeast: atLeast, Until: scalar.NewTime(noon.Add(d)),
		}
	}
	t.Run("When clusters report a quota, it should be closed for the smallest amount of any report, until the last of them ends", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		b.post("blue", []autonodev1alpha1.UnavailableOffering{quota(2000, time.Minute)}, noon)
		b.post("red", []autonodev1alpha1.UnavailableOffering{quota(4000, 2*time.Minute)}, noon)
		g.Expect(unavailableFor("green", b.closures(noon))).To(ConsistOf(quota(2000, 2*time.Minute)))
		g.Expect(unavailableFor("red", b.closures(noon))).To(ConsistOf(quota(2000, time.Minute)))
		g.Expect(unavailableFor("green", b.closures(noon.Add(time.Minute)))).To(ConsistOf(quota(4000, 2*time.Minute)))
	})
	t.Run("When a quota's name is longer than a lease may have, it should not count", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		o := quota(2000, time.Minute)
		o.Quota = strings.Repeat("x", maxQuota+1)
		b.post("blue", []autonodev1alpha1.UnavailableOffering{o}, noon)
		g.Expect(b).To(BeEmpty())
	})
	for name, reports := range map[string]func(minute int) [][]autonodev1alpha1.UnavailableOffering{
		"When a cluster reports the same for ever, it should count half of the time": func(int) [][]autonodev1alpha1.UnavailableOffering {
			return [][]autonodev1alpha1.UnavailableOffering{{at("m5.large", "a", "", 1000*time.Hour)}}
		},
		"When a cluster reports an exhausted quota for ever, it should count half of the time, whatever else it reports": func(minute int) [][]autonodev1alpha1.UnavailableOffering {
			exhausted := []autonodev1alpha1.UnavailableOffering{quota(int64(minute), 1000*time.Hour)}
			if minute%3 == 0 {
				return [][]autonodev1alpha1.UnavailableOffering{nil, exhausted}
			}
			return [][]autonodev1alpha1.UnavailableOffering{exhausted}
		},
		"When a cluster reports one exhausted quota after the other, they should count half of the time together": func(minute int) [][]autonodev1alpha1.UnavailableOffering {
			exhausted := quota(2000, 1000*time.Hour)
			exhausted.Quota = []string{"volumes", "on-demand Standard vCPUs"}[minute/5%2]
			return [][]autonodev1alpha1.UnavailableOffering{{exhausted}}
		},
		"When a cluster reports an offering and an exhausted quota of it in turn, they should count half of the time together": func(minute int) [][]autonodev1alpha1.UnavailableOffering {
			return [][]autonodev1alpha1.UnavailableOffering{{[]autonodev1alpha1.UnavailableOffering{quota(2000, 1000*time.Hour), at("m5.large", "a", "", 1000*time.Hour)}[minute/5%2]}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, closed := unavailableReports{}, 0
			const minutes = 600
			for minute := range minutes {
				now := noon.Add(time.Duration(minute) * time.Minute)
				b.expire(now)
				for _, report := range reports(minute) {
					b.post("blue", report, now)
				}
				closed += len(unavailableFor("green", b.closures(now)))
			}
			NewWithT(t).Expect(closed).To(BeNumerically("~", minutes/2, 10))
		})
	}
	t.Run("When one cluster reports new offerings again and again, others' reports should go on to count, and its memory be bounded", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		for i := range 1500 {
			var offerings []autonodev1alpha1.UnavailableOffering
			for j := range autonodev1alpha1.MaxUnavailable {
				offerings = append(offerings, at(fmt.Sprintf("0%d.%d", i, j), "a", "", time.Hour))
			}
			b.post("red", offerings, noon)
		}
		for _, cluster := range []string{"amber", "pink"} { // with red, they have more than a lease has room for
			for j := range autonodev1alpha1.MaxUnavailable {
				b.post(cluster, []autonodev1alpha1.UnavailableOffering{at(fmt.Sprintf("0%s.%d", cluster, j), "b", "", time.Hour)}, noon)
			}
		}
		b.post("green", []autonodev1alpha1.UnavailableOffering{at("m5.large", "a", "", time.Minute)}, noon)
		g.Expect(b["red"]).To(HaveLen(autonodev1alpha1.MaxUnavailable))
		shared := unavailableFor("blue", b.closures(noon))
		g.Expect(shared).To(And(HaveLen(maxShared), ContainElement(HaveField("InstanceType", "m5.large"))))
	})
	t.Run("When several clusters find many types of a zone exhausted, the zone should be unavailable until the first returns", func(t *testing.T) {
		g, b := NewWithT(t), unavailableReports{}
		b.post("blue", []autonodev1alpha1.UnavailableOffering{at("a", "a", "", time.Minute), at("b", "a", "", 2*time.Minute), at("c", "a", "", 2*time.Minute), at("d", "a", "", 2*time.Minute)}, noon)
		g.Expect(unavailableFor("green", b.closures(noon))).NotTo(ContainElement(HaveField("InstanceType", "")))
		b.post("red", []autonodev1alpha1.UnavailableOffering{at("d", "a", "", 2*time.Minute)}, noon)
		g.Expect(unavailableFor("green", b.closures(noon))).To(ContainElement(at("", "a", "Capacity", time.Minute)))
	})
}

func TestMachineCounter(t *testing.T) {
	t.Run("When Machines come, change and go, it should count what they take", func(t *testing.T) {
		g, counts := NewWithT(t), newMachineCounter()
		k := &karpenter{namespace: "blue"}
		machines := csr.MachineCache(nil)
		machine := func(name, reservation string, size capacity.Machine) *clusterv1.Machine {
			return scopetest.Cached(t, machines, k.machine(name, reservation, size))
		}
		rules := []division.Rule{{Pool: "cpu", Resource: capacity.VCPUs}, {Pool: reserved, Resource: capacity.Machines, Reservation: "cr-1"}}
		used := func() division.Amounts {
			amounts, _ := counts.count(home{namespace: "blue"}, rules, func(capacity.Priced, int64) {})
			return amounts
		}
		for _, name := range []string{"a", "b"} {
			g.Expect(counts.set(machine(name, "cr-1", capacity.Machine{VCPUs: 2000}))).To(BeTrue())
		}
		g.Expect(counts.set(machine("a", "cr-1", capacity.Machine{VCPUs: 2000}))).To(BeFalse())
		g.Expect(used()).To(Equal(division.Amounts{"cpu": 4000, reserved: 2}))
		g.Expect(counts.set(machine("a", "", capacity.Machine{VCPUs: 1000}))).To(BeTrue())
		g.Expect(used()).To(Equal(division.Amounts{"cpu": 3000, reserved: 1}))
		copied := machine("a", "cr-1", capacity.Machine{})
		copied.Name = "copy" // a user's copy of a Machine is no NodeClaim's
		g.Expect(counts.set(copied)).To(BeFalse())
		for _, name := range []string{"a", "b"} {
			counts.remove(types.NamespacedName{Namespace: "blue", Name: name})
		}
		g.Expect(used()).To(BeEmpty())
		g.Expect(counts.counts).To(BeEmpty())
	})
	t.Run("When sizes are forged, the sum should not overflow", func(t *testing.T) {
		counts := newMachineCounter()
		k := &karpenter{namespace: "blue"}
		for i := range 3000 {
			counts.set(k.machine(fmt.Sprintf("m-%d", i), "", capacity.Machine{VCPUs: 1 << 62}))
		}
		amounts, machines := counts.count(home{namespace: "blue"}, []division.Rule{{Pool: "cpu", Resource: capacity.VCPUs}}, func(capacity.Priced, int64) {})
		NewWithT(t).Expect(amounts["cpu"]).To(And(BeNumerically(">", 0), BeNumerically("<=", autonodev1alpha1.MaxAmount)))
		NewWithT(t).Expect(machines).To(BeNumerically("==", 3000))
	})
}
