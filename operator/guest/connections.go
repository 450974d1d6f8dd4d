// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/consent"
	"github.com/autonode-io/autonode/operator/egress"
	"github.com/autonode-io/autonode/operator/scope"
)

// clusterIndex indexes HostedClusters by the Cluster that they stand for.
const clusterIndex = "autonode.io/cluster"

// Config is what New needs.
type Config struct {
	// Manager of the management cluster. Its scheme has to hold the kinds of AddToScheme too: the guests' clients use it.
	Manager manager.Manager
	// ConnectRetry is how long to wait after a connection couldn't be made; zero is Cluster API's default of 30 seconds.
	ConnectRetry time.Duration
	// Timeout is how long a call to a guest may take; zero is DefaultTimeout.
	Timeout time.Duration
	// Holder is what the operator records in status.operator of the HostedClusters that it holds; empty where it doesn't.
	Holder string
	// Clock tells how long to leave a guest alone that doesn't answer; nil is the real one.
	Clock clock.PassiveClock
	// Watches are kinds in the guests that other controllers look at.
	Watches []Watch
	// Egress decides which addresses a guest's API server may have; nil allows public ones.
	Egress *egress.Policy
	// Budget bounds what each guest may send; zero is its default.
	Budget egress.Budget
	// Ended is closed when the manager has ended; nil where the process ends with it.
	Ended <-chan struct{}
}

const (
	// DefaultTimeout of a call to a guest.
	DefaultTimeout = 10 * time.Second
	// connecting is how many guests are connected to or probed at a time. One that hangs takes five seconds of every thirty-five, so
	// that this many workers can bear some hundred of those; all that they do is to wait.
	connecting = 100
)

// Connections is the step that reaches guest clusters.
type Connections struct {
	management client.Client
	secrets    cache.Cache
	access     *kubeconfigs
	clusters   clustercache.ClusterCache
	events     *events
	timeout    time.Duration
	clock      clock.PassiveClock
	holder     string
	watches    []Watch
	ended      <-chan struct{}

	mu       sync.Mutex
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request] // clustercache's own; nil until it starts
	watching map[client.ObjectKey]*watching                          // by the Cluster
	outages  map[client.ObjectKey]*outage                            // by the Cluster
	stale    map[client.ObjectKey]bool                               // Clusters whose connection is to be made anew
}

var _ scope.Step = (*Connections)(nil)

// New adds Cluster API's clustercache, and a cache of the Secrets that it needs, to the manager.
func New(ctx context.Context, config Config) (*Connections, error) {
	mgr := config.Manager
	c := &Connections{
		management: mgr.GetClient(), watches: config.Watches, timeout: cmp.Or(config.Timeout, DefaultTimeout), clock: config.Clock, holder: config.Holder,
		ended: config.Ended, watching: map[client.ObjectKey]*watching{}, outages: map[client.ObjectKey]*outage{}, stale: map[client.ObjectKey]bool{},
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	c.events = newEvents(c.clock)

	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.HostedCluster{}, clusterIndex, indexByCluster); err != nil {
		return nil, fmt.Errorf("indexing hosted clusters by cluster: %w", err)
	}

	// One watch for kubeconfigs and for our own guest access: both carry Cluster API's label. The content of every other
	// Secret with that label, such as bootstrap data and private keys, never enters the operator's memory.
	named, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting cluster secrets: %w", err)
	}
	c.secrets, err = cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(),
		Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: labels.NewSelector().Add(*named), Transform: dropForeignSecrets},
		},
		HTTPClient: mgr.GetHTTPClient(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating the cache of cluster secrets: %w", err)
	}
	if err := mgr.Add(c.secrets); err != nil {
		return nil, fmt.Errorf("adding the cache of cluster secrets: %w", err)
	}

	tunnel, err := egress.NewTunnel(cmp.Or(config.Egress, &egress.Policy{}), config.Budget)
	if err != nil {
		return nil, err
	}
	c.access = newKubeconfigs(c.secrets, tunnel)
	for _, runnable := range []manager.Runnable{tunnel, c.access} {
		if err := mgr.Add(runnable); err != nil {
			return nil, fmt.Errorf("adding the connections to guests: %w", err)
		}
	}

	options, err := cacheOptions(config.Watches)
	if err != nil {
		return nil, err
	}
	c.clusters, err = clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:  c.access,
		ClusterFilter: func(cluster *clusterv1.Cluster) bool { return c.wanted(ctx, cluster) },
		Cache:         options,
		Client: clustercache.ClientOptions{
			UserAgent: v1beta1.ManagedByOperator,
			Timeout:   c.timeout,
			Cache:     clustercache.ClientCacheOptions{DisableFor: uncached()},
		},
	}, controller.Options{MaxConcurrentReconciles: connecting, NewQueue: c.newQueue})
	if err != nil {
		return nil, fmt.Errorf("setting up cluster connections: %w", err)
	}
	if retry, ok := c.clusters.(interface{ SetConnectionCreationRetryInterval(time.Duration) }); ok && config.ConnectRetry > 0 {
		retry.SetConnectionCreationRetryInterval(config.ConnectRetry)
	}
	// The connections would outlive the manager, which matters where an operator ends before its process does.
	if connections, ok := c.clusters.(interface{ Shutdown() }); ok {
		if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			<-ctx.Done()
			connections.Shutdown()
			return nil
		})); err != nil {
			return nil, fmt.Errorf("adding the end of cluster connections: %w", err)
		}
	}
	return c, nil
}

// Source emits a HostedCluster whenever its guest is connected, lost or misses probes, and when something in the guest changed that a step
// cares for. It belongs to exactly one controller.
func (c *Connections) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		c.events.start(queue)
		if err := c.startConnected(ctx, queue); err != nil {
			return fmt.Errorf("watching guest connections: %w", err)
		}
		informer, err := c.secrets.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching cluster secrets: %w", err)
		}
		if _, err := informer.AddEventHandler(c.onSecret(ctx)); err != nil {
			return fmt.Errorf("watching cluster secrets: %w", err)
		}
		return nil
	})
}

// startConnected emits a HostedCluster whenever its guest is connected, lost or misses probes, until the manager has ended. The controller that
// is woken may end before: clustercache waits for somebody to take its event (docs/upstream/clustercache-shutdown.md), and the manager
// waits for clustercache.
func (c *Connections) startConnected(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	connected := c.clusters.GetClusterSource("hostedcluster", func(ctx context.Context, cluster client.Object) []reconcile.Request {
		return c.requests(ctx, client.ObjectKeyFromObject(cluster))
	}, clustercache.WatchForProbeFailure(probeFailure))
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-c.ended
		stop()
	}()
	return connected.Start(ctx, queue)
}

// Secrets reads the Secrets of the management cluster that hold a guest's kubeconfig or Karpenter's guest access, from a
// watch. No other Secret has content there.
func (c *Connections) Secrets() client.Reader { return c.secrets }

// Of returns the guest of a HostedCluster for a controller of [Config.Watches]; nil while it isn't connected,
// or another operator holds it. It is nil, too, while the guest doesn't answer: then again says when to ask for it again.
func (c *Connections) Of(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (guest *scope.Guest, again time.Duration, err error) {
	key, ok := ClusterKey(hostedCluster)
	if holder := hostedCluster.Status.Operator; !ok || c.holder != "" && holder != "" && holder != c.holder {
		return nil, 0, nil
	}
	if consents, err := c.consents(ctx, hostedCluster, key); err != nil || !consents {
		return nil, 0, err // another HostedCluster's connection may stand
	}
	guest, err = c.connect(ctx, key)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if backoff := c.backoff(ctx, key); backoff > 0 {
		return nil, backoff, nil
	}
	return guest, 0, nil
}

// Unanswered says whether an error of a guest that Of has returned means that the guest didn't answer. That a controller of
// [Config.Watches] isn't answered is its own to deal with, and says nothing in GuestReachable: a webhook of the guest's admin may do that.
func Unanswered(guest *scope.Guest, err error) bool { return lostGuest(guest, err) }

// newQueue keeps clustercache's queue: a Cluster that its filter turned away is looked at again only when the Cluster
// changes, but what the filter says depends on the HostedCluster.
func (c *Connections) newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = queue
	return queue
}

// look makes clustercache look at a Cluster again.
func (c *Connections) look(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue != nil {
		c.queue.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// reconnect has clustercache drop a connection and make it anew, if it was made with another kubeconfig: by itself it would notice
// only after five failed probes, which take most of a minute. A kubeconfig that can't be used leaves what there is.
// A token that was renewed reaches the connection by its file.
func (c *Connections) reconnect(cluster types.NamespacedName, kubeconfig *corev1.Secret) {
	c.mu.Lock()
	w, connected := c.watching[cluster]
	c.mu.Unlock()
	if connected {
		config, err := c.access.config(kubeconfig)
		if err != nil {
			return
		}
		if !sameAccess(w.connection, config) {
			c.mu.Lock()
			c.stale[cluster] = true
			c.mu.Unlock()
		}
	}
	c.look(cluster)
}

// isStale is true once for each connection that is to be made anew.
func (c *Connections) isStale(cluster types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale := c.stale[cluster]
	if stale {
		delete(c.stale, cluster)
		delete(c.outages, cluster)
	}
	return stale
}

// sameAccess compares what a kubeconfig says of where an API server is, how to know it, and who asks.
func sameAccess(a, b *rest.Config) bool {
	return a.Host == b.Host && a.ServerName == b.ServerName && bytes.Equal(a.CAData, b.CAData) &&
		bytes.Equal(a.CertData, b.CertData) && bytes.Equal(a.KeyData, b.KeyData) &&
		a.BearerTokenFile == b.BearerTokenFile && (a.BearerTokenFile != "" || a.BearerToken == b.BearerToken)
}

// forget drops what is known of a connection that is no more.
func (c *Connections) forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, known := c.watching[cluster]; known {
		connectionsLost.Of(w.hostedCluster).Inc()
	}
	delete(c.watching, cluster)
	delete(c.outages, cluster)
}

// Release drops the connection to the guest of a HostedCluster that the operator has let go of.
func (c *Connections) Release(hostedCluster *v1beta1.HostedCluster) {
	key, ok := ClusterKey(hostedCluster)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.watching, key)
	delete(c.outages, key)
	c.mu.Unlock()
	c.access.forget(key)
	c.look(key)
}

// wanted is true while a HostedCluster uses AutoNode on the Cluster, or has still to be cleaned up after.
func (c *Connections) wanted(ctx context.Context, cluster *clusterv1.Cluster) bool {
	if key := client.ObjectKeyFromObject(cluster); c.isStale(key) {
		c.look(key)
		return false // which ends the connection
	}
	hostedClusters, err := c.hostedClusters(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return true // never drop a connection for an error
	}
	for i := range hostedClusters {
		if !wantsGuest(&hostedClusters[i]) {
			continue
		}
		if consents, err := c.consents(ctx, &hostedClusters[i], client.ObjectKeyFromObject(cluster)); consents || err != nil {
			return true
		}
	}
	return false
}

// consents reports whether a Cluster may be connected to for a HostedCluster.
func (c *Connections) consents(ctx context.Context, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) (bool, error) {
	if hostedCluster.Spec.AutoNode == nil || !hostedCluster.DeletionTimestamp.IsZero() {
		return consent.ToRemove(ctx, c.management, hostedCluster, cluster)
	}
	return consent.Given(ctx, c.management, hostedCluster, cluster)
}

func (c *Connections) hostedClusters(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error) {
	list := &v1beta1.HostedClusterList{}
	if err := c.management.List(ctx, list, client.MatchingFields{clusterIndex: cluster.String()}); err != nil {
		return nil, fmt.Errorf("listing the hosted clusters of %s: %w", cluster, err)
	}
	return list.Items, nil
}

func (c *Connections) requests(ctx context.Context, cluster client.ObjectKey) []reconcile.Request {
	hostedClusters, err := c.hostedClusters(ctx, cluster)
	if err != nil {
		return nil // the cache is being stopped
	}
	requests := make([]reconcile.Request, 0, len(hostedClusters))
	for i := range hostedClusters {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&hostedClusters[i])})
	}
	return requests
}
