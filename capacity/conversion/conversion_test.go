// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/conversion"
)

func lease(pools ...autonodev1alpha1.LeasedPool) *autonodev1alpha1.CapacityLease {
	return &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{UID: "lease"}, Spec: autonodev1alpha1.CapacityLeaseSpec{Sequence: 7, Pools: pools}}
}

func TestReport(t *testing.T) {
	pool := autonodev1alpha1.LeasedPool{Name: "reservation/r", Resource: autonodev1alpha1.PoolMachines, Amount: 2, Granted: 3, UpTo: 5}
	t.Run("When a Holder reports, the operator should read the same", func(t *testing.T) {
		g, l := NewWithT(t), lease(pool)
		report := capacity.Report{
			Sequence: 7, Held: capacity.Amounts{"reservation/r": 2}, Spent: capacity.Amounts{"reservation/r": 1}, Requests: []capacity.Request{{Charges: capacity.Amounts{"reservation/r": 1}, Count: 4}},
		}
		conversion.SetReport(&l.Status, report)
		g.Expect(conversion.BoundedReport(l)).To(Equal(report))
		g.Expect(conversion.Lease(l)).To(Equal(capacity.Lease{
			ID: "lease", Sequence: 7, Amounts: capacity.Amounts{"reservation/r": 2}, Granted: capacity.Amounts{"reservation/r": 3},
		}))
		g.Expect(conversion.UpTo(l)).To(Equal(capacity.Amounts{"reservation/r": 5}))
	})
	t.Run("When a Holder wants more than fits, the oldest requests should be in the report", func(t *testing.T) {
		g, l := NewWithT(t), lease(pool)
		var report capacity.Report
		for i := range int64(100) {
			report.Requests = append(report.Requests, capacity.Request{Charges: capacity.Amounts{"reservation/r": i + 1}, Count: 20})
		}
		conversion.SetReport(&l.Status, report)
		g.Expect(l.Status.Requests).To(HaveLen(autonodev1alpha1.MaxRequestedLaunches / 20))
		g.Expect(l.Status.Requests[0].Charges).To(ConsistOf(HaveField("Amount", int64(1))))
	})
	for name, tc := range map[string]struct {
		status autonodev1alpha1.CapacityLeaseStatus
		want   capacity.Report
	}{
		"When it names another pool, it should not count": {
			autonodev1alpha1.CapacityLeaseStatus{Held: []autonodev1alpha1.PoolAmount{{Pool: "others", Amount: 3}}}, capacity.Report{Held: capacity.Amounts{}, Spent: capacity.Amounts{}},
		},
		"When it names a pool twice, the larger amount should count": {
			autonodev1alpha1.CapacityLeaseStatus{Held: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 3}, {Pool: pool.Name, Amount: 1}}},
			capacity.Report{Held: capacity.Amounts{pool.Name: 3}, Spent: capacity.Amounts{}},
		},
		"When amounts are negative, they should not count": {
			autonodev1alpha1.CapacityLeaseStatus{Held: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: -3}}, Requests: []autonodev1alpha1.CapacityRequest{
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: -1}}, Count: 1}, {Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1}}, Count: -1},
			}}, capacity.Report{Held: capacity.Amounts{}, Spent: capacity.Amounts{}},
		},
		"When amounts are huge, they should be bounded": {
			autonodev1alpha1.CapacityLeaseStatus{Held: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1 << 62}}, Requests: []autonodev1alpha1.CapacityRequest{
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1 << 62}}, Count: 1 << 62}, {Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1}}, Count: 1},
			}}, capacity.Report{Held: capacity.Amounts{pool.Name: autonodev1alpha1.MaxAmount}, Spent: capacity.Amounts{}, Requests: []capacity.Request{
				{Charges: capacity.Amounts{pool.Name: autonodev1alpha1.MaxCharge}, Count: autonodev1alpha1.MaxRequestedLaunches},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := lease(pool)
			l.Status = tc.status
			NewWithT(t).Expect(conversion.BoundedReport(l)).To(Equal(tc.want))
		})
	}
}

func TestMachineOf(t *testing.T) {
	labels := map[string]string{
		corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "a", "karpenter.sh/capacity-type": "reserved", v1alpha1.ReservationIDLabel: "cr-1",
	}
	offering := capacity.Offering{InstanceType: "m5.large", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}
	prices := conversion.MachinePrices{List: 0.04, OnDemand: 0.096}
	sized := capacity.Machine{Offering: offering, VCPUs: 2000, Memory: 8 << 30, GPUs: 1}
	for _, tc := range []struct {
		name, size string
		want       capacity.Machine
		prices     conversion.MachinePrices
	}{
		{"When Karpenter writes a size, the operator should read it", conversion.FormatMachineSize(sized, prices), sized, prices},
		{"When Karpenter knows no price on demand, none should be read", conversion.FormatMachineSize(sized, conversion.MachinePrices{List: 0.04}), sized, conversion.MachinePrices{List: 0.04}},
		{"When a Machine has no size, it should be a machine", "", capacity.Machine{Offering: offering}, conversion.MachinePrices{}},
		{"When a part is malformed, the others should count", "vcpus=many,memory=-1,gpus=1,price=NaN,onDemand=-1,x", capacity.Machine{Offering: offering, GPUs: 1}, conversion.MachinePrices{}},
		{"When a price is that of no machine, it should not be known", "price=1e300,onDemand=1e7", capacity.Machine{Offering: offering}, conversion.MachinePrices{}},
		{"When a part is huge, it should be bounded", fmt.Sprintf("vcpus=%d", int64(1)<<62), capacity.Machine{Offering: offering, VCPUs: autonodev1alpha1.MaxCharge}, conversion.MachinePrices{}},
		{"When it is long, it should not be read", "gpus=1," + strings.Repeat("x", 256), capacity.Machine{Offering: offering}, conversion.MachinePrices{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			m, prices := conversion.MachineOf(&metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: tc.size}})
			g.Expect(m).To(Equal(tc.want))
			g.Expect(prices).To(Equal(tc.prices))
		})
	}
	t.Run("When a Machine is on demand, its list price should be that on demand", func(t *testing.T) {
		size := conversion.FormatMachineSize(capacity.Machine{Offering: capacity.Offering{CapacityType: "on-demand"}}, conversion.MachinePrices{List: 0.096, OnDemand: 0.2})
		_, prices := conversion.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: size}})
		NewWithT(t).Expect(prices).To(Equal(conversion.MachinePrices{List: 0.096, OnDemand: 0.096}))
	})
	for source, want := range map[string]string{
		"InstanceTypeCatalog.karpenter.cluster.x-k8s.io/general/m5.large":        "general",
		"InstanceTypeCatalog.karpenter.cluster.x-k8s.io/shared:general/m5.large": "general",
		"KwokMachineTemplate.infrastructure.cluster.x-k8s.io/general":            "",
		"InstanceTypeCatalog.example.com/general/m5.large":                       "",
		"": "",
	} {
		t.Run(fmt.Sprintf("When a Machine's source is %q, its catalog should be %q", source, want), func(t *testing.T) {
			m, _ := conversion.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TemplateSourceAnnotation: source}})
			NewWithT(t).Expect(m.Catalog).To(Equal(want))
		})
	}
	t.Run("When a Machine was launched without a zone, it should be in its offering's", func(t *testing.T) {
		m, _ := conversion.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.OfferingZoneAnnotation: "b"}})
		NewWithT(t).Expect(m.Offering).To(Equal(capacity.Offering{Zone: "b", CapacityType: "on-demand"}))
	})
}

func TestCommitments(t *testing.T) {
	t.Run("When a commitment is malformed, it should be left out", func(t *testing.T) {
		g, l := NewWithT(t), lease()
		l.Spec.Commitments = []autonodev1alpha1.LeasedCommitment{
			{Name: "plan", HourlySpend: "1.5", Discount: "0.25", Uncovered: "2"}, {Name: "instances", Instances: "3"},
			{Name: "neither"}, {Name: "both", HourlySpend: "1", Instances: "1"}, {Name: "discount", HourlySpend: "1", Discount: "lots"}, {Name: "negative", HourlySpend: "-1"},
		}
		commitments, unused, uncovered := conversion.Commitments(l)
		g.Expect(commitments).To(ConsistOf(HaveField("Name", "plan"), HaveField("Name", "instances")))
		g.Expect(unused).To(Equal(map[string]float64{"plan": 1.5, "instances": 3}))
		g.Expect(uncovered).To(HaveKeyWithValue("plan", 2.0))
	})
}
