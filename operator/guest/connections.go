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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
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
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/scope"
)

// clusterIndex indexes HostedClusters by their Cluster.
const clusterIndex = "autonode.io/cluster"

// Config of New.
type Config struct {
	// Manager of the management cluster. Its scheme needs the kinds of AddToScheme: the guests' clients use it.
	Manager manager.Manager
	// ConnectRetry is the back-off after a failed connection attempt; zero is Cluster API's default of 30 seconds.
	ConnectRetry time.Duration
	// Timeout of a call to a guest; zero is DefaultTimeout.
	Timeout time.Duration
	// Holder is the operator's value of status.operator in the HostedClusters that it holds; empty if it records none.
	Holder string
	// Clock of the back-off for guests that don't answer; nil is the real one.
	Clock clock.PassiveClock
	// Watches are the kinds in guests that other controllers watch.
	Watches []Watch
	// Egress decides which addresses a guest's API server may have; nil allows public ones.
	Egress *egress.Policy
	// Budget limits what each guest may send; zero is the default.
	Budget egress.Budget
	// Ended is closed when the manager has ended; nil if the process ends with it.
	Ended <-chan struct{}
}

const (
	// DefaultTimeout of a call to a guest.
	DefaultTimeout = 10 * time.Second
	// connecting is the concurrency limit of connection attempts and probes. A guest that hangs takes five seconds of
	// every thirty-five, so this many workers handle some hundred of them; all they do is wait.
	connecting = 100
)

// Connections is the step that connects to guest clusters.
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
	kinds      func(schema.GroupVersionKind) store.Kind
	codecs     serializer.CodecFactory // of the guests' scheme; making one for each guest costs memory
	ended      <-chan struct{}

	mu       sync.Mutex
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request] // clustercache's own; nil until it starts
	watching map[client.ObjectKey]*watching                          // by the Cluster
	stores   map[client.ObjectKey]*opened                            // by the Cluster
	shut     bool                                                    // the manager ends
	outages  map[client.ObjectKey]*outage                            // by the Cluster
	stale    map[client.ObjectKey]bool                               // Clusters whose connection is to be made anew
}

var _ scope.Step = (*Connections)(nil)

// New adds Cluster API's clustercache, and a cache of the Secrets that it needs, to the manager.
func New(ctx context.Context, config Config) (*Connections, error) {
	mgr := config.Manager
	c := &Connections{
		management: mgr.GetClient(), watches: config.Watches, timeout: cmp.Or(config.Timeout, DefaultTimeout), clock: config.Clock, holder: config.Holder,
		ended: config.Ended, codecs: serializer.NewCodecFactory(mgr.GetScheme()), stores: map[client.ObjectKey]*opened{},
		watching: map[client.ObjectKey]*watching{}, outages: map[client.ObjectKey]*outage{}, stale: map[client.ObjectKey]bool{},
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	c.events = newEvents(c.clock)

	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.HostedCluster{}, clusterIndex, indexByCluster); err != nil {
		return nil, fmt.Errorf("indexing hosted clusters by cluster: %w", err)
	}

	// One watch for kubeconfigs and for the operator's guest access: both have Cluster API's label. The content of
	// other Secrets with that label, such as bootstrap data and private keys, never enters the operator's memory.
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

	if c.kinds, err = kept(mgr.GetScheme(), config.Watches); err != nil {
		return nil, err
	}
	c.clusters, err = clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:  c.access,
		ClusterFilter: func(cluster *clusterv1.Cluster) bool { return c.wanted(ctx, cluster) },
		Client:        clustercache.ClientOptions{UserAgent: v1beta1.ManagedByOperator, Timeout: c.timeout},
	}, controller.Options{MaxConcurrentReconciles: connecting, NewQueue: c.newQueue})
	if err != nil {
		return nil, fmt.Errorf("setting up cluster connections: %w", err)
	}
	if retry, ok := c.clusters.(interface{ SetConnectionCreationRetryInterval(time.Duration) }); ok && config.ConnectRetry > 0 {
		retry.SetConnectionCreationRetryInterval(config.ConnectRetry)
	}
	if err := mgr.Add(manager.RunnableFunc(c.closeLost)); err != nil {
		return nil, fmt.Errorf("adding the end of cluster connections: %w", err)
	}
	return c, nil
}

// Source emits a HostedCluster when its guest is connected, lost or misses probes, and when an object that a step reads
// changes in the guest. Only one controller may use it.
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

// startConnected emits a HostedCluster when its guest is connected, lost or misses probes, until the manager has ended.
// It drains clustercache's events even after the controller has ended: clustercache blocks until each is received
// (docs/upstream/clustercache-shutdown.md), and the manager waits for clustercache.
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

// Secrets reads the Secrets of the management cluster with a guest's kubeconfig or Karpenter's guest access, from a
// watch. It has no content of other Secrets.
func (c *Connections) Secrets() client.Reader { return c.secrets }

// Of returns the guest of a HostedCluster for a controller of [Config.Watches]. It returns nil while the guest isn't
// connected or another operator holds it. While the guest doesn't answer it returns nil too, and the time of the next
// attempt.
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

// Unanswered reports whether an error of a guest from Of means that the guest didn't answer. A controller of
// [Config.Watches] handles such errors itself, and GuestReachable doesn't report them: a webhook of the guest's admin
// can cause them.
func Unanswered(guest *scope.Guest, err error) bool { return lostGuest(guest, err) }

// newQueue keeps clustercache's queue. clustercache requeues a Cluster that its filter rejected only when the Cluster
// changes, but the filter depends on the HostedCluster.
func (c *Connections) newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = queue
	return queue
}

// look has clustercache reconcile a Cluster.
func (c *Connections) look(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue != nil {
		c.queue.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// reconnect has clustercache replace a connection that was made with another kubeconfig. clustercache itself notices
// only after five failed probes, almost a minute later. An invalid kubeconfig keeps the connection. A renewed token
// reaches the connection by its file.
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

// isStale returns true once for each connection that has to be replaced.
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

// sameAccess compares the servers, their certificate authorities and the credentials of two kubeconfigs.
func sameAccess(a, b *rest.Config) bool {
	return a.Host == b.Host && a.ServerName == b.ServerName && bytes.Equal(a.CAData, b.CAData) &&
		bytes.Equal(a.CertData, b.CertData) && bytes.Equal(a.KeyData, b.KeyData) &&
		a.BearerTokenFile == b.BearerTokenFile && (a.BearerTokenFile != "" || a.BearerToken == b.BearerToken)
}

// forget drops the state of a connection that no longer exists.
func (c *Connections) forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, known := c.watching[cluster]; known {
		connectionsLost.Of(w.hostedCluster).Inc()
	}
	delete(c.watching, cluster)
	delete(c.outages, cluster)
	c.close(cluster)
}

// Release closes the connection to the guest of a HostedCluster that the operator has released.
func (c *Connections) Release(hostedCluster *v1beta1.HostedCluster) {
	key, ok := ClusterKey(hostedCluster)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.watching, key)
	delete(c.outages, key)
	c.close(key)
	c.mu.Unlock()
	c.access.forget(key)
	c.look(key)
}

// wanted reports whether a HostedCluster uses AutoNode on the Cluster, or isn't cleaned up yet.
func (c *Connections) wanted(ctx context.Context, cluster *clusterv1.Cluster) bool {
	if key := client.ObjectKeyFromObject(cluster); c.isStale(key) {
		c.look(key)
		return false // which ends the connection
	}
	hostedClusters, err := c.HostedClusters(ctx, client.ObjectKeyFromObject(cluster))
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

// consents reports whether a Cluster allows a connection for a HostedCluster.
func (c *Connections) consents(ctx context.Context, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) (bool, error) {
	if hostedCluster.Spec.AutoNode == nil || !hostedCluster.DeletionTimestamp.IsZero() {
		return consent.ToRemove(ctx, c.management, hostedCluster, cluster)
	}
	return consent.Given(ctx, c.management, hostedCluster, cluster)
}

// HostedClusters returns those that stand for a Cluster.
func (c *Connections) HostedClusters(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error) {
	list := &v1beta1.HostedClusterList{}
	if err := c.management.List(ctx, list, client.MatchingFields{clusterIndex: cluster.String()}); err != nil {
		return nil, fmt.Errorf("listing the hosted clusters of %s: %w", cluster, err)
	}
	return list.Items, nil
}

func (c *Connections) requests(ctx context.Context, cluster client.ObjectKey) []reconcile.Request {
	hostedClusters, err := c.HostedClusters(ctx, cluster)
	if err != nil {
		return nil // the cache is being stopped
	}
	requests := make([]reconcile.Request, 0, len(hostedClusters))
	for i := range hostedClusters {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&hostedClusters[i])})
	}
	return requests
}
