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

// desc describes a metric of a CapacityAccount, which its first label names.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, "", name), help, append([]string{"account"}, labels...), nil)
}

// Amounts of pools are machines, virtual CPUs, bytes of memory or GPUs, and costs are US dollars an hour.
var (
	accountCondition = desc("capacity_account_condition", "1 for each condition of a CapacityAccount.", "type", "status", "reason")

	poolLimit   = desc("capacity_pool_limit", "Limit of a pool: machines, virtual CPUs, bytes of memory or GPUs.", "pool")
	poolGranted = desc("capacity_pool_granted", "Amount of a pool that is granted to clusters, in the unit of its limit.", "pool")
	poolUsed    = desc("capacity_pool_used", "Amount of a pool that Machines use, in the unit of its limit.", "pool")
	poolWaiting = desc("capacity_pool_waiting", "Amount of a pool that is requested and not granted now, in the unit of its limit.", "pool")
	poolLent    = desc("capacity_pool_lent", "Amount of a pool that is granted but guaranteed to others, in the unit of its limit.", "pool")
	poolReclaim = desc("capacity_pool_reclaiming", "Amount of a pool that clusters use and have to return, in the unit of its limit.", "pool")
	poolExpiry  = desc("capacity_pool_expiry_timestamp_seconds", "End of a reservation in seconds since the epoch.", "pool")

	costOnDemand = desc("cost_on_demand_dollars_per_hour", "Cost of a cluster's Machines if all were on demand.", "namespace", "name")
	costList     = desc("cost_list_dollars_per_hour", "Cost of a cluster's Machines without commitments.", "namespace", "name")
	costPaid     = desc("cost_paid_dollars_per_hour", "Cost of a cluster's Machines, without unused commitments.", "namespace", "name")
	costSaved    = desc("cost_saved_dollars_per_hour", "Savings on the on-demand cost of a cluster's Machines.", "namespace", "name", "by")
	costUnpriced = desc("cost_unpriced_machines", "Machines without a known price, which costs don't include.", "namespace", "name")
	costNodePool = desc("cost_nodepool_paid_dollars_per_hour", "Cost of the Machines of a NodePool.", "namespace", "name", "nodepool")
	costType     = desc("cost_instance_type_paid_dollars_per_hour", "Cost of Machines of a type.", "instance_type", "capacity_type")

	commitmentUsed    = desc("commitment_used_ratio", "Used part of a commitment that is in its term, from 0 to 1.", "commitment")
	commitmentUnused  = desc("commitment_unused_dollars_per_hour", "Cost of the unused part of a commitment.", "commitment")
	reservationUnused = desc("reservation_unused_dollars_per_hour", "Cost of the unused machines of a reservation.", "reservation")

	descs = []*prometheus.Desc{
		accountCondition, poolLimit, poolGranted, poolUsed, poolWaiting, poolLent, poolReclaim, poolExpiry,
		costOnDemand, costList, costPaid, costSaved, costUnpriced, costNodePool, costType, commitmentUsed, commitmentUnused, reservationUnused,
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
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descs {
		to <- d
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
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			samples <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{account.Name}, labels...)...)
		}
		for _, c := range account.Status.Conditions {
			gauge(accountCondition, 1, c.Type, string(c.Status), c.Reason)
		}
		collectPools(gauge, account)
		if report := c.Costs(account.Name); report != nil {
			collectCosts(gauge, report)
		}
	}
}

func collectPools(gauge func(*prometheus.Desc, float64, ...string), account *autonodev1alpha1.CapacityAccount) {
	for i := range account.Status.Pools {
		pool := &account.Status.Pools[i]
		for d, amount := range map[*prometheus.Desc]string{
			poolLimit: pool.Limit, poolGranted: pool.Granted, poolUsed: pool.Used,
			poolWaiting: cmp.Or(pool.Waiting, "0"), poolLent: cmp.Or(pool.Lent, "0"), poolReclaim: cmp.Or(pool.Reclaiming, "0"),
		} {
			if quantity, err := scalar.ParseQuantity(amount); err == nil {
				gauge(d, quantity.AsApproximateFloat64(), pool.Name)
			}
		}
	}
	for i := range account.Spec.Reservations {
		if r := &account.Spec.Reservations[i]; !r.Expires.IsZero() {
			gauge(poolExpiry, float64(r.Expires.At().Unix()), autonodev1alpha1.ReservationPool(r.ID))
		}
	}
}

// collectCosts reports sums by hosted cluster, by NodePool, and by instance type over all clusters, so that the number of series doesn't
// depend on the machines, nor on how many clusters have which type.
func collectCosts(gauge func(*prometheus.Desc, float64, ...string), report *cost.Report) {
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
		gauge(costType, row.Paid, row.InstanceType, row.CapacityType)
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
