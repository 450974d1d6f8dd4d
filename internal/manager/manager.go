// SPDX-License-Identifier: Apache-2.0

// Package manager makes controller-runtime's managers so that they end on request.
//
// The queue that controller-runtime's controllers have by default (v0.24) locks up when it is shut down while something is ready and no
// worker takes it any more: its sender holds the lock for which the workers wait
// (https://github.com/kubernetes-sigs/controller-runtime/issues/3538, mended in v0.25). The process then waits for its whole grace period,
// and so does the replica that is to take over. client-go's queue ends at once.
package manager

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/headers"
)

// New makes a manager whose controllers have client-go's queue, and whose clients bound headers.
func New(config *rest.Config, options manager.Options) (manager.Manager, error) {
	options.Controller.UsePriorityQueue = ptr.To(false)
	config = rest.CopyConfig(config)
	headers.Bound(config)
	return manager.New(config, options)
}

// Queue makes client-go's queue for a controller that another manager starts.
func Queue(controller string, limiter workqueue.TypedRateLimiter[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: controller})
}
