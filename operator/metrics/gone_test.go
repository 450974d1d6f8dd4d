// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/metrics"
)

func TestGone(t *testing.T) {
	t.Run("When a HostedCluster is gone, it should leave nothing behind", func(t *testing.T) {
		g := NewWithT(t)
		blue := hostedCluster("blue", nil)
		c, management := collector(t, blue, component("blue", "1.36.3", rolledOut))
		g.Expect(testutil.CollectAndCount(c)).NotTo(BeZero())
		blue.Finalizers = nil
		g.Expect(management.Update(t.Context(), blue)).To(Succeed())
		g.Expect(management.Delete(t.Context(), blue)).To(Succeed())
		g.Expect(testutil.CollectAndCount(c)).To(BeZero())
	})

	t.Run("When a HostedCluster is gone, what was counted of it should go too", func(t *testing.T) {
		g := NewWithT(t)
		blue := hostedCluster("blue", nil)
		blue.Finalizers = nil
		_, management := collector(t, blue, hostedCluster("green", nil))
		counter := metrics.NewCounter(prometheus.CounterOpts{Name: "lookups_total", Help: "Lookups."})
		c := metrics.New(metrics.Config{Management: management, Counters: []*metrics.Counter{counter}})
		counter.For(client.ObjectKeyFromObject(blue)).Inc()
		counter.For(client.ObjectKey{Namespace: "clusters", Name: "green"}).Add(3)
		series := func() int {
			g.Expect(testutil.CollectAndCount(c)).NotTo(BeZero())
			return testutil.CollectAndCount(counter)
		}
		g.Expect(series()).To(Equal(2))
		g.Expect(management.Delete(t.Context(), blue)).To(Succeed())
		g.Expect(series()).To(Equal(1))
		g.Expect(testutil.ToFloat64(counter.For(client.ObjectKey{Namespace: "clusters", Name: "green"}))).To(Equal(3.0))
		counter.For(client.ObjectKeyFromObject(blue)).Inc()
		g.Expect(series()).To(Equal(1), "what a reconciliation counts that was under way goes, too")
	})
}
