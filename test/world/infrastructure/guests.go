// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	clusterkubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/infrastructure/kubelet"
)

// kubeconfigSecret reads the admin kubeconfig that Cluster API's contract has control plane providers write.
func kubeconfigSecret(management client.Reader) func(context.Context, types.NamespacedName) (*rest.Config, error) {
	return func(ctx context.Context, cluster types.NamespacedName) (*rest.Config, error) {
		kubeconfig, err := clusterkubeconfig.FromSecret(ctx, management, cluster)
		if err != nil {
			return nil, fmt.Errorf("reading the guest's kubeconfig: %w", err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("reading the guest's kubeconfig: %w", err)
		}
		return config, nil
	}
}

// guest is the connection to one guest cluster and the kubelets in it.
type guest struct {
	config *rest.Config
	client kubernetes.Interface
	fleet  *kubelet.Fleet
	// requests are the guest's certificate requests: one watch for all kubelets.
	requests toolscache.SharedIndexInformer
	// unwatch ends that watch.
	unwatch func()
}

func (g *guest) stop() {
	g.unwatch()
	g.fleet.Stop()
}

// guests holds one connection per guest, made when it is first needed.
type guests struct {
	// access finds how a guest is reached now, as an administrator.
	access     func(ctx context.Context, cluster types.NamespacedName) (*rest.Config, error)
	logger     logr.Logger
	identities *identities

	mutex   sync.Mutex
	cluster map[types.NamespacedName]*guest
	stopped bool
}

var errStopped = errors.New("the provider is being stopped")

// get returns the connection to a guest. It doesn't contact the guest.
func (g *guests) get(ctx context.Context, cluster types.NamespacedName) (*guest, error) {
	if known := g.known(cluster); known != nil {
		return known, nil
	}
	return g.refresh(ctx, cluster)
}

// known returns the connection to a guest where there is one, else nil.
func (g *guests) known(cluster types.NamespacedName) *guest {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.cluster[cluster]
}

// refresh connects to a guest, and reconnects if its kubeconfig has changed. Running kubelets move over.
func (g *guests) refresh(ctx context.Context, cluster types.NamespacedName) (*guest, error) {
	config, err := g.access(ctx, cluster)
	if err != nil {
		return nil, err
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.stopped {
		return nil, errStopped
	}
	old := g.cluster[cluster]
	if old != nil && sameAccess(old.config, config) {
		return old, nil
	}
	fresh, err := g.connect(cluster, config)
	if err != nil {
		return nil, err
	}
	if old != nil {
		for _, node := range old.fleet.Running() {
			fresh.fleet.Run(node)
		}
		old.stop()
	}
	g.cluster[cluster] = fresh
	return fresh, nil
}

func (g *guests) connect(cluster types.NamespacedName, config *rest.Config) (*guest, error) {
	unlimited := rest.CopyConfig(config)
	unlimited.QPS = -1
	unlimited.UserAgent = "autonode-world-kubelets"
	clientset, err := kubernetes.NewForConfig(unlimited)
	if err != nil {
		return nil, fmt.Errorf("building a client of guest %s: %w", cluster, err)
	}
	fleet, err := kubelet.Start(kubelet.Config{
		Guest:    clientset,
		Logger:   g.logger.WithValues("guest", cluster.String()),
		Identity: "kubelet",
	})
	if err != nil {
		return nil, fmt.Errorf("starting the kubelets of guest %s: %w", cluster, err)
	}
	connected := &guest{config: config, client: clientset, fleet: fleet}
	if connected.requests, connected.unwatch, err = g.watchRequests(cluster, clientset); err != nil {
		fleet.Stop()
		return nil, err
	}
	return connected, nil
}

// watchRequests watches a guest's certificate requests and wakes the machines that wait for one.
func (g *guests) watchRequests(cluster types.NamespacedName, client kubernetes.Interface) (toolscache.SharedIndexInformer, func(), error) {
	informer := certificatesinformers.NewCertificateSigningRequestInformer(client, 0, toolscache.Indexers{})
	wake := func(object any) {
		if key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			g.identities.wake(cluster, key)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, after any) { wake(after) }, DeleteFunc: wake,
	}); err != nil {
		return nil, nil, fmt.Errorf("watching certificate requests: %w", err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), g.logger))
	var watching sync.WaitGroup
	watching.Go(func() { informer.RunWithContext(ctx) })
	return informer, func() {
		cancel()
		watching.Wait()
	}, nil
}

// drop ends the connection to the guest of a Cluster that has gone.
func (g *guests) drop(cluster any) {
	key, err := toolscache.DeletionHandlingObjectToName(cluster)
	if err != nil {
		return
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if known := g.cluster[types.NamespacedName(key)]; known != nil {
		known.stop()
		delete(g.cluster, types.NamespacedName(key))
	}
}

// stop ends all connections; there will be no new ones.
func (g *guests) stop() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.stopped = true
	for name, known := range g.cluster {
		known.stop()
		delete(g.cluster, name)
	}
}

func sameAccess(a, b *rest.Config) bool {
	return a.Host == b.Host && a.BearerToken == b.BearerToken &&
		bytes.Equal(a.CAData, b.CAData) && bytes.Equal(a.CertData, b.CertData) && bytes.Equal(a.KeyData, b.KeyData)
}
