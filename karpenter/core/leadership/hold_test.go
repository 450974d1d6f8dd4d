// SPDX-License-Identifier: Apache-2.0

package leadership_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// asking is a controller that calls a suspended cloud provider about each object.
type asking struct {
	name string
	e    *elector

	queue       atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	began, done atomic.Int64
}

var _ controller.Controller = (*asking)(nil)

// Register adds the controller.
func (a *asking) Register(_ context.Context, m manager.Manager) error {
	events := func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.queue.Store(&queue)
		return nil
	}
	return ctrl.NewControllerManagedBy(m).Named(a.name).WatchesRawSource(source.Func(events)).Complete(a)
}

// Reconcile implements reconcile.Reconciler.
func (a *asking) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	a.began.Add(1)
	if a.e.keeper.Suspended() {
		return reconcile.Result{}, fmt.Errorf("asking: %w", leadership.ErrSuspended)
	}
	a.done.Add(1)
	return reconcile.Result{}, nil
}

// errorCount counts what is logged as an error.
type errorCount struct{ errors *atomic.Int64 }

func (c errorCount) Init(logr.RuntimeInfo)          {}
func (c errorCount) Enabled(int) bool               { return false }
func (c errorCount) Info(int, string, ...any)       {}
func (c errorCount) Error(error, string, ...any)    { c.errors.Add(1) }
func (c errorCount) WithValues(...any) logr.LogSink { return c }
func (c errorCount) WithName(string) logr.LogSink   { return c }

func TestHold(t *testing.T) {
	controllers := map[string]struct {
		with     func(*leadership.Keeper) []reconciler.Middleware
		attempts int64
	}{
		"When a reconciliation can't be done while suspended, it should log no error, not try again, and do it once when that ends": {
			func(k *leadership.Keeper) []reconciler.Middleware { return []reconciler.Middleware{leadership.Hold(k)} }, 1,
		},
		"When a controller decides for all, it should not begin while suspended, and do it once when that ends": {
			func(k *leadership.Keeper) []reconciler.Middleware {
				return []reconciler.Middleware{leadership.Refuse(k), leadership.Hold(k)}
			}, 0,
		},
	}
	electors := map[string]*elector{}
	for name := range controllers {
		electors[name] = elect(t)
		electors[name].cutOff()
	}
	for name, tc := range controllers {
		t.Run(name, func(t *testing.T) {
			g, e := NewWithT(t), electors[name]
			var errors atomic.Int64
			m, err := autonodemanager.New(e.Management.GetConfig(), ctrl.Options{
				Logger: logr.New(errorCount{&errors}), Metrics: metricsserver.Options{BindAddress: "0"},
				Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
			})
			g.Expect(err).NotTo(HaveOccurred())
			controller := &asking{name: "asking", e: e}
			g.Expect(reconciler.Wrap(controller, tc.with(e.keeper)...).Register(t.Context(), m)).To(Succeed())
			e.outlast(g)
			e.clock.SetTime(e.clock.Now().Add(leadership.RenewDeadline))

			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			ended := make(chan error, 1)
			go func() { ended <- m.Start(ctx) }()
			t.Cleanup(func() {
				stop()
				NewWithT(t).Expect(<-ended).To(Succeed())
			})
			g.Eventually(controller.queue.Load).ShouldNot(BeNil())
			queue := *controller.queue.Load()
			for range 20 {
				queue.Add(reconcile.Request{})
				g.Eventually(queue.Len).Should(BeZero())
			}
			g.Eventually(controller.began.Load).Should(Equal(tc.attempts))
			g.Expect(errors.Load()).To(BeZero())

			e.cut.Store(false)
			g.Eventually(controller.done.Load).Should(BeEquivalentTo(1))
			g.Expect(controller.began.Load()).To(Equal(tc.attempts + 1))
			g.Expect(errors.Load()).To(BeZero())
		})
	}
}
