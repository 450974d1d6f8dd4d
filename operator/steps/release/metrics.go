// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/operator/metrics"
	"github.com/autonode-io/autonode/payload"
)

// Results of a pull without a payload.Reason.
const (
	resultSuccess = "Success"
	resultUnknown = "Unknown"
)

var (
	lookups = metrics.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "payload",
		Name:      "lookups_total",
		Help:      "How often a HostedCluster's payload was requested.",
	})
	cacheHits = metrics.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.Namespace,
		Subsystem: "payload",
		Name:      "cache_hits_total",
		Help:      "How often a requested payload of a HostedCluster was in memory.",
	})
	// For all hosted clusters together: one pull serves several.
	pullDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metrics.Namespace,
		Subsystem: "payload",
		Name:      "pull_duration_seconds",
		Help:      "How long pulls of payloads took. Labeled by result: Success, or the reason why it failed.",
		Buckets:   []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
	}, []string{"result"})
)

func init() { crmetrics.Registry.MustRegister(lookups, cacheHits, pullDuration) }

// Counters are the counters per HostedCluster.
func Counters() []*metrics.Counter { return []*metrics.Counter{lookups, cacheHits} }

// resultOf returns at most a payload.Reason, so that the label has few values.
func resultOf(err error) string {
	if err == nil {
		return resultSuccess
	}
	return cmp.Or(string(payload.ReasonFor(err)), resultUnknown)
}
