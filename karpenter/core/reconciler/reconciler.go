// SPDX-License-Identifier: Apache-2.0

// Package reconciler puts a reconciler of ours around one of Karpenter core's.
//
// Upstream gap: neither Karpenter core's controllers nor controller-runtime's manager have a hook around a reconciler, so
// that Wrap replaces the fields that hold it and its queue (docs/upstream/management-outage.md).
package reconciler

import (
	"context"
	"fmt"
	"reflect"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/client-go/util/workqueue"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/internal/controllerqueue"
)

// Registered is a controller that is being added to a manager.
type Registered struct {
	Name  string
	Inner reconcile.Reconciler
	// Watch adds a source of requests.
	Watch func(source.Source) error
	// Queue sets what makes its queue when it starts.
	Queue func(NewQueue)
}

// NewQueue makes the queue of a controller, with its name and its rate limiter.
type NewQueue = func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

// Enqueue returns a func that queues a request for the controller. Until the controller is started, it does nothing: a
// controller that starts begins with all objects.
func (r Registered) Enqueue() (func(reconcile.Request), error) {
	queue := &controllerqueue.Queue[reconcile.Request]{}
	if err := r.Watch(queue); err != nil {
		return nil, fmt.Errorf("following the queue of %s: %w", r.Name, err)
	}
	return func(request reconcile.Request) { queue.Add(request) }, nil
}

// Middleware returns the reconciler that a controller gets instead of its inner one.
type Middleware = func(Registered) (reconcile.Reconciler, error)

// Around returns a Middleware whose passes call next for the inner one.
func Around(pass func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error)) Middleware {
	return func(r Registered) (reconcile.Reconciler, error) {
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return pass(ctx, request, r.Inner)
		}), nil
	}
}

// Wrap returns a controller with a Middleware. Register fails if this version of controller-runtime keeps reconcilers elsewhere.
func Wrap(wrapped controller.Controller, with Middleware) controller.Controller {
	return wrapper{Controller: wrapped, with: with}
}

type wrapper struct {
	controller.Controller
	with Middleware
}

// Register adds the controller to the guest's manager.
func (w wrapper) Register(ctx context.Context, m manager.Manager) error {
	return w.Controller.Register(ctx, wrappingManager{m, w.with})
}

// wrappingManager wraps the reconciler of each controller that is added.
type wrappingManager struct {
	manager.Manager
	with Middleware
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

func (m wrappingManager) wrap(added ctrlcontroller.Controller) error {
	var name string
	var inner *reconcile.Reconciler
	var queue *NewQueue
	if value := reflect.Indirect(reflect.ValueOf(added)); value.Kind() == reflect.Struct {
		if field := value.FieldByName("Name"); field.IsValid() && field.Kind() == reflect.String {
			name = field.String()
		}
		if field := value.FieldByName("Do"); field.IsValid() && field.CanAddr() {
			inner, _ = field.Addr().Interface().(*reconcile.Reconciler)
		}
		if field := value.FieldByName("NewQueue"); field.IsValid() && field.CanAddr() {
			queue, _ = field.Addr().Interface().(*NewQueue)
		}
	}
	if name == "" || inner == nil || queue == nil {
		return fmt.Errorf("this version of controller-runtime keeps the reconciler or the queue of %T elsewhere", added)
	}
	outer, err := m.with(Registered{Name: name, Inner: *inner, Watch: added.Watch, Queue: func(made NewQueue) { *queue = made }})
	if err != nil {
		return fmt.Errorf("wrapping the reconciler of %s: %w", name, err)
	}
	*inner = outer
	return nil
}
