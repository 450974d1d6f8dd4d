// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// measured returns the metrics of a family that have these labels.
func measured(g Gomega, family string, with map[string]string) (metrics []*dto.Metric) {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, metric := range f.GetMetric() {
			labels := maps.Clone(with)
			maps.DeleteFunc(labels, func(name, value string) bool {
				return slices.ContainsFunc(metric.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name && l.GetValue() == value })
			})
			if len(labels) == 0 {
				metrics = append(metrics, metric)
			}
		}
	}
	return metrics
}

// launches returns how many launches of the fixture's template were measured up to a stage, and the sum of their seconds.
func (f *fixture) launches(stage string) (count uint64, seconds float64) {
	labels := map[string]string{"stage": stage, "template_source": "TestMachineTemplate/" + f.Namespace}
	for _, metric := range measured(f, "karpenter_clusterapi_machine_launch_duration_seconds", labels) {
		count += metric.GetHistogram().GetSampleCount()
		seconds += metric.GetHistogram().GetSampleSum()
	}
	return count, seconds
}

// fromTemplate has the Machine name a template of the fixture's own.
func (f *fixture) fromTemplate(m *clusterv1.Machine) {
	m.Annotations[v1alpha1.TemplateSourceAnnotation] = "TestMachineTemplate/" + f.Namespace
}

func TestLatency(t *testing.T) {
	t.Run("When a machine has a provider ID, and when its node is ready, it should measure each once, for its template", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(f.fromTemplate)
		f.reconcile()
		f.clock.SetTime(f.machine.CreationTimestamp.Add(40 * time.Second))
		f.say(provisioned("cloud://latency"))
		for range 2 {
			f.reconcile()
		}
		count, seconds := f.launches("provisioned")
		f.Expect(count).To(BeEquivalentTo(1))
		f.Expect(seconds).To(BeNumerically("~", 40, 0.01))

		f.update(f.reconcile(), karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		for range 2 {
			f.reconcile()
		}
		count, _ = f.launches("ready")
		f.Expect(count).To(BeEquivalentTo(1))
	})

	t.Run("When a machine was ready before this program began, it should not measure it", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.update(f.nodeClaim, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		f.say(f.fromTemplate)
		f.say(provisioned("cloud://old"))
		f.clock.SetTime(f.machine.CreationTimestamp.Add(time.Minute))
		f.controller = nodeclaim.New(f.config)
		f.reconcile()
		count, _ := f.launches("ready")
		f.Expect(count).To(BeZero())
	})

	t.Run("When a machine becomes a node, it should forget the failures before it", func(t *testing.T) {
		f := newFixture(t)
		f.clock.SetTime(f.machine.CreationTimestamp.Add(-time.Minute))
		f.controller = nodeclaim.New(f.config)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)
		}
		f.launched()
		f.update(f.nodeClaim, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		f.say(provisioned("cloud://works"))
		f.clock.SetTime(f.machine.CreationTimestamp.Add(time.Minute))
		f.reconcile()
		f.Expect(f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)).To(BeZero())
	})
}
