// SPDX-License-Identifier: Apache-2.0

// Package metrics serves gauges of Machines, their prices and unavailable offerings. It computes them from memory at
// scrape time, so no series is stale.
package metrics

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, "clusterapi", name), help, labels, nil)
}

var (
	machines = desc("machines",
		"Machines of NodeClaims. Labeled by nodepool and phase, as Cluster API has it.",
		metrics.NodePoolLabel, "phase")
	price = desc("fleet_price_dollars_per_hour",
		"What all machines of NodeClaims together cost, in US dollars an hour, by the prices at which they were chosen. Labeled by nodepool "+
			"and capacity type.",
		metrics.NodePoolLabel, metrics.CapacityTypeLabel)
	unhealthy = desc("machines_unhealthy",
		"Machines that a MachineHealthCheck marks for replacement. Labeled by nodepool.",
		metrics.NodePoolLabel)
	hanging = desc("machines_deletion_hanging",
		"Machines whose deletion the infrastructure doesn't get done with, after two minutes without a provider ID and five with one. Labeled "+
			"by nodepool.",
		metrics.NodePoolLabel)
	deferred = desc("machine_repairs_held",
		"Unhealthy machines that aren't replaced because too many of their NodePool are unhealthy at once. Labeled by nodepool.",
		metrics.NodePoolLabel)
	unavailable = desc("offering_unavailable",
		"1 for an offering that failed lately and isn't tried now. Labeled by instance type, zone, capacity type and reason.",
		"instance_type", metrics.ZoneLabel, metrics.CapacityTypeLabel, metrics.ReasonLabel)
	vacancies = desc("vacancies",
		"Nodes that were terminated before their replacements were launched, and that no initialized node replaces yet. Labeled by nodepool.",
		metrics.NodePoolLabel)
	retry = desc("offering_retry_timestamp_seconds",
		"When an unavailable offering is tried again, in seconds since the epoch. Labeled by instance type, zone and capacity type.",
		"instance_type", metrics.ZoneLabel, metrics.CapacityTypeLabel)
)

// Config of the collector.
type Config struct {
	Machines    *machine.Provider
	Unavailable *offering.Unavailable
	// Rejections are offerings that single NodePools don't get.
	Rejections *offering.Rejections
	// Vacancies of terminated nodes.
	Vacancies *vacancy.Keeper
	// Registry that serves the metrics; nil for Karpenter's.
	Registry prometheus.Registerer
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Collector is a prometheus.Collector.
type Collector struct{ Config }

var (
	_ prometheus.Collector = (*Collector)(nil)
	_ manager.Runnable     = (*Collector)(nil)
)

// New returns a collector. Start registers it.
func New(config Config) *Collector {
	if config.Registry == nil {
		config.Registry = crmetrics.Registry
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Collector{config}
}

// Register adds the collector to the manager.
func (c *Collector) Register(_ context.Context, m manager.Manager) error { return m.Add(c) }

// Start serves the metrics until ctx ends. Only the active replica runs it: two replicas would count every machine
// twice.
func (c *Collector) Start(ctx context.Context) error {
	if err := c.Registry.Register(c); err != nil {
		return err
	}
	defer c.Registry.Unregister(c)
	<-ctx.Done()
	return nil
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{machines, price, unhealthy, hanging, deferred, vacancies, unavailable, retry} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(samples chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		samples <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	known := map[offering.Key]bool{}
	for _, entry := range append(c.Unavailable.Entries(), c.Rejections.Entries()...) {
		entry.Reservation = "" // as for NodePools, a series has no label for it
		if known[entry.Key] {
			continue
		}
		known[entry.Key] = true
		gauge(unavailable, 1, entry.InstanceType, entry.Zone, entry.CapacityType, entry.Reason)
		gauge(retry, float64(entry.Until.Unix()), entry.InstanceType, entry.Zone, entry.CapacityType)
	}
	vacant := map[string]int{}
	for _, v := range c.Vacancies.All() {
		vacant[v.NodePool]++
	}
	for nodePool, n := range vacant {
		gauge(vacancies, float64(n), nodePool)
	}
	list, err := c.Machines.List(context.Background())
	if err != nil {
		// Log only: an error would fail the whole scrape.
		log.Log.V(1).Info("counting machines", "error", err.Error())
		return
	}
	counts := count(list, c.Clock.Now())
	for key, n := range counts.phases {
		gauge(machines, float64(n), key.nodePool, key.value)
	}
	for key, dollars := range counts.prices {
		gauge(price, dollars, key.nodePool, key.value)
	}
	for nodePool, pool := range counts.pools {
		gauge(unhealthy, float64(pool.unhealthy), nodePool)
		gauge(hanging, float64(pool.hanging), nodePool)
		waiting := 0
		if pool.unhealthy > machine.Repairable(pool.all) {
			waiting = pool.unhealthy
		}
		gauge(deferred, float64(waiting), nodePool)
	}
}

// series is a NodePool with a phase or capacity type.
type series struct{ nodePool, value string }

type pool struct{ all, unhealthy, hanging int }

type counts struct {
	phases map[series]int
	prices map[series]float64
	pools  map[string]pool
}

func count(list []clusterv1.Machine, now time.Time) counts {
	result := counts{phases: map[series]int{}, prices: map[series]float64{}, pools: map[string]pool{}}
	for i := range list {
		m := &list[i]
		nodePool := m.Labels[karpv1.NodePoolLabelKey]
		result.phases[series{nodePool, string(m.Status.GetTypedPhase())}]++
		dollars, err := strconv.ParseFloat(m.Annotations[v1alpha1.PriceAnnotation], 64)
		if err == nil && dollars >= 0 && !math.IsInf(dollars, 0) {
			result.prices[series{nodePool, m.Labels[karpv1.CapacityTypeLabelKey]}] += dollars
		}
		p := result.pools[nodePool]
		p.all++
		if machine.Unhealthy(m) {
			p.unhealthy++
		}
		if clusterstatus.Hangs(m, now) {
			p.hanging++
		}
		result.pools[nodePool] = p
	}
	return result
}
