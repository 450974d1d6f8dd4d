// SPDX-License-Identifier: Apache-2.0

package manager_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

func TestStop(t *testing.T) {
	for name, tc := range map[string]struct {
		made func(*rest.Config, manager.Options) (manager.Manager, error)
		// queue is a controller's own, nil for its manager's.
		queue func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]
	}{
		"When a manager is stopped while its workers take one item after another, it should end within its grace period":    {autonodemanager.New, nil},
		"When another's controller has this queue and is stopped like that, its manager should end within its grace period": {manager.New, autonodemanager.Queue},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // controller-runtime's own queue locks up in one of five
				stopBusy(t, tc.made, ctrlcontroller.Options{NewQueue: tc.queue})
			}
		})
	}
}

// stopBusy stops a manager while many workers are at work and each item that is done brings another.
func stopBusy(t *testing.T, made func(*rest.Config, manager.Options) (manager.Manager, error), options ctrlcontroller.Options) {
	t.Helper()
	g := NewWithT(t)
	m, err := made(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{ // nothing is read
		Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	const workers = 20
	var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	done := make(chan struct{}, workers)
	options.MaxConcurrentReconciles = workers
	options.Reconciler = reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		request.Name += "+"
		queue.Add(request)
		select {
		case done <- struct{}{}:
		default:
		}
		return reconcile.Result{}, nil
	})
	c, err := ctrlcontroller.New("busy", m, options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Watch(source.Func(func(_ context.Context, of workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue = of
		for n := range workers {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint(n)}})
		}
		return nil
	}))).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	for range workers {
		<-done
	}
	stop()
	g.Expect(<-ended).To(Succeed())
}
