// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Counter counts for each HostedCluster. A Collector that has it sees to it that nothing is left of one that is gone.
type Counter struct {
	prometheus.Collector
	vec *prometheus.CounterVec

	mu      sync.Mutex
	counted sets.Set[client.ObjectKey]
}

// NewCounter returns a counter, for the caller to register.
func NewCounter(options prometheus.CounterOpts) *Counter {
	vec := prometheus.NewCounterVec(options, []string{"namespace", "name"})
	return &Counter{Collector: vec, vec: vec, counted: sets.New[client.ObjectKey]()}
}

// For returns a HostedCluster's counter.
func (c *Counter) For(hostedCluster client.ObjectKey) prometheus.Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted.Insert(hostedCluster)
	return c.vec.WithLabelValues(hostedCluster.Namespace, hostedCluster.Name)
}

// keep drops the counters of others.
func (c *Counter) keep(hostedClusters sets.Set[client.ObjectKey]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for gone := range c.counted.Difference(hostedClusters) {
		c.vec.DeleteLabelValues(gone.Namespace, gone.Name)
		c.counted.Delete(gone)
	}
}
