// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

func lease(pools ...autonodev1alpha1.LeasedPool) *autonodev1alpha1.CapacityLease {
	return &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{UID: "lease"}, Spec: autonodev1alpha1.CapacityLeaseSpec{Sequence: 7, Pools: pools}}
}

func TestReport(t *testing.T) {
	pool := autonodev1alpha1.LeasedPool{Name: "reservation/r", Resource: autonodev1alpha1.PoolMachines, Limit: 2, Granted: 3, Available: 5}
	t.Run("When a Holder reports, the operator should read the same", func(t *testing.T) {
		g, l := NewWithT(t), lease(pool)
		report := division.Report{
			Sequence: 7, Reserved: division.Amounts{"reservation/r": 2}, Used: division.Amounts{"reservation/r": 1}, Requests: []division.Request{{Charges: division.Amounts{"reservation/r": 1}, Count: 4}},
		}
		conversion.SetReport(&l.Status, report)
		g.Expect(conversion.BoundedReport(l)).To(Equal(report))
		g.Expect(conversion.Lease(l)).To(Equal(division.Lease{
			ID: "lease", Sequence: 7, Limit: division.Amounts{"reservation/r": 2}, Granted: division.Amounts{"reservation/r": 3},
			Available: division.Amounts{"reservation/r": 5}, Attainable: division.Amounts{}, Reclaims: division.Reclaims{},
		}))
	})
	t.Run("When a Holder requires more than fits, the oldest requests should be in the report", func(t *testing.T) {
		g, l := NewWithT(t), lease(pool)
		var report division.Report
		for i := range int64(100) {
			report.Requests = append(report.Requests, division.Request{Charges: division.Amounts{"reservation/r": i + 1}, Count: 20})
		}
		conversion.SetReport(&l.Status, report)
		g.Expect(l.Status.Requests).To(HaveLen(autonodev1alpha1.MaxRequestedLaunches / 20))
		g.Expect(l.Status.Requests[0].Charges).To(ConsistOf(HaveField("Amount", int64(1))))
	})
	for name, tc := range map[string]struct {
		status autonodev1alpha1.CapacityLeaseStatus
		want   division.Report
	}{
		"When it names another pool, it should not count": {
			autonodev1alpha1.CapacityLeaseStatus{Reserved: []autonodev1alpha1.PoolAmount{{Pool: "others", Amount: 3}}}, division.Report{Reserved: division.Amounts{}, Used: division.Amounts{}},
		},
		"When it names a pool twice, the larger amount should count": {
			autonodev1alpha1.CapacityLeaseStatus{Reserved: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 3}, {Pool: pool.Name, Amount: 1}}},
			division.Report{Reserved: division.Amounts{pool.Name: 3}, Used: division.Amounts{}},
		},
		"When amounts are negative, they should not count": {
			autonodev1alpha1.CapacityLeaseStatus{Reserved: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: -3}}, Requests: []autonodev1alpha1.CapacityRequest{
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: -1}}, Count: 1}, {Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1}}, Count: -1},
			}}, division.Report{Reserved: division.Amounts{}, Used: division.Amounts{}},
		},
		"When amounts are huge, they should be bounded": {
			autonodev1alpha1.CapacityLeaseStatus{Reserved: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1 << 62}}, Requests: []autonodev1alpha1.CapacityRequest{
				{Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1 << 62}}, Count: 1 << 62}, {Charges: []autonodev1alpha1.PoolAmount{{Pool: pool.Name, Amount: 1}}, Count: 1},
			}}, division.Report{Reserved: division.Amounts{pool.Name: autonodev1alpha1.MaxAmount}, Used: division.Amounts{}, Requests: []division.Request{
				{Charges: division.Amounts{pool.Name: autonodev1alpha1.MaxCharge}, Count: autonodev1alpha1.MaxRequestedLaunches},
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
	sized := capacity.Priced{Machine: capacity.Machine{Offering: offering, VCPUs: 2000, Memory: 8 << 30, GPUs: 1}, Price: 0.04, OnDemand: 0.096}
	without := sized
	without.OnDemand = 0
	none := func(m capacity.Machine) capacity.Priced { m.Offering = offering; return capacity.Priced{Machine: m} }
	for _, tc := range []struct {
		name, size string
		want       capacity.Priced
	}{
		{"When Karpenter writes a size, the operator should read it", annotation.FormatMachineSize(sized), sized},
		{"When Karpenter has no price on demand, none should be read", annotation.FormatMachineSize(without), without},
		{"When a Machine has no size, it should be a machine", "", none(capacity.Machine{})},
		{"When a part is malformed, the others should count", "vcpus=many,memory=-1,gpus=1,price=NaN,onDemand=-1,x", none(capacity.Machine{GPUs: 1})},
		{"When a price is that of no machine, it should not be known", "price=1e300,onDemand=1e7", none(capacity.Machine{})},
		{"When a part is huge, it should be bounded", fmt.Sprintf("vcpus=%d", int64(1)<<62), none(capacity.Machine{VCPUs: autonodev1alpha1.MaxCharge})},
		{"When it is long, it should not be read", "gpus=1," + strings.Repeat("x", 256), none(capacity.Machine{})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := annotation.MachineOf(&metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: tc.size}})
			NewWithT(t).Expect(m).To(Equal(tc.want))
		})
	}
	t.Run("When a Machine is on demand, its list price should be that on demand", func(t *testing.T) {
		size := annotation.FormatMachineSize(capacity.Priced{Machine: capacity.Machine{Offering: capacity.Offering{CapacityType: "on-demand"}}, Price: 0.096, OnDemand: 0.2})
		m := annotation.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: size}})
		NewWithT(t).Expect(m).To(And(HaveField("Price", 0.096), HaveField("OnDemand", 0.096)))
	})
	for source, want := range map[string]string{
		"InstanceTypeCatalog.karpenter.cluster.x-k8s.io/general/m5.large":        "general",
		"InstanceTypeCatalog.karpenter.cluster.x-k8s.io/shared:general/m5.large": "general",
		"KwokMachineTemplate.infrastructure.cluster.x-k8s.io/general":            "",
		"InstanceTypeCatalog.example.com/general/m5.large":                       "",
		"": "",
	} {
		t.Run(fmt.Sprintf("When a Machine's source is %q, its catalog should be %q", source, want), func(t *testing.T) {
			m := annotation.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TemplateSourceAnnotation: source}})
			NewWithT(t).Expect(m.Catalog).To(Equal(want))
		})
	}
	t.Run("When a Machine's zone or catalog is longer than a name may be, it should have none", func(t *testing.T) {
		long := strings.Repeat("x", 300)
		m := annotation.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.OfferingZoneAnnotation: long, v1alpha1.TemplateSourceAnnotation: "InstanceTypeCatalog." + v1alpha1.Group + "/" + long + "/m5.large",
		}})
		NewWithT(t).Expect(m.Offering).To(Equal(capacity.Offering{CapacityType: "on-demand"}))
	})
	t.Run("When a Machine was launched without a zone, it should be in its offering's", func(t *testing.T) {
		m := annotation.MachineOf(&metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.OfferingZoneAnnotation: "b"}})
		NewWithT(t).Expect(m.Offering).To(Equal(capacity.Offering{Zone: "b", CapacityType: "on-demand"}))
	})
}

func TestCommittedTo(t *testing.T) {
	t.Run("When a commitment is malformed, it should be left out", func(t *testing.T) {
		g, l := NewWithT(t), lease()
		spend := func(name, spend string) autonodev1alpha1.LeasedCommitment {
			return autonodev1alpha1.LeasedCommitment{CapacityCommitment: autonodev1alpha1.CapacityCommitment{
				Name: name, Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: spend, DiscountPercent: ptr.To(scalar.Number(25)),
			}}
		}
		l.Spec.Commitments = []autonodev1alpha1.LeasedCommitment{spend("plan", "1.5"), spend("negative", "-1"), spend("hexadecimal", "0x10p0"), spend("rates", "1")}
		l.Spec.Commitments[3].PackedRates = []byte("m5.large=1")
		g.Expect(conversion.CommittedTo(l).Commitments).To(ConsistOf(division.Commitment{Name: "plan", Kind: division.SavingsPlan, HourlySpend: 1.5, Discount: 0.25}))
	})
	t.Run("When an operator writes commitments and machines, Karpenter should read the same", func(t *testing.T) {
		g, l := NewWithT(t), lease()
		count := int32(3)
		spec := &autonodev1alpha1.CapacityAccountSpec{Commitments: []autonodev1alpha1.CapacityCommitment{
			{Name: "csp", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "6", Rates: map[string]string{"c5.9xlarge": "2", "c5.24xlarge": "8"}, Ends: ptr.To(scalar.NewTime(time.Now().Add(time.Hour)))},
			{Name: "ec2sp", Kind: autonodev1alpha1.CommitmentSavingsPlan, Scope: autonodev1alpha1.ScopeEC2Instance, HourlySpend: "3", DiscountPercent: ptr.To(scalar.Number(40)), Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{"m5.*"}}},
			{Name: "ri", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.xlarge", Instances: &count, Price: "0.1"},
			{Name: "zonal", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.xlarge", Instances: &count, Price: "0.1", Selector: autonodev1alpha1.CapacitySelector{Zones: []string{"a"}}},
			{Name: "azure", Kind: autonodev1alpha1.CommitmentAzureReservation, InstanceType: "Standard_D4s_v5", Instances: &count, Price: "1", Ratios: map[string]string{"Standard_D4s_v5": "2", "Standard_D8s_v5": "4"}},
			{Name: "cud", Kind: autonodev1alpha1.CommitmentCommittedUse, CPU: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("40"), Price: "0.02", ListPrice: "0.03"}, Memory: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("160Gi"), Price: "0.002", ListPrice: "0.004"}},
		}}
		commitments, unusable := conversion.CommitmentsAt(spec, nil, time.Now())
		g.Expect(unusable).To(BeEmpty())
		all := division.NewCommitments(commitments)
		add := func(count int64, idle bool, price float64, o capacity.Offering) {
			o.InstanceType = "m5.large"
			m := capacity.Priced{Machine: capacity.Machine{Offering: o, VCPUs: 2000, Memory: 8 << 30}, Price: price}
			all.Add(division.Group{Priced: m, Count: count, Idle: idle})
		}
		add(4, false, 0.1, capacity.Offering{Zone: "b", CapacityType: "on-demand", Catalog: "aws"})
		add(2, true, 0.1, capacity.Offering{Zone: "a", CapacityType: "reserved"})
		add(2, false, 0.03, capacity.Offering{Zone: "a", CapacityType: "spot"})
		for i := range commitments {
			l.Spec.Commitments = append(l.Spec.Commitments, conversion.Leased(&spec.Commitments[i], &commitments[i]))
		}
		l.Spec.Machines = conversion.LeasedMachines(all)
		read := conversion.CommittedTo(l)
		g.Expect(read.Commitments).To(Equal(commitments))
		conversion.SetOthers(&l.Spec.Commitments[2], division.Instances, 2.5)
		conversion.SetOthers(&l.Spec.Commitments[5], division.GiBs, 60)
		shared := conversion.CommittedTo(l).Commitments
		g.Expect(shared[2].Instances).To(Equal(0.5), "what others may use isn't this cluster's")
		g.Expect(shared[5].CPU.Amount).To(Equal(40.0))
		g.Expect(shared[5].Memory.Amount).To(Equal(100.0))
		g.Expect(read.Machines).To(Equal(all.Groups[:2]), "spot machines aren't covered")
	})
	t.Run("When a Compute plan has a rate for each type of a region, a lease should stay small", func(t *testing.T) {
		rates := map[string]float64{}
		for family := range 170 {
			for size, factor := range map[string]int{"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "8xlarge": 16, "12xlarge": 24, "16xlarge": 32, "24xlarge": 48} {
				rates[fmt.Sprintf("m%dgn.%s", family, size)] = float64(factor) * (0.05 + float64(family*37%170)/1000)
			}
		}
		l := conversion.Leased(&autonodev1alpha1.CapacityCommitment{}, &division.Commitment{Rates: rates})
		NewWithT(t).Expect(len(l.PackedRates)).To(BeNumerically("<", 16<<10))
		t.Logf("%d rates take %d bytes", len(rates), len(l.PackedRates))
	})
}

func TestCommitmentsAt(t *testing.T) {
	count := int32(3)
	quantity := func(text string) *scalar.Quantity { q := scalar.Text(text); return &q }
	for _, tc := range []struct {
		name       string
		commitment autonodev1alpha1.CapacityCommitment
		// want is what the commitment is, or field what of it can't be read.
		want  *division.Commitment
		field string
	}{
		{
			"When a plan has a percentage, it should have its spend and its discount",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "12.50", DiscountPercent: quantity("27.5")},
			&division.Commitment{Kind: division.SavingsPlan, HourlySpend: 12.5, Discount: 0.275}, "",
		},
		{
			"When a plan has rates of its own and those of a file, it should have its own first",
			autonodev1alpha1.CapacityCommitment{
				Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "6", Scope: autonodev1alpha1.ScopeEC2Instance, Rates: map[string]string{"c5.large": "2"},
				RatesFrom: &autonodev1alpha1.CapacityRatesSource{},
			},
			&division.Commitment{Kind: division.SavingsPlan, EC2Instance: true, HourlySpend: 6, Rates: map[string]float64{"c5.large": 2, "c5.xlarge": 4}}, "",
		},
		{
			"When a rate is none, it should say so and leave that type out",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "6", Rates: map[string]string{"c5.large": "0", "c5.xlarge": "0x10p0", "m5.large": "1"}, RatesFrom: &autonodev1alpha1.CapacityRatesSource{}},
			&division.Commitment{Kind: division.SavingsPlan, HourlySpend: 6, Rates: map[string]float64{"m5.large": 1}}, "rates",
		},
		{
			"When an hour is paid upfront, it should cost nothing",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: &count, Price: "0"},
			&division.Commitment{Kind: division.ReservedInstance, InstanceType: "m5.large", SizeFlexible: true, Instances: 3, Price: new(float64)}, "",
		},
		{
			"When the cloud's list lacks a size, it should say so",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentAzureReservation, InstanceType: "Standard_HB120rs_v3", Instances: &count, Price: "1"}, nil, "instanceType",
		},
		{
			"When a list price is none, it should say so and cover nothing",
			autonodev1alpha1.CapacityCommitment{
				Kind: autonodev1alpha1.CommitmentCommittedUse, CPU: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("40"), Price: "0.02", ListPrice: "0"},
			},
			&division.Commitment{Kind: division.CommittedUse, CPU: division.CommittedAmount{Amount: 40, Price: 0.02}}, "cpu.listPrice",
		},
		{
			"When an instance is reserved, it should be flexible",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: &count, Price: "0.06"},
			&division.Commitment{Kind: division.ReservedInstance, InstanceType: "m5.large", SizeFlexible: true, Instances: 3, Price: ptr.To(0.06)}, "",
		},
		{
			"When ratios lack the own size, it should say so",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentAzureReservation, InstanceType: "Standard_D4s_v5", Instances: &count, Ratios: map[string]string{"Standard_D8s_v5": "4"}}, nil, "ratios",
		},
		{
			"When a ratio is zero, it should say so",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentAzureReservation, InstanceType: "a", Instances: &count, Ratios: map[string]string{"a": "0"}}, nil, "ratios",
		},
		{
			"When vCPUs and memory are committed, it should have both",
			autonodev1alpha1.CapacityCommitment{
				Kind: autonodev1alpha1.CommitmentCommittedUse, CPU: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("40"), Price: "0.02", ListPrice: "0.03"},
				Memory: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("160Gi"), Price: "0.002", ListPrice: "0.004"},
			},
			&division.Commitment{
				Kind: division.CommittedUse, CPU: division.CommittedAmount{Amount: 40, Price: 0.02, List: 0.03}, Memory: division.CommittedAmount{Amount: 160, Price: 0.002, List: 0.004},
			}, "",
		},
		{
			"When a committed amount is malformed, it should say so",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentCommittedUse, Memory: &autonodev1alpha1.CapacityCommittedAmount{Amount: scalar.Text("much"), Price: "1", ListPrice: "1"}}, nil, "memory.amount",
		},
		{
			"When a price is malformed, it should say so",
			autonodev1alpha1.CapacityCommitment{Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: &count, Price: "-1"}, nil, "price",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			tc.commitment.Name = "c"
			spec := &autonodev1alpha1.CapacityAccountSpec{Commitments: []autonodev1alpha1.CapacityCommitment{tc.commitment}}
			commitments, unusable := conversion.CommitmentsAt(spec, conversion.Rates{"c": {"c5.large": 1, "c5.xlarge": 4}}, time.Now())
			if tc.want == nil {
				g.Expect(commitments).To(BeEmpty())
				g.Expect(unusable).To(ConsistOf(HaveField("Field", "commitments[c]."+tc.field)))
				return
			}
			tc.want.Name = "c"
			if tc.field == "" {
				g.Expect(unusable).To(BeEmpty())
			} else {
				g.Expect(unusable).To(HaveEach(HaveField("Field", "commitments[c]."+tc.field)))
				g.Expect(unusable).NotTo(BeEmpty())
			}
			g.Expect(commitments).To(ConsistOf(*tc.want))
		})
	}
}

func TestRatesFrom(t *testing.T) {
	zipped := func(text string) []byte {
		var to bytes.Buffer
		writer := gzip.NewWriter(&to)
		_, err := writer.Write([]byte(text))
		NewWithT(t).Expect(errors.Join(err, writer.Close())).To(Succeed())
		return to.Bytes()
	}
	const table = "instanceType,rate\nm5.large,0.07\n"
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rates"}, Data: map[string]string{"text": table, "none": "type,price\n"},
		BinaryData: map[string][]byte{"gzip": zipped(table), "other": {0xff, 0xfe}, "cut": zipped(table)[:20], "large": zipped(strings.Repeat(" ", 17<<20))},
	}
	for key, want := range map[string]string{
		"text": "", "gzip": "", "none": "none of ConfigMap default/rates: line 1", "other": "neither text nor gzip", "cut": "unpacking", "large": "larger than 16 MiB",
		"absent": "ConfigMap default/rates has no key absent",
	} {
		t.Run("When rates are in the key "+key+" of a ConfigMap, it should read them or say why not", func(t *testing.T) {
			g := NewWithT(t)
			source := &autonodev1alpha1.CapacityRatesSource{Namespace: "default", Name: "rates", Key: key}
			rates, err := conversion.RatesFrom(t.Context(), fake.NewClientBuilder().WithObjects(object).Build(), source)
			if want != "" {
				g.Expect(err).To(MatchError(ContainSubstring(want)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rates).To(Equal(map[string]float64{"m5.large": 0.07}))
		})
	}
}

func TestParseRates(t *testing.T) {
	const aws = `{"searchResults": [
		{"rate": "0.0624", "unit": "Hrs", "usageType": "BoxUsage:m5.large", "properties": [{"name": "instanceType", "value": "m5.large"}, {"name": "productDescription", "value": "Linux/UNIX"}, {"name": "tenancy", "value": "shared"}]},
		{"rate": "0.0624", "unit": "Hrs", "usageType": "UnusedBox:m5.large", "properties": [{"name": "instanceType", "value": "m5.large"}, {"name": "productDescription", "value": "Linux/UNIX"}, {"name": "tenancy", "value": "shared"}]},
		{"rate": "0.1544", "unit": "Hrs", "usageType": "BoxUsage:m5.large", "properties": [{"name": "instanceType", "value": "m5.large"}, {"name": "productDescription", "value": "Windows"}, {"name": "tenancy", "value": "shared"}]}]}`
	for _, tc := range []struct {
		name, text string
		want       map[string]float64
		err        string
	}{
		{"When it is AWS's, it should have the rates of shared Linux machines", aws, map[string]float64{"m5.large": 0.0624}, ""},
		{"When it is a table, it should have its rows", "instanceType,rate\nm5.large, 0.07\nm5.8xlarge,1.12\n", map[string]float64{"m5.large": 0.07, "m5.8xlarge": 1.12}, ""},
		{"When it has two rates of a type, it should refuse them", "instanceType,rate\nm5.large,0.07\nm5.large,0.08\n", nil, "has the rates 0.07 and 0.08"},
		{"When a rate is none, it should name its line", "instanceType,rate\nm5.large,free\n", nil, "line 2: rate \"free\""},
		{"When the columns are others, it should name its own", "type,price\nm5.large,0.07\n", nil, "the columns are instanceType and rate"},
		{"When it is another file, it should say so", "{]", nil, "not the output of aws savingsplans"},
		{"When it is empty, it should say so", "", nil, "there is no rate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			rates, err := conversion.ParseRates(tc.text)
			if tc.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tc.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rates).To(Equal(tc.want))
		})
	}
}
