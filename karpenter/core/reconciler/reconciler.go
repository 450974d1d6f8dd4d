// SPDX-License-Identifier: Apache-2.0

// Package reconciler alters the passes of Karpenter core's controllers: each Middleware puts a reconciler of ours around core's.
//
// Upstream gap: neither Karpenter core's controllers nor controller-runtime's manager have a hook around a reconciler, so
// that Wrap replaces the fields that hold it and its queue (docs/internals/upstream/management-outage.md).
package reconciler

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/controllerqueue"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

// Registered is a controller that is being added to a manager.
type Registered struct {
	Name string
	// Inner is the reconciler so far.
	Inner reconcile.Reconciler
	// Enqueue queues a request. Until the controller is started, it does nothing: a controller that starts begins with all objects.
	Enqueue func(reconcile.Request) bool
}

// Middleware returns the reconciler that a controller gets instead of its inner one.
type Middleware = func(Registered) reconcile.Reconciler

// Around returns a Middleware whose passes call next for the inner one.
func Around(pass func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error)) Middleware {
	return func(r Registered) reconcile.Reconciler {
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return pass(ctx, request, r.Inner)
		})
	}
}

// Wrapped is a controller with middleware, the innermost first.
type Wrapped struct {
	controller.Controller
	With []Middleware
}

// Wrap returns a controller with middleware outside of that which it has, and with a queue that ends on request: package manager reports
// why.
func Wrap(c controller.Controller, with ...Middleware) controller.Controller {
	if w, ok := c.(Wrapped); ok {
		return Wrapped{w.Controller, slices.Concat(w.With, with)}
	}
	return Wrapped{c, with}
}

// Register adds the controller to the guest's manager. It fails if this version of controller-runtime keeps reconcilers elsewhere.
func (w Wrapped) Register(ctx context.Context, m manager.Manager) error {
	return w.Controller.Register(ctx, wrappingManager{m, w.With})
}

// wrappingManager wraps the reconciler of each controller that is added.
type wrappingManager struct {
	manager.Manager
	with []Middleware
}

// Add implements manager.Manager.
func (m wrappingManager) Add(runnable manager.Runnable) error {
	if added, ok := runnable.(ctrlcontroller.Controller); ok {
		if err := m.wrap(added); err != nil {
			return err
		}
	}
	return m.Manager.Add(runnable)
}

// newQueue makes the queue of a controller, with its name and its rate limiter.
type newQueue = func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

func (m wrappingManager) wrap(added ctrlcontroller.Controller) error {
	var name string
	var inner *reconcile.Reconciler
	var queue *newQueue
	if value := reflect.Indirect(reflect.ValueOf(added)); value.Kind() == reflect.Struct {
		if field := value.FieldByName("Name"); field.IsValid() && field.Kind() == reflect.String {
			name = field.String()
		}
		if field := value.FieldByName("Do"); field.IsValid() && field.CanAddr() {
			inner, _ = field.Addr().Interface().(*reconcile.Reconciler)
		}
		if field := value.FieldByName("NewQueue"); field.IsValid() && field.CanAddr() {
			queue, _ = field.Addr().Interface().(*newQueue)
		}
	}
	if name == "" || inner == nil || queue == nil {
		return fmt.Errorf("this version of controller-runtime keeps the reconciler or the queue of %T elsewhere", added)
	}
	requests := &controllerqueue.Queue[reconcile.Request]{}
	if err := added.Watch(requests); err != nil {
		return fmt.Errorf("following the queue of %s: %w", name, err)
	}
	for _, with := range m.with {
		*inner = with(Registered{Name: name, Inner: *inner, Enqueue: requests.Add})
	}
	*queue = autonodemanager.Queue
	return nil
}

// Wake returns a Middleware without effect on passes, and a func that begins one at once over the object of that name, which has no
// namespace.
//
// Upstream gap: core asks its cloud provider every five seconds whether an instance is gone, and a provider that gets an event has no way
// to pass that on but a write of the object that core watches (docs/internals/upstream/departed-machines.md).
func Wake() (with Middleware, wake func(name string)) {
	enqueue := func(reconcile.Request) bool { return false }
	with = func(r Registered) reconcile.Reconciler {
		enqueue = r.Enqueue
		return r.Inner
	}
	return with, func(name string) { enqueue(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}) }
}
