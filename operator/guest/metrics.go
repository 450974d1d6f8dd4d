// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/operator/metrics"
)

// They count for all guests together: a counter of each would outlive its HostedCluster. Which guest is reachable now is told by the
// package metrics.
var (
	connectionsMade = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "guest",
		Name:      "connections_total",
		Help:      "How many connections to guest clusters were made.",
	})
	connectionsLost = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "guest",
		Name:      "connections_lost_total",
		Help:      "How many connections to guest clusters were lost while they were needed.",
	})
)

func init() { crmetrics.Registry.MustRegister(connectionsMade, connectionsLost) }
