// SPDX-License-Identifier: Apache-2.0

package release

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMetrics(t *testing.T) {
	source := newOrigin(t)
	tag := source.push(t, "3", karpenter("1.36.3"))
	r := New(Config{PullSecrets: &secrets{}, Clock: clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))}) // no pull takes any time
	pullDuration.Reset()
	// counted returns how many lookups and cache hits a reconciliation is.
	counted := func(t *testing.T, image string) []float64 {
		t.Helper()
		blue := client.ObjectKey{Namespace: "clusters", Name: "blue"}
		before := []float64{testutil.ToFloat64(lookups.For(blue)), testutil.ToFloat64(cacheHits.For(blue))}
		reconciled(t, r, scopeOf(image))
		return []float64{testutil.ToFloat64(lookups.For(blue)) - before[0], testutil.ToFloat64(cacheHits.For(blue)) - before[1]}
	}
	pulled := func(t *testing.T, results ...string) {
		t.Helper()
		var want strings.Builder
		want.WriteString(`# HELP autonode_payload_pull_duration_seconds How long pulls of payloads took. Labeled by result: Success, or the reason why it failed.
			# TYPE autonode_payload_pull_duration_seconds histogram
			`)
		for _, result := range results {
			for _, le := range []string{"0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "120", "300", "+Inf"} {
				want.WriteString(`autonode_payload_pull_duration_seconds_bucket{result="` + result + `",le="` + le + "\"} 1\n")
			}
			want.WriteString(`autonode_payload_pull_duration_seconds_sum{result="` + result + "\"} 0\n")
			want.WriteString(`autonode_payload_pull_duration_seconds_count{result="` + result + "\"} 1\n")
		}
		if err := testutil.CollectAndCompare(pullDuration, strings.NewReader(want.String())); err != nil {
			t.Error(err)
		}
	}

	t.Run("When a payload isn't known, it should count a lookup and a pull", func(t *testing.T) {
		NewWithT(t).Expect(counted(t, tag)).To(Equal([]float64{1, 0}))
		pulled(t, resultSuccess)
	})

	t.Run("When a payload is known by its digest, it should count a cache hit, and no pull", func(t *testing.T) {
		s := scopeOf(tag)
		reconciled(t, r, s)
		pullDuration.Reset()
		NewWithT(t).Expect(counted(t, s.HostedCluster.Status.Version.Desired.Image)).To(Equal([]float64{1, 1}))
		pulled(t)
	})

	t.Run("When a pull fails, it should count it by its reason, and not again until it is retried", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(counted(t, source.host+"/release:nope")).To(Equal([]float64{1, 0}))
		g.Expect(counted(t, source.host+"/release:nope")).To(Equal([]float64{1, 0}))
		pulled(t, "ImageNotFound")
	})

	t.Run("When names and help texts are linted, they should follow Prometheus' habits", func(t *testing.T) {
		for _, collector := range []prometheus.Collector{lookups, cacheHits, pullDuration} {
			problems, err := testutil.CollectAndLint(collector)
			NewWithT(t).Expect(problems, err).To(BeEmpty())
		}
	})
}
