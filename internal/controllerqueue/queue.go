// SPDX-License-Identifier: Apache-2.0

// Package controllerqueue lets other code than a controller's own event handlers queue requests for the controller.
package controllerqueue

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Queue is the queue of one controller, which makes it only when it starts. The zero value is ready for use, by any number of
// goroutines.
type Queue[T comparable] struct {
	started atomic.Pointer[workqueue.TypedRateLimitingInterface[T]]
}

var _ source.TypedSource[string] = (*Queue[string])(nil)

// Start implements source.TypedSource: as a source of the controller, it learns the controller's queue.
func (q *Queue[T]) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[T]) error {
	q.started.Store(&queue)
	return nil
}

// Add queues a request. It returns false, and has queued nothing, if the controller hasn't started. Most callers needn't care: a controller
// that starts begins with all objects.
func (q *Queue[T]) Add(request T) bool { return q.AddAfter(request, 0) }

// AddAfter is Add after a delay.
func (q *Queue[T]) AddAfter(request T, delay time.Duration) bool {
	queue := q.started.Load()
	if queue == nil {
		return false
	}
	(*queue).AddAfter(request, delay) // at once if there is no delay
	return true
}
