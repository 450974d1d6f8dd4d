// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/kubeconfig"
)

// burst is the delay of events of kinds that come in bursts: fifty joining nodes cause one or two reconciliations.
const burst = 500 * time.Millisecond

// events puts HostedClusters into the queue of the controller that reconciles them.
type events struct {
	mu    sync.RWMutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
	rates *rates
}

func newEvents(clk clock.PassiveClock) *events { return &events{rates: newRates(clk)} }

// wake enqueues for an event from a guest's API server, within the guest's budget.
func (e *events) wake(hostedCluster types.NamespacedName, after time.Duration) {
	e.enqueue(hostedCluster, max(after, e.rates.delay(hostedCluster)))
}

func (e *events) start(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = queue
}

func (e *events) enqueue(hostedCluster types.NamespacedName, after time.Duration) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.queue != nil { // else the controller reconciles everything as it starts
		e.queue.AddAfter(reconcile.Request{NamespacedName: hostedCluster}, after)
	}
}

// onSecret wakes the HostedCluster whose kubeconfig or guest access changed, and for a kubeconfig the connection too.
func (c *Connections) onSecret(ctx context.Context) toolscache.ResourceEventHandler {
	changed := func(object any) {
		if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		s, ok := object.(*corev1.Secret)
		if !ok {
			return
		}
		switch {
		case v1beta1.IsGuestAccess(s):
			if name := s.Labels[v1beta1.HostedClusterLabel]; name != "" {
				c.events.enqueue(types.NamespacedName{Namespace: s.Labels[v1beta1.HostedClusterNamespaceLabel], Name: name}, 0)
			}
		case isKubeconfig(s):
			cluster := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[clusterv1.ClusterNameLabel]}
			for _, request := range c.requests(ctx, cluster) {
				c.reconnect(cluster, s)
				c.events.enqueue(request.NamespacedName, 0)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(before, after any) {
			if resourceVersion(before) != resourceVersion(after) {
				changed(after)
			}
		},
		DeleteFunc: func(object any) {
			if s, ok := object.(*corev1.Secret); ok && isKubeconfig(s) {
				c.access.forget(types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[clusterv1.ClusterNameLabel]})
			}
			changed(object)
		},
	}
}

// dropForeignSecrets removes the content of Secrets that this package doesn't read, and truncates a kubeconfig that is
// too large.
func dropForeignSecrets(object any) (any, error) {
	s, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	s.ManagedFields = nil
	switch {
	case v1beta1.IsGuestAccess(s):
	case isKubeconfig(s):
		content := s.Data[secret.KubeconfigDataName]
		s.Data = nil
		if content != nil {
			s.Data = map[string][]byte{secret.KubeconfigDataName: bytes.Clone(content[:min(len(content), kubeconfig.MaxSize+1)])}
		}
	default:
		s.Data = nil
	}
	return object, nil
}

// isKubeconfig reports whether a Secret is Cluster API's kubeconfig of a cluster. Others have the same label and a
// similar name, such as <cluster>-user-kubeconfig.
func isKubeconfig(s *corev1.Secret) bool {
	cluster := s.Labels[clusterv1.ClusterNameLabel]
	return cluster != "" && s.Name == secret.Name(cluster, secret.Kubeconfig)
}

func resourceVersion(object any) string {
	if o, ok := object.(client.Object); ok {
		return o.GetResourceVersion()
	}
	return ""
}
