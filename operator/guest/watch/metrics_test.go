// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMetrics(t *testing.T) {
	t.Run("When a connection is found lost again and again, it should count once", func(t *testing.T) {
		g := NewWithT(t)
		blue := client.ObjectKey{Namespace: "clusters-blue", Name: "blue"}
		w := New(nil, nil)
		w.started[blue] = &started{hostedCluster: client.ObjectKey{Namespace: "clusters", Name: "blue"}}
		lost := connectionsLost.For(client.ObjectKey{Namespace: "clusters", Name: "blue"})
		before := testutil.ToFloat64(lost)
		for range 3 {
			w.Lost(blue)
		}
		g.Expect(testutil.ToFloat64(lost) - before).To(Equal(1.0))
	})

	t.Run("When names and help texts are linted, they should follow Prometheus' habits", func(t *testing.T) {
		for _, collector := range []prometheus.Collector{connectionsMade, connectionsLost} {
			problems, err := testutil.CollectAndLint(collector)
			NewWithT(t).Expect(problems, err).To(BeEmpty())
		}
	})
}
