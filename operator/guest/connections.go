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
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/consent"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/link"
	"github.com/autonode-io/autonode/operator/guest/store"
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
	Watches []Watch
	// Egress decides which addresses a guest's API server may have; nil allows public ones.
	Egress *egress.Policy
	// Budget limits what each guest may send, and Bounds what is kept of it; zero is the default.
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
	management client.Client
	secrets    cache.Cache
	access     *kubeconfigs
	links      links
	events     *events
	timeout    time.Duration
	clock      clock.PassiveClock
	holder     string
	watches    []Watch

	mu       sync.Mutex
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request] // of the Clusters; nil until the controller starts
	watching map[client.ObjectKey]*watching                          // by the Cluster
	outages  map[client.ObjectKey]*outage                            // by the Cluster
	stale    map[client.ObjectKey]bool                               // Clusters to connect to again
	slow     map[client.ObjectKey]time.Time                          // until when HostedClusters count as slow
}

var _ scope.Step = (*Connections)(nil)

// links are the connections; see [link.Links].
type links interface {
	Of(cluster client.ObjectKey) (*link.Guest, error)
	Health(cluster client.ObjectKey) link.Health
}

// New adds the connections, and a cache of the Secrets that they need, to the manager.
func New(ctx context.Context, config Config) (*Connections, error) {
	mgr := config.Manager
	c := &Connections{
		management: mgr.GetClient(), watches: config.Watches, timeout: cmp.Or(config.Timeout, DefaultTimeout), clock: config.Clock, holder: config.Holder,
		watching: map[client.ObjectKey]*watching{}, outages: map[client.ObjectKey]*outage{}, stale: map[client.ObjectKey]bool{},
		slow: map[client.ObjectKey]time.Time{},
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

	c.access = newKubeconfigs(egress.NewDialer(cmp.Or(config.Egress, &egress.Policy{}), config.Budget))
	if err := mgr.Add(c.access); err != nil {
		return nil, fmt.Errorf("adding the connections to guests: %w", err)
	}

	kinds, err := kept(mgr.GetScheme(), config.Watches)
	if err != nil {
		return nil, err
	}
	links := link.New(link.Config{
		Management: c.management, Scheme: mgr.GetScheme(), Kinds: kinds, Wanted: c.wanted, Access: c.accessTo, Changed: c.changed,
		Bounds: config.Bounds, Backoff: cmp.Or(config.Budget.Backoff, egress.DefaultBackoff), Noticed: c.noticed,
		UnresponsiveAfter: probeFailure, Retry: cmp.Or(config.ConnectRetry, DefaultConnectRetry), Timeout: c.timeout, Clock: clock.RealClock{},
	})
	c.links = links
	if err := mgr.Add(links); err != nil {
		return nil, fmt.Errorf("adding the end of the connections to guests: %w", err)
	}
	if err := builder.ControllerManagedBy(mgr).Named("guest").For(&clusterv1.Cluster{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: connecting, NewQueue: c.newQueue}).Complete(links); err != nil {
		return nil, fmt.Errorf("setting up the connections to guests: %w", err)
	}
	return c, nil
}

// Source emits a HostedCluster when its guest is connected, lost or misses probes, and when an object that a step reads
// changes in the guest. Only one controller may use it.
func (c *Connections) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		c.events.start(queue)
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

// changed wakes the HostedClusters whose guest was connected or lost, or misses probes.
func (c *Connections) changed(ctx context.Context, cluster client.ObjectKey) {
	for _, request := range c.requests(ctx, cluster) {
		c.events.enqueue(request.NamespacedName, 0)
	}
}

// noticed wakes the HostedClusters of a guest some of whose objects can't be read, within the guest's budget.
func (c *Connections) noticed(ctx context.Context, cluster client.ObjectKey) {
	for _, request := range c.requests(ctx, cluster) {
		c.events.wake(request.NamespacedName, burst)
	}
}

// accessTo returns the client configuration of a Cluster's guest.
func (c *Connections) accessTo(ctx context.Context, cluster client.ObjectKey) (*rest.Config, error) {
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
	read := &corev1.Secret{}
	if err := c.secrets.Get(ctx, key, read); err != nil {
		return nil, fmt.Errorf("reading kubeconfig Secret %s: %w", key, err)
	}
	if !isKubeconfig(read) {
		return nil, fmt.Errorf("%s holds no kubeconfig", key)
	}
	config, err := c.access.config(read)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig Secret %s: %w", key, err)
	}
	return config, nil
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
	guest, err = c.connect(key, client.ObjectKeyFromObject(hostedCluster))
	if errors.Is(err, link.ErrNotConnected) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if backoff := c.backoff(key); backoff > 0 {
		return nil, backoff, nil
	}
	return guest, 0, nil
}

// Unanswered reports whether an error of a guest from Of means that the guest didn't answer. A controller of
// [Config.Watches] handles such errors itself, and GuestReachable doesn't report them: a webhook of the guest's admin
// can cause them.
func Unanswered(guest *scope.Guest, err error) bool { return lostGuest(guest, err) }

// newQueue keeps the queue of the Clusters: whether to connect to one depends on its HostedCluster too.
func (c *Connections) newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = queue
	return queue
}

// look has a Cluster reconciled.
func (c *Connections) look(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue != nil {
		c.queue.Add(reconcile.Request{NamespacedName: cluster})
	}
}

// reconnect replaces a connection that was made with another kubeconfig. Probes would notice after almost a minute. An
// invalid kubeconfig keeps the connection. A renewed token reaches the connection by its file.
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
