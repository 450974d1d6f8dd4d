// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

// Samples returns the samples that are served, by the metric's name.
func Samples(tb testing.TB, c prometheus.Collector) map[string][]string {
	tb.Helper()
	g := NewWithT(tb)
	registry := prometheus.NewPedanticRegistry()
	g.Expect(registry.Register(c)).To(Succeed())
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
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
