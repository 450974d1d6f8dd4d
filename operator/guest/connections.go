// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/connection"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
)

// clusterIndex indexes HostedClusters by their Cluster.
const clusterIndex = "autonode.io/cluster"

// Config of New.
type Config struct {
	// Manager of the management cluster. Its scheme needs the kinds of AddToScheme: the guests' clients use it.
	Manager manager.Manager
	// ConnectRetry is the back-off after a failed connection attempt; zero is DefaultConnectRetry.
	ConnectRetry time.Duration
	// Timeout of a call to a guest; zero is DefaultTimeout.
	Timeout time.Duration
	// Holder is the operator's value of status.operator in the HostedClusters that it holds; empty if it records none.
	Holder string
	// Clock of the back-off for guests that don't answer; nil is the real one.
	Clock clock.PassiveClock
	// Watches are the kinds in guests that other controllers watch.
	Watches []watch.Kind
	// Egress decides which addresses a guest's API server may have; nil allows public ones.
	Egress *egress.Policy
	// Budget limits the bytes that each guest may send, and Bounds the objects that are kept of it; zero is the default.
	Budget egress.Budget
	Bounds store.Bounds
}

const (
	// DefaultTimeout of a call to a guest.
	DefaultTimeout = 10 * time.Second
	// DefaultConnectRetry is the back-off after a failed connection attempt, as in Cluster API.
	DefaultConnectRetry = 30 * time.Second
	// connecting is the concurrency limit of connection attempts and probes. A guest that hangs takes five seconds of
	// every thirty-five, so this many workers handle some hundred of them; all they do is wait.
	connecting = 100
)

// Connections is the step that connects to guest clusters.
type Connections struct {
	access      *access
	connections connections
	watches     *watch.Watches
	outages     *outage.Tracker
	timeout     time.Duration
	holder      string
}

var _ scope.Step = (*Connections)(nil)

// connections are the connections; see [connection.Manager].
type connections interface {
	Guest(cluster client.ObjectKey) (*connection.Guest, error)
	Health(cluster client.ObjectKey) connection.Health
}

// New adds the connections, and a cache of the Secrets that they need, to the manager.
func New(ctx context.Context, config Config) (*Connections, error) {
	mgr, timeout := config.Manager, cmp.Or(config.Timeout, DefaultTimeout)
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.HostedCluster{}, clusterIndex, indexByCluster); err != nil {
		return nil, fmt.Errorf("indexing hosted clusters by cluster: %w", err)
	}
	access, err := newAccess(mgr, egress.NewDialer(cmp.Or(config.Egress, &egress.Policy{}), config.Budget))
	if err != nil {
		return nil, err
	}
	kinds, err := watch.StoreKinds(mgr.GetScheme(), config.Watches)
	if err != nil {
		return nil, err
	}
	c := &Connections{
		access: access, watches: watch.New(config.Clock, config.Watches), outages: outage.NewTracker(config.Clock, timeout),
		timeout: timeout, holder: config.Holder,
	}
	manager := connection.New(connection.Config{
		Management: mgr.GetClient(), Scheme: mgr.GetScheme(), Kinds: kinds, Wanted: c.wanted, Access: access.config,
		Changed: c.changed, Probed: c.probed,
		Bounds: config.Bounds, Backoff: cmp.Or(config.Budget.Backoff, egress.DefaultBackoff), Noticed: c.noticed, Charge: access.dialer.Charge,
		UnresponsiveAfter: outage.ProbeFailure, Retry: cmp.Or(config.ConnectRetry, DefaultConnectRetry), Timeout: timeout,
		Clock: clock.RealClock{},
	})
	c.connections = manager
	if err := mgr.Add(manager); err != nil {
		return nil, fmt.Errorf("adding the end of the connections to guests: %w", err)
	}
	if err := builder.ControllerManagedBy(mgr).Named("guest").For(&clusterv1.Cluster{}).WatchesRawSource(&access.queue).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: connecting}).Complete(manager); err != nil {
		return nil, fmt.Errorf("setting up the connections to guests: %w", err)
	}
	return c, nil
}

// Source emits a HostedCluster when its guest is connected, lost or misses probes, and when an object that a step reads
// changes in the guest. Only one controller may use it.
func (c *Connections) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if err := c.watches.Queue.Source().Start(ctx, queue); err != nil {
			return err
		}
		informer, err := c.access.secrets.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching cluster secrets: %w", err)
		}
		if _, err := informer.AddEventHandler(c.onSecret(ctx)); err != nil {
			return fmt.Errorf("watching cluster secrets: %w", err)
		}
		return nil
	})
}

// onSecret enqueues the HostedCluster whose kubeconfig or guest access changed, and for a kubeconfig the Cluster too.
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
			c.eachOf(ctx, clusterOf(s), c.watches.Enqueue)
		case isKubeconfig(s):
			c.eachOf(ctx, clusterOf(s), func(hostedCluster client.ObjectKey) {
				c.access.replace(clusterOf(s), c.watches.Connection(clusterOf(s)), s)
				c.watches.Enqueue(hostedCluster)
			})
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(before, after any) {
			a, ok := before.(*corev1.Secret)
			b, ok2 := after.(*corev1.Secret)
			if ok && ok2 && a.ResourceVersion != b.ResourceVersion {
				changed(after)
			}
		},
		DeleteFunc: func(object any) {
			if s, ok := object.(*corev1.Secret); ok && isKubeconfig(s) {
				c.access.kubeconfigs.forget(clusterOf(s))
			}
			changed(object)
		},
	}
}

// wanted reports whether to connect to a Cluster's guest.
func (c *Connections) wanted(ctx context.Context, cluster *clusterv1.Cluster) bool {
	key := client.ObjectKeyFromObject(cluster)
	if c.access.takeStale(key) {
		c.outages.Forget(key)
		c.access.enqueue(key)
		return false // which ends the connection
	}
	return c.access.wanted(ctx, key)
}

// changed enqueues the HostedClusters whose guest was connected or lost, or misses probes.
func (c *Connections) changed(ctx context.Context, cluster client.ObjectKey) {
	c.eachOf(ctx, cluster, c.watches.Enqueue)
}

// probed enqueues the HostedClusters of a guest that has become ready, which ends its back-off.
func (c *Connections) probed(ctx context.Context, cluster client.ObjectKey, ready func() error) {
	if c.outages.Recovered(cluster, ready) {
		c.changed(ctx, cluster)
	}
}

// noticed enqueues the HostedClusters of a guest some of whose objects can't be read, within the guest's budget.
func (c *Connections) noticed(ctx context.Context, cluster client.ObjectKey) {
	c.eachOf(ctx, cluster, c.watches.EnqueueEvent)
}

// eachOf calls do for the HostedClusters that stand for a Cluster.
func (c *Connections) eachOf(ctx context.Context, cluster client.ObjectKey, do func(hostedCluster client.ObjectKey)) {
	hostedClusters, _ := c.access.hostedClusters(ctx, cluster) // an error means that the cache is being stopped
	for i := range hostedClusters {
		do(client.ObjectKeyFromObject(&hostedClusters[i]))
	}
}

// HostedClusters returns those that stand for a Cluster.
func (c *Connections) HostedClusters(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error) {
	return c.access.hostedClusters(ctx, cluster)
}

// Secrets reads the Secrets of the management cluster with a guest's kubeconfig or Karpenter's guest access, from a
// watch. It has no content of other Secrets.
func (c *Connections) Secrets() client.Reader { return c.access.secrets }

// Guest returns the guest of a HostedCluster for a controller of [Config.Watches]. It returns nil while the guest isn't
// connected or another operator holds it. While the guest doesn't answer it returns nil too, and the time of the next
// attempt.
func (c *Connections) Guest(ctx context.Context, hostedCluster *v1beta1.HostedCluster,
) (guest *scope.Guest, requeueAfter time.Duration, err error) {
	key, ok := ClusterKey(hostedCluster)
	if holder := hostedCluster.Status.Operator; !ok || c.holder != "" && holder != "" && holder != c.holder {
		return nil, 0, nil
	}
	if consents, err := c.access.consents(ctx, hostedCluster, key); err != nil || !consents {
		return nil, 0, err // another HostedCluster's connection may stand
	}
	conn, err := c.connections.Guest(key)
	if errors.Is(err, connection.ErrNotConnected) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if backoff := c.outages.Backoff(key, c.connections.Health(key)); backoff > 0 {
		return nil, backoff, nil
	}
	return c.outages.Guest(conn, client.ObjectKeyFromObject(hostedCluster)), 0, nil
}

// Slow reports whether a HostedCluster's guest has held a worker for long in the last minutes.
func (c *Connections) Slow(hostedCluster client.ObjectKey) bool { return c.outages.Slow(hostedCluster) }

// Release closes the connection to the guest of a HostedCluster that the operator has released.
func (c *Connections) Release(hostedCluster *v1beta1.HostedCluster) {
	key, ok := ClusterKey(hostedCluster)
	if !ok {
		return
	}
	c.watches.Forget(key)
	c.outages.Forget(key)
	c.access.kubeconfigs.forget(key)
	c.access.enqueue(key)
}
