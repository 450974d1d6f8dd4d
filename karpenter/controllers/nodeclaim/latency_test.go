// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// launches returns how many launches were measured up to a stage, and the sum of their seconds; sources leaves only those of these templates.
func launches(g Gomega, stage string, sources ...string) (count uint64, seconds float64) {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != "karpenter_clusterapi_machine_launch_duration_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["stage"] == stage && (len(sources) == 0 || slices.Contains(sources, labels["template_source"])) {
				count += metric.GetHistogram().GetSampleCount()
				seconds += metric.GetHistogram().GetSampleSum()
			}
		}
	}
	return count, seconds
}

func TestLatency(t *testing.T) {
	t.Run("When a machine has a provider ID, and when its node is ready, it should measure each once", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.settled()
		provisionedBefore, secondsBefore := launches(g, "provisioned")
		readyBefore, _ := launches(g, "ready")
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		f.clock.SetTime(f.machine.CreationTimestamp.Add(40 * time.Second))
		f.say(provisioned("cloud://latency"))
		for range 2 {
			_, err = f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
		}
		count, seconds := launches(g, "provisioned")
		g.Expect(count).To(Equal(provisionedBefore + 1))
		g.Expect(seconds - secondsBefore).To(BeNumerically("~", 40, 0.01))

		nodeClaim, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		g.Expect(f.Admin.Status().Update(t.Context(), nodeClaim)).To(Succeed())
		for range 2 {
			_, err = f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
		}
		count, _ = launches(g, "ready")
		g.Expect(count).To(Equal(readyBefore + 1))
	})

	t.Run("When a machine that probes a quota has a provider ID, the quota should be open", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		quota := offering.Quota{QuotaName: offering.QuotaName{Name: "on-demand c4-large"}}
		f.clock.SetTime(f.unavailable.MarkExceeded(onDemand, offering.Exceeded{Quota: quota, Left: -1}).Until)
		g.Expect(f.unavailable.Admit(f.nodeClaim.Name, onDemand, []offering.Quota{quota})).To(BeTrue())
		f.launched()
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.unavailable.Admit("another", onDemand, []offering.Quota{quota})).To(BeFalse())
		f.say(provisioned("cloud://probe"))
		_, err = f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.unavailable.Admit("another", onDemand, []offering.Quota{quota})).To(BeTrue())
	})

	t.Run("When templates are of one instance type, it should distinguish their machines", func(t *testing.T) {
		g := NewWithT(t)
		for source, seconds := range map[string]float64{"TestMachineTemplate/ssd": 20, "TestMachineTemplate/disk": 50} {
			f := newFixture(t)
			f.say(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.TemplateSourceAnnotation] = source })
			f.launched()
			f.clock.SetTime(f.machine.CreationTimestamp.Add(time.Duration(seconds) * time.Second))
			f.say(provisioned("cloud://latency"))
			_, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			count, sum := launches(g, "provisioned", source)
			g.Expect(count).To(BeEquivalentTo(1))
			g.Expect(sum).To(BeNumerically("~", seconds, 0.01))
		}
	})

	t.Run("When a machine was ready before this program began, it should not measure it", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		f.launched()
		f.say(provisioned("cloud://old"))
		f.clock.SetTime(f.machine.CreationTimestamp.Add(time.Minute))
		f.controller = nodeclaim.New(f.config)
		before, _ := launches(g, "ready")
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		after, _ := launches(g, "ready")
		g.Expect(after).To(Equal(before))
	})

	t.Run("When a machine becomes a node, it should forget the failures before it", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.clock.SetTime(f.machine.CreationTimestamp.Add(-time.Minute))
		f.controller = nodeclaim.New(f.config)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)
		}
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		f.launched()
		f.say(provisioned("cloud://works"))
		f.clock.SetTime(f.machine.CreationTimestamp.Add(time.Minute))
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)).To(BeZero())
	})
}
