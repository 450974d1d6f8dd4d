// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/operator/metrics"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// spendingOf is what machines of two clusters cost. Of the m5.large, one of two is covered by half of what a plan commits, at 0.07 for 0.10.
func spendingOf() *cost.Report {
	machines := func(cluster, instanceType, capacityType string, list, onDemand float64, count int64) cost.Machines {
		return cost.Machines{
			Cluster: cluster, NodePool: map[string]string{"clusters/blue": "general", "clusters/green": "batch"}[cluster], Count: count,
			Priced: capacity.Priced{
				Machine: capacity.Machine{Offering: capacity.Offering{InstanceType: instanceType, Zone: "a", CapacityType: capacityType}},
				Price:   list, OnDemand: onDemand,
			},
		}
	}
	return cost.Of([]cost.Machines{
		machines("clusters/blue", "m5.large", "on-demand", 0.10, 0, 1), machines("clusters/blue", "k4", "reserved", 0.01, 0.14, 2),
		machines("clusters/green", "k4", "spot", 0.04, 0.14, 1), machines("clusters/green", "k8", "on-demand", 0, 0, 3),
	}, []division.Commitment{
		{Name: "plan", Kind: division.SavingsPlan, HourlySpend: 0.14, Discount: 0.3, Selector: division.Selector{InstanceTypes: []string{"m5.large"}}},
		{Name: "instances", Kind: division.ReservedInstance, Instances: 4, InstanceType: "p5"},
	}, nil)
}

var now = time.Unix(1_800_000_000, 0)

// served returns the samples of an account's metrics.
func served(t *testing.T, account *autonodev1alpha1.CapacityAccount, costs func(string) *cost.Report) map[string][]string {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(autonodev1alpha1.AddToScheme(scheme)).To(Succeed())
	management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(account).Build()
	return scopetest.Samples(t, metrics.New(metrics.Config{Management: management, Selector: labels.Everything(), Costs: costs}))
}

func uncounted(string) *cost.Report { return nil }

func compare(t *testing.T, got map[string][]string, want map[string]string) {
	t.Helper()
	for name, samples := range want {
		var lines []string
		for line := range strings.Lines(samples) {
			lines = append(lines, strings.TrimSpace(line))
		}
		if diff := cmp.Diff(lines, got["autonode_"+name]); diff != "" {
			t.Errorf("autonode_%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPools(t *testing.T) {
	t.Run("When clusters share an account, it should report each pool, in base units", func(t *testing.T) {
		account := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "production"}, Status: autonodev1alpha1.CapacityAccountStatus{
			Pools: []autonodev1alpha1.CapacityPoolStatus{
				{Name: "quota/all/memory", Limit: "2Gi", Granted: "1Gi", Used: "512Mi"}, {Name: "quota/all/cpu", Limit: "1500m", Granted: "1", Used: "0", Waiting: "2", Lent: "500m", Reclaiming: "250m"},
			},
		}}
		compare(t, served(t, account, uncounted), map[string]string{
			"capacity_pool_limit": `{account="production",pool="quota/all/cpu"} 1.5
					{account="production",pool="quota/all/memory"} 2147483648`,
			"capacity_pool_granted": `{account="production",pool="quota/all/cpu"} 1
					{account="production",pool="quota/all/memory"} 1073741824`,
			"capacity_pool_used": `{account="production",pool="quota/all/cpu"} 0
					{account="production",pool="quota/all/memory"} 536870912`,
			"capacity_pool_lent": `{account="production",pool="quota/all/cpu"} 0.5
					{account="production",pool="quota/all/memory"} 0`,
			"capacity_pool_reclaiming": `{account="production",pool="quota/all/cpu"} 0.25
					{account="production",pool="quota/all/memory"} 0`,
			"capacity_pool_waiting": `{account="production",pool="quota/all/cpu"} 2
					{account="production",pool="quota/all/memory"} 0`,
		})
	})
}

func TestCosts(t *testing.T) {
	account := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "production"}, Spec: autonodev1alpha1.CapacityAccountSpec{
		Reservations: []autonodev1alpha1.CapacityReservation{
			{ID: "cr-1", InstanceType: "k4", Zone: "a", Count: 2, Expires: ptr.To(scalar.NewTime(now.Add(time.Hour)))}, {ID: "cr-2", InstanceType: "k4", Zone: "a"},
		},
	}, Status: autonodev1alpha1.CapacityAccountStatus{Conditions: []metav1.Condition{
		{Type: autonodev1alpha1.EntriesUsable, Status: metav1.ConditionFalse, Reason: autonodev1alpha1.LimitsUnusableReason},
	}}}
	t.Run("When machines of an account cost something, it should report each cluster, and what of commitments is used", func(t *testing.T) {
		g := NewWithT(t)
		got := served(t, account, func(name string) *cost.Report {
			g.Expect(name).To(Equal("production"))
			return spendingOf()
		})
		compare(t, got, map[string]string{
			"cost_on_demand_dollars_per_hour": `{account="production",name="blue",namespace="clusters"} 0.38
				{account="production",name="green",namespace="clusters"} 0.14`,
			"cost_list_dollars_per_hour": `{account="production",name="blue",namespace="clusters"} 0.38
				{account="production",name="green",namespace="clusters"} 0.04`,
			"cost_paid_dollars_per_hour": `{account="production",name="blue",namespace="clusters"} 0.35
				{account="production",name="green",namespace="clusters"} 0.04`,
			"cost_saved_dollars_per_hour": `{account="production",by="commitments",name="blue",namespace="clusters"} 0.03
				{account="production",by="commitments",name="green",namespace="clusters"} 0
				{account="production",by="reservations",name="blue",namespace="clusters"} 0
				{account="production",by="reservations",name="green",namespace="clusters"} 0
				{account="production",by="spot",name="blue",namespace="clusters"} 0
				{account="production",by="spot",name="green",namespace="clusters"} 0.1`,
			"cost_unpriced_machines": `{account="production",name="blue",namespace="clusters"} 0
				{account="production",name="green",namespace="clusters"} 3`,
			"cost_nodepool_paid_dollars_per_hour": `{account="production",name="blue",namespace="clusters",nodepool="general"} 0.35
				{account="production",name="green",namespace="clusters",nodepool="batch"} 0.04`,
			"cost_instance_type_paid_dollars_per_hour": `{account="production",capacity_type="on-demand",instance_type="k8"} 0
				{account="production",capacity_type="on-demand",instance_type="m5.large"} 0.07
				{account="production",capacity_type="reserved",instance_type="k4"} 0.28
				{account="production",capacity_type="spot",instance_type="k4"} 0.04`,
			"capacity_account_condition": `{account="production",reason="LimitsUnusable",status="False",type="EntriesUsable"} 1`,
			"commitment_used_ratio": `{account="production",commitment="instances"} 0
				{account="production",commitment="plan"} 0.5`,
			"commitment_unused_dollars_per_hour":     `{account="production",commitment="plan"} 0.07`,
			"capacity_pool_expiry_timestamp_seconds": `{account="production",pool="reservation/cr-1"} 1800003600`,
		})
	})
	t.Run("When machines weren't counted yet, it should not report zero", func(t *testing.T) {
		got := served(t, account, uncounted)
		NewWithT(t).Expect(got).NotTo(HaveKey("autonode_cost_paid_dollars_per_hour"))
	})
}
