// SPDX-License-Identifier: Apache-2.0

// Package metrics serves metrics of CapacityAccounts.
package metrics

import (
	"cmp"
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/operator/metrics"
)

// Values of the label by.
const (
	BySpot         = "spot"
	ByReservations = "reservations"
	ByCommitments  = "commitments"
)

// accountDesc describes a metric of a CapacityAccount, which its first label names.
func accountDesc(subsystem, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, subsystem, name), help, append([]string{"account"}, labels...), nil)
}

var (
	accountCondition = accountDesc("capacity_account", "condition", "1 for each condition of a CapacityAccount.", "type", "status", "reason")

	poolLimit   = accountDesc("capacity_pool", "limit", "Limit of a pool of a CapacityAccount: machines, virtual CPUs, bytes of memory or GPUs.", "pool")
	poolGranted = accountDesc("capacity_pool", "granted", "What all clusters of a CapacityAccount are granted of a pool, in the unit of its limit.", "pool")
	poolUsed    = accountDesc("capacity_pool", "used", "What the Machines of all clusters of a CapacityAccount take of a pool, in the unit of its limit.", "pool")
	poolWaiting = accountDesc("capacity_pool", "waiting", "What clusters of a CapacityAccount have requested of a pool and don't get now, in the unit of its limit.", "pool")
	poolLent    = accountDesc("capacity_pool", "lent", "What clusters of a CapacityAccount are granted of a pool although it is guaranteed to others, in the unit of its limit.", "pool")
	poolReclaim = accountDesc("capacity_pool", "reclaiming", "What clusters of a CapacityAccount use of a pool and have to return to others, in the unit of its limit.", "pool")
	poolExpiry  = accountDesc("capacity_pool", "expiry_timestamp_seconds", "When a reservation of a CapacityAccount ends, in seconds since the epoch.", "pool")

	costOnDemand = accountDesc("cost", "on_demand_dollars_per_hour",
		"What the Machines of a hosted cluster would cost on demand, in US dollars an hour: without reservations, commitments and spot prices.", "namespace", "name")
	costList = accountDesc("cost", "list_dollars_per_hour",
		"What the Machines of a hosted cluster are billed at without commitments, in US dollars an hour.", "namespace", "name")
	costPaid = accountDesc("cost", "paid_dollars_per_hour",
		"What is paid for the Machines of a hosted cluster, in US dollars an hour. Commitments cover a part at their own price; what is committed and unused isn't included.",
		"namespace", "name")
	costSaved = accountDesc("cost", "saved_dollars_per_hour",
		"What is paid less for the Machines of a hosted cluster than on demand, in US dollars an hour. Labeled by what saves it.", "namespace", "name", "by")
	costUnpriced = accountDesc("cost", "unpriced_machines",
		"Machines of a hosted cluster without a known price, which costs don't include.", "namespace", "name")
	costNodePool = accountDesc("cost", "nodepool_paid_dollars_per_hour",
		"What is paid for the Machines of a NodePool of a hosted cluster, in US dollars an hour.", "namespace", "name", "nodepool")
	costInstanceType = accountDesc("cost", "instance_type_paid_dollars_per_hour",
		"What is paid for the Machines of an instance type of all clusters of a CapacityAccount, in US dollars an hour. Labeled by capacity type.",
		"instance_type", "capacity_type")
	commitmentUsed = accountDesc("commitment", "used_ratio",
		"Used part of a commitment of a CapacityAccount that is in its term, from 0 to 1.", "commitment")
	commitmentUnused = accountDesc("commitment", "unused_dollars_per_hour",
		"What the unused part of a commitment costs, in US dollars an hour.", "commitment")
	reservationUnused = accountDesc("reservation", "unused_dollars_per_hour",
		"What the unused machines of a reservation cost, in US dollars an hour.", "reservation")

	ofAccounts = []*prometheus.Desc{
		accountCondition, poolLimit, poolGranted, poolUsed, poolWaiting, poolLent, poolReclaim, poolExpiry,
		costOnDemand, costList, costPaid, costSaved, costUnpriced, costNodePool, costInstanceType, commitmentUsed, commitmentUnused, reservationUnused,
	}
)

// Config of a Collector.
type Config struct {
	// Management reads CapacityAccounts from the cache.
	Management client.Reader
	// Selector matches the accounts that are reported.
	Selector labels.Selector
	// Costs returns the costs of an account's machines; nil while they aren't known.
	Costs func(account string) *cost.Report
}

// Collector is a prometheus.Collector. It reads the cache at scrape time.
type Collector struct{ Config }

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector.
func New(config Config) *Collector { return &Collector{config} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range ofAccounts {
		descs <- d
	}
}

// Collect implements prometheus.Collector: the pools of all accounts as their status has them, and the costs of their machines.
func (c *Collector) Collect(samples chan<- prometheus.Metric) {
	ctx, accounts := context.Background(), &autonodev1alpha1.CapacityAccountList{}
	if err := c.Management.List(ctx, accounts, client.UnsafeDisableDeepCopy); err != nil {
		log.Log.V(1).Info("counting capacity accounts", "error", err.Error())
		return
	}
	for i := range accounts.Items {
		account := &accounts.Items[i]
		if !c.Selector.Matches(labels.Set(account.Labels)) {
			continue
		}
		for _, c := range account.Status.Conditions {
			samples <- prometheus.MustNewConstMetric(accountCondition, prometheus.GaugeValue, 1, account.Name, c.Type, string(c.Status), c.Reason)
		}
		collectPools(samples, account)
		if report := c.Costs(account.Name); report != nil {
			collectCosts(samples, account.Name, report)
		}
	}
}

func collectPools(samples chan<- prometheus.Metric, account *autonodev1alpha1.CapacityAccount) {
	for _, pool := range account.Status.Pools {
		for _, sample := range []struct {
			desc   *prometheus.Desc
			amount string
		}{{poolLimit, pool.Limit}, {poolGranted, pool.Granted}, {poolUsed, pool.Used}, {poolWaiting, cmp.Or(pool.Waiting, "0")}, {poolLent, cmp.Or(pool.Lent, "0")}, {poolReclaim, cmp.Or(pool.Reclaiming, "0")}} {
			if quantity, err := scalar.ParseQuantity(sample.amount); err == nil {
				samples <- prometheus.MustNewConstMetric(sample.desc, prometheus.GaugeValue, quantity.AsApproximateFloat64(), account.Name, pool.Name)
			}
		}
	}
	for i := range account.Spec.Reservations {
		if r := &account.Spec.Reservations[i]; !r.Expires.IsZero() {
			samples <- prometheus.MustNewConstMetric(poolExpiry, prometheus.GaugeValue, float64(r.Expires.At().Unix()), account.Name, autonodev1alpha1.ReservationPool(r.ID))
		}
	}
}

// collectCosts reports sums by hosted cluster, by NodePool, and by instance type over all clusters, so that the number of series doesn't
// depend on the machines, nor on how many clusters have which type.
func collectCosts(samples chan<- prometheus.Metric, account string, report *cost.Report) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		samples <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{account}, labels...)...)
	}
	for _, row := range report.Group(func(k cost.Key) cost.Key { return cost.Key{Cluster: k.Cluster} }) {
		namespace, name, _ := strings.Cut(row.Cluster, "/")
		gauge(costOnDemand, row.OnDemand, namespace, name)
		gauge(costList, row.List, namespace, name)
		gauge(costPaid, row.Paid, namespace, name)
		gauge(costUnpriced, float64(row.Unpriced), namespace, name)
		gauge(costSaved, row.Saved.Spot, namespace, name, BySpot)
		gauge(costSaved, row.Saved.Reservations, namespace, name, ByReservations)
		gauge(costSaved, row.Saved.Commitments, namespace, name, ByCommitments)
	}
	for _, row := range report.Group(func(k cost.Key) cost.Key { return cost.Key{Cluster: k.Cluster, NodePool: k.NodePool} }) {
		namespace, name, _ := strings.Cut(row.Cluster, "/")
		gauge(costNodePool, row.Paid, namespace, name, row.NodePool)
	}
	for _, row := range report.Group(func(k cost.Key) cost.Key {
		return cost.Key{Offering: capacity.Offering{InstanceType: k.InstanceType, CapacityType: k.CapacityType}}
	}) {
		gauge(costInstanceType, row.Paid, row.InstanceType, row.CapacityType)
	}
	for _, use := range report.Commitments {
		gauge(commitmentUsed, use.Used/use.Committed, use.Name)
		if use.Wasted != nil {
			gauge(commitmentUnused, *use.Wasted, use.Name)
		}
	}
	for i := range report.Reservations {
		if use := &report.Reservations[i]; use.Wasted != nil && !use.Expired {
			gauge(reservationUnused, *use.Wasted, use.ID)
		}
	}
}
