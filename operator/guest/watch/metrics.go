// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/operator/metrics"
)

// Package metrics reports which guests are reachable.
var (
	connectionsMade = metrics.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "guest",
		Name:      "connections_total",
		Help:      "How many connections to a HostedCluster's guest were made.",
	})
	connectionsLost = metrics.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "guest",
		Name:      "connections_lost_total",
		Help:      "How many connections to a HostedCluster's guest were lost while they were needed.",
	})
)

// Counters are the counters with a series per HostedCluster.
func Counters() []*metrics.Counter { return []*metrics.Counter{connectionsMade, connectionsLost} }

func init() { crmetrics.Registry.MustRegister(connectionsMade, connectionsLost) }
