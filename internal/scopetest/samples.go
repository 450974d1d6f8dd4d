// SPDX-License-Identifier: Apache-2.0

package scopetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Samples returns the samples of gauges that are served, by the metric's name.
func Samples(tb testing.TB, c prometheus.Collector) map[string][]string {
	tb.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		tb.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	samples := map[string][]string{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			sample := fmt.Sprintf("{%s} %.10g", strings.Join(labels, ","), metric.GetGauge().GetValue())
			samples[family.GetName()] = append(samples[family.GetName()], sample)
		}
	}
	return samples
}
