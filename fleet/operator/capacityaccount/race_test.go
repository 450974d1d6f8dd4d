// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// operate runs an operator with caches until the returned function ends it.
func operate(t *testing.T) (stop func()) {
	t.Helper()
	g := NewWithT(t)
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := autonodemanager.New(clusters.Management.Config, manager.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(New(Config{Management: mgr.GetClient(), Live: mgr.GetAPIReader(), Selector: labels.Everything(), Recorder: &events.FakeRecorder{}}).SetUp(mgr)).To(Succeed())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the operator ended with %v", err)
		}
	}
}

func TestRace(t *testing.T) {
	t.Run("When two operators with caches serve three clusters that race for ten machines, they should never have eleven, and all ten within 30 s", func(t *testing.T) {
		f := newFixture(t, "race", "blue", "green", "red")
		stopFirst, stopSecond := operate(t), operate(t)
		defer func() { stopSecond() }()
		started := time.Now()
		for _, k := range f.karpenters {
			k.want(8)
		}
		stopped := false
		f.Eventually(func(g Gomega) {
			total := 0
			for _, k := range f.karpenters {
				k.step()
			}
			for _, k := range f.karpenters {
				total += k.machines()
			}
			f.Expect(total).To(BeNumerically("<=", 10))
			if total > 3 && !stopped {
				stopped = true
				stopFirst() // one of them dies on the way
			}
			g.Expect(total).To(Equal(10))
		}).Should(Succeed())
		t.Logf("all ten in use after %s", time.Since(started).Round(time.Millisecond))
		if !stopped {
			stopFirst()
		}
		f.Consistently(func(g Gomega) {
			total := 0
			for _, k := range f.karpenters {
				k.step()
				total += k.machines()
			}
			g.Expect(total).To(Equal(10))
		}).WithTimeout(2 * time.Second).Should(Succeed())
	})
}
