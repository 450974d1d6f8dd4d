// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/operator/metrics"
)

// Which guest is reachable now is told by the package metrics.
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

// Counters are those that count for each HostedCluster.
func Counters() []*metrics.Counter { return []*metrics.Counter{connectionsMade, connectionsLost} }

func init() { crmetrics.Registry.MustRegister(connectionsMade, connectionsLost) }
