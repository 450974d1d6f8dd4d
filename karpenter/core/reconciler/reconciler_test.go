// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

// capturing is a manager that starts nothing.
type capturing struct {
	manager.Manager
	added manager.Runnable
}

// Add implements manager.Manager.
func (c *capturing) Add(runnable manager.Runnable) error {
	c.added = runnable
	return nil
}

// woken is a controller that has no watches, but its queue.
type woken struct {
	queue chan workqueue.TypedRateLimitingInterface[reconcile.Request]
	begun chan string
}

// Register adds the controller.
func (w woken) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("woken").WatchesRawSource(source.Func(
		func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			w.queue <- queue
			return nil
		})).Complete(w)
}

// Reconcile implements reconcile.Reconciler.
func (w woken) Reconcile(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
	w.begun <- request.Name
	return reconcile.Result{}, nil
}

func TestWrap(t *testing.T) {
	t.Run("When a controller is woken, it should begin a pass at once, with its middleware in order", func(t *testing.T) {
		g := NewWithT(t)
		m, err := autonodemanager.New(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{
			Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
		})
		g.Expect(err).NotTo(HaveOccurred())
		core := woken{queue: make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1), begun: make(chan string, 3)}
		named := func(suffix string) Middleware {
			return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
				request.Name += suffix
				return next.Reconcile(ctx, request)
			})
		}
		with, wake := Wake()
		captured := &capturing{Manager: m}
		g.Expect(Wrap(Wrap(core, with, named("-inner")), named("-outer")).Register(t.Context(), captured)).To(Succeed())
		wake("before-the-start")
		go func() { _ = captured.added.Start(t.Context()) }()
		var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
		g.Eventually(core.queue).Should(Receive(&queue))
		pass := func() (name string) {
			g.Eventually(core.begun).Should(Receive(&name))
			return name
		}
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: "first"}})
		g.Expect(pass()).To(Equal("first-outer-inner"))
		wake("general-1")
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: "last"}})
		g.Expect(pass()).To(Equal("general-1-outer-inner"))
	})
}
