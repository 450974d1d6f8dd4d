// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"sync"
	"time"

	opmetrics "github.com/awslabs/operatorpkg/metrics"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// Stages of a launch, values of the label stage.
const (
	stageProvisioned = "provisioned"
	stageReady       = "ready"
)

// launchLabels are the labels of launchDuration.
var launchLabels = []opmetrics.Label{
	{Name: "stage", Help: "The stage that the machine has reached.", Values: []opmetrics.Value{
		{Name: stageProvisioned, Help: "The Machine has a provider ID."},
		{Name: stageReady, Help: "The node is initialized."},
	}},
	{Name: "instance_type", Help: "The instance type of the machine."},
	{Name: "template_source", Help: "The template source that the machine was made from, as the Machine's annotation names it."},
}

var launchDuration = opmetrics.NewPrometheusHistogram(crmetrics.Registry, prometheus.HistogramOpts{
	Namespace: metrics.Namespace,
	Subsystem: "clusterapi",
	Name:      "machine_launch_duration_seconds",
	Help: "Time from the creation of a Machine until it has reached a stage: provisioned (it has a provider ID) or " +
		"ready (its node is initialized). Labeled by stage, instance type, " +
		"and the template source that it was made from, as the Machine's annotation names it.",
	Buckets: []float64{1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600},
}, launchLabels, opmetrics.Beta)

// maxLaunch is the longest launch time that is read from the conditions of a machine which was launched before this process started. One
// whose infrastructure has become ready again looks like a longer one.
const maxLaunch = time.Hour

// latency measures launch times, once per machine, and records that the offering works. Its metric skips stages reached
// before this process started.
type latency struct {
	Config
	since time.Time
	times *launchTimes

	mu sync.Mutex
	// reached holds progress by NodeClaim UID.
	reached map[types.UID]progress
}

type progress struct{ provisioned, ready bool }

func newLatency(config Config, times *launchTimes) *latency {
	return &latency{Config: config, times: times, since: config.Clock.Now().Truncate(time.Second), reached: map[types.UID]progress{}}
}

func (l *latency) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	initialized := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized)
	before, seen := l.reached[nodeClaim.UID]
	now := progress{provisioned: before.provisioned || l.provisioned(ctx, m), ready: initialized.IsTrue()}
	if now == before && seen {
		return outcome{}, nil
	}
	l.reached[nodeClaim.UID] = now
	if now.provisioned && !before.provisioned {
		l.learn(m, seen)
	}
	if !seen && m.CreationTimestamp.Time.Before(l.since) {
		return outcome{}, nil
	}
	observe := func(stage string, at time.Time) {
		launchDuration.Observe(max(0, at.Sub(m.CreationTimestamp.Time).Seconds()), map[string]string{
			"stage": stage, "instance_type": m.Labels[corev1.LabelInstanceTypeStable],
			"template_source": m.Annotations[v1alpha1.TemplateSourceAnnotation],
		})
	}
	if now.provisioned && !before.provisioned {
		observe(stageProvisioned, l.Clock.Now())
	}
	if now.ready && !before.ready {
		observe(stageReady, initialized.LastTransitionTime.Time)
		l.Unavailable.Works(offeringOf(m), m.CreationTimestamp.Time)
	}
	return outcome{}, nil
}

// learn records how long a machine's launch took: until its infrastructure was ready or, if the Machine doesn't say so yet, until now.
func (l *latency) learn(m *clusterv1.Machine, live bool) {
	created := m.CreationTimestamp.Time
	live = live || !created.Before(l.since)
	ready := machine.Condition(m, clusterv1.MachineInfrastructureReadyCondition)
	took := l.Clock.Since(created)
	if ready.Status == metav1.ConditionTrue {
		took = min(took, ready.LastTransitionTime.Sub(created))
	} else if !live {
		return
	}
	if live || took <= maxLaunch {
		l.times.observe(m.Annotations[v1alpha1.TemplateSourceAnnotation], created, took)
	}
}

func (l *latency) forget(nodeClaim *karpv1.NodeClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reached, nodeClaim.UID)
}
