// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// emitting is a clustercache whose events the test sends, as clustercache sends its own: it blocks until they are received.
type emitting struct {
	clustercache.ClusterCache
	events chan event.GenericEvent
	taken  context.Context // until it ends, events are taken
}

func (e *emitting) GetClusterSource(
	_ string, requests func(context.Context, client.Object) []reconcile.Request, _ ...clustercache.GetClusterSourceOption,
) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		e.taken = ctx
		return source.Channel(e.events, handler.EnqueueRequestsFromMapFunc(requests)).Start(ctx, queue)
	})
}

func TestSource(t *testing.T) {
	t.Run("When its controller has ended before clustercache, it should still take what clustercache emits", func(t *testing.T) {
		g := NewWithT(t)
		clusters := &emitting{events: make(chan event.GenericEvent)}
		ended := make(chan struct{})
		c := &Connections{management: newManagement(t), clusters: clusters, ended: ended}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		ctx, end := context.WithCancel(t.Context())
		g.Expect(c.startConnected(ctx, queue)).To(Succeed())
		end()
		queue.ShutDown()
		// More than the source itself may hold, so that they can't just lie there.
		all := make(chan struct{})
		go func() {
			defer close(all)
			for range 2000 {
				clusters.events <- event.GenericEvent{Object: &clusterv1.Cluster{}}
			}
		}()
		g.Eventually(all).Should(BeClosed())

		close(ended)
		g.Eventually(clusters.taken.Done()).Should(BeClosed())
	})
}
