// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	karpentermetrics "github.com/autonode-io/autonode/karpenter/controllers/metrics"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

// made creates a Machine that Cluster API then reports something about, and waits until the cache has it.
func made(t *testing.T, s *environment.Environment, name, nodePool, price string, say func(*clusterv1.Machine)) {
	t.Helper()
	g := NewWithT(t)
	plan := s.Plan(s.NodeClaim(t.Context(), name))
	plan.NodeLabels[karpv1.NodePoolLabelKey] = nodePool
	plan.NodeClaim.Labels[karpv1.NodePoolLabelKey] = nodePool
	if price != "" {
		plan.Annotations[v1alpha1.PriceAnnotation] = price
	}
	m, err := s.Machines(nil).Create(t.Context(), plan)
	g.Expect(err).NotTo(HaveOccurred())
	say(m)
	g.Expect(s.Admin.Status().Update(t.Context(), m)).To(Succeed())
	s.Settle(s.Management, m)
}

func phase(phase clusterv1.MachinePhase) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) { m.Status.SetTypedPhase(phase) }
}

func TestMetrics(t *testing.T) {
	s := environment.New(t)
	clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	unavailable := offering.NewUnavailable(clk)
	collector := karpentermetrics.New(karpentermetrics.Config{Machines: s.Machines(nil), Unavailable: unavailable, Rejections: offering.NewRejections(clock.RealClock{}), Vacancies: vacancy.New(vacancy.Config{}), Registry: prometheus.NewRegistry()})
	ill := func(m *clusterv1.Machine) {
		m.Status.SetTypedPhase(clusterv1.MachinePhaseRunning)
		m.Status.Conditions = []metav1.Condition{
			{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: metav1.ConditionFalse, Reason: "NodeUnhealthy", LastTransitionTime: metav1.Now()},
			{Type: clusterv1.MachineOwnerRemediatedCondition, Status: metav1.ConditionFalse, Reason: "WaitingForRemediation", LastTransitionTime: metav1.Now()},
		}
	}
	made(t, s, "a", "general", "0.25", phase(clusterv1.MachinePhaseRunning))
	made(t, s, "b", "general", "0.5", phase(clusterv1.MachinePhaseProvisioning))
	made(t, s, "c", "general", "cheap", ill)
	made(t, s, "d", "batch", "1", ill)
	made(t, s, "e", "batch", "", ill)
	unavailable.Mark(offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: "spot"}, "InsufficientCapacity")

	for name, tc := range map[string]struct{ metric, want string }{
		"When there are machines, it should count them by phase": {"karpenter_clusterapi_machines", `
			# HELP karpenter_clusterapi_machines Machines of NodeClaims. Labeled by nodepool and phase, as Cluster API has it.
			# TYPE karpenter_clusterapi_machines gauge
			karpenter_clusterapi_machines{nodepool="batch",phase="Running"} 2
			karpenter_clusterapi_machines{nodepool="general",phase="Provisioning"} 1
			karpenter_clusterapi_machines{nodepool="general",phase="Running"} 2
			`},
		"When machines have prices, it should add them up, and leave out what is none": {"karpenter_clusterapi_fleet_price_dollars_per_hour", `
			# HELP karpenter_clusterapi_fleet_price_dollars_per_hour What all machines of NodeClaims together cost, in US dollars an hour, by the prices at which they were chosen. Labeled by nodepool and capacity type.
			# TYPE karpenter_clusterapi_fleet_price_dollars_per_hour gauge
			karpenter_clusterapi_fleet_price_dollars_per_hour{capacity_type="on-demand",nodepool="batch"} 1
			karpenter_clusterapi_fleet_price_dollars_per_hour{capacity_type="on-demand",nodepool="general"} 0.75
			`},
		"When machines are unhealthy, it should count them": {"karpenter_clusterapi_machines_unhealthy", `
			# HELP karpenter_clusterapi_machines_unhealthy Machines that a MachineHealthCheck marks for replacement. Labeled by nodepool.
			# TYPE karpenter_clusterapi_machines_unhealthy gauge
			karpenter_clusterapi_machines_unhealthy{nodepool="batch"} 2
			karpenter_clusterapi_machines_unhealthy{nodepool="general"} 1
			`},
		"When none hangs in deletion, it should say so": {"karpenter_clusterapi_machines_deletion_hanging", `
			# HELP karpenter_clusterapi_machines_deletion_hanging Machines whose deletion the infrastructure doesn't get done with, after two minutes without a provider ID and five with one. Labeled by nodepool.
			# TYPE karpenter_clusterapi_machines_deletion_hanging gauge
			karpenter_clusterapi_machines_deletion_hanging{nodepool="batch"} 0
			karpenter_clusterapi_machines_deletion_hanging{nodepool="general"} 0
			`},
		"When too many of a NodePool are, it should say that none is replaced": {"karpenter_clusterapi_machine_repairs_held", `
			# HELP karpenter_clusterapi_machine_repairs_held Unhealthy machines that aren't replaced because too many of their NodePool are unhealthy at once. Labeled by nodepool.
			# TYPE karpenter_clusterapi_machine_repairs_held gauge
			karpenter_clusterapi_machine_repairs_held{nodepool="batch"} 2
			karpenter_clusterapi_machine_repairs_held{nodepool="general"} 0
			`},
		"When an offering is unavailable, it should say why": {"karpenter_clusterapi_offering_unavailable", `
			# HELP karpenter_clusterapi_offering_unavailable 1 for an offering that failed lately and isn't tried now. Labeled by instance type, zone, capacity type and reason.
			# TYPE karpenter_clusterapi_offering_unavailable gauge
			karpenter_clusterapi_offering_unavailable{capacity_type="spot",instance_type="c4-large",reason="InsufficientCapacity",zone="a"} 1
			`},
		"When an offering is unavailable, it should say until when": {"karpenter_clusterapi_offering_retry_timestamp_seconds", fmt.Sprintf(`
			# HELP karpenter_clusterapi_offering_retry_timestamp_seconds When an unavailable offering is tried again, in seconds since the epoch. Labeled by instance type, zone and capacity type.
			# TYPE karpenter_clusterapi_offering_retry_timestamp_seconds gauge
			karpenter_clusterapi_offering_retry_timestamp_seconds{capacity_type="spot",instance_type="c4-large",zone="a"} %d
			`, 1_800_000_000+int(offering.BaseTTL.Seconds()))},
	} {
		t.Run(name, func(t *testing.T) {
			if err := testutil.CollectAndCompare(collector, strings.NewReader(tc.want), tc.metric); err != nil {
				t.Error(err)
			}
		})
	}

	t.Run("When an offering is available again, it should say nothing of it", func(t *testing.T) {
		clk.Step(offering.BaseTTL)
		NewWithT(t).Expect(testutil.CollectAndCount(collector, "karpenter_clusterapi_offering_unavailable")).To(BeZero())
	})

	t.Run("When a Machine hangs in deletion, it should count it", func(t *testing.T) {
		g := NewWithT(t)
		var m clusterv1.Machine
		made(t, s, "f", "batch", "", func(machine *clusterv1.Machine) { m = *machine })
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(&m), &m)).To(Succeed())
		m.Finalizers = append(m.Finalizers, "example.com/held")
		g.Expect(s.Admin.Update(t.Context(), &m)).To(Succeed())
		g.Expect(s.Admin.Delete(t.Context(), &m)).To(Succeed())
		late := karpentermetrics.New(karpentermetrics.Config{
			Machines: s.Machines(nil), Unavailable: unavailable, Rejections: offering.NewRejections(clock.RealClock{}), Vacancies: vacancy.New(vacancy.Config{}), Registry: prometheus.NewRegistry(),
			Clock: clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour)),
		})
		g.Eventually(func() error {
			return testutil.CollectAndCompare(late, strings.NewReader(`
			# HELP karpenter_clusterapi_machines_deletion_hanging Machines whose deletion the infrastructure doesn't get done with, after two minutes without a provider ID and five with one. Labeled by nodepool.
			# TYPE karpenter_clusterapi_machines_deletion_hanging gauge
			karpenter_clusterapi_machines_deletion_hanging{nodepool="batch"} 1
			karpenter_clusterapi_machines_deletion_hanging{nodepool="general"} 0
			`), "karpenter_clusterapi_machines_deletion_hanging")
		}).Should(Succeed())
		m.Finalizers = nil
		g.Expect(s.Admin.Patch(t.Context(), &m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	})

	t.Run("When its names and help texts are linted, it should follow Prometheus' habits", func(t *testing.T) {
		problems, err := testutil.CollectAndLint(collector)
		NewWithT(t).Expect(problems, err).To(BeEmpty())
	})
}

func TestDocs(t *testing.T) {
	t.Run("When a metric is served, docs/reference/metrics.md should describe it", func(t *testing.T) {
		g := NewWithT(t)
		docs, err := os.ReadFile("../../../docs/reference/metrics.md")
		g.Expect(err).NotTo(HaveOccurred())
		descs := make(chan *prometheus.Desc, 100)
		karpentermetrics.New(karpentermetrics.Config{}).Describe(descs)
		close(descs)
		name := regexp.MustCompile(`fqName: "([^"]+)"`)
		g.Expect(descs).NotTo(BeEmpty())
		for desc := range descs {
			g.Expect(string(docs)).To(ContainSubstring("`" + name.FindStringSubmatch(desc.String())[1] + "`"))
		}
	})
}

func TestStart(t *testing.T) {
	t.Run("When it runs, and no longer, it should be served", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		registry := prometheus.NewRegistry()
		unavailable := offering.NewUnavailable(clocktesting.NewFakeClock(time.Now()))
		unavailable.Mark(offering.Key{InstanceType: "c4-large"}, "QuotaExceeded")
		collector := karpentermetrics.New(karpentermetrics.Config{Machines: s.Machines(nil), Unavailable: unavailable, Rejections: offering.NewRejections(clock.RealClock{}), Vacancies: vacancy.New(vacancy.Config{}), Registry: registry})
		served := func() (int, error) { return testutil.GatherAndCount(registry) }
		g.Expect(served()).To(BeZero())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- collector.Start(ctx) }()
		g.Eventually(served).Should(Equal(2))
		stop()
		g.Eventually(done).Should(Receive(BeNil()))
		g.Expect(served()).To(BeZero())
	})
}
