// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/internal/clusterstatus/kubeconfig"
	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/operator/guest/egress"
)

// access decides which guests to connect to, and with which client configuration.
type access struct {
	management  client.Client
	secrets     cache.Cache
	dialer      *egress.Dialer
	kubeconfigs *kubeconfigs

	// queue of the Clusters: whether to connect to one depends on its HostedCluster too.
	queue controllerqueue.Queue[reconcile.Request]

	mu    sync.Mutex
	stale map[client.ObjectKey]bool // Clusters to connect to again
}

// Consent is read from the Namespace of a control plane.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch

// newAccess adds a cache of the Secrets that the connections need to the manager.
func newAccess(mgr manager.Manager, dialer *egress.Dialer) (*access, error) {
	// One watch for kubeconfigs and for the operator's guest access: both have Cluster API's label. The content of
	// other Secrets with that label, such as bootstrap data and private keys, never enters the operator's memory.
	named, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting cluster secrets: %w", err)
	}
	secrets, err := cache.New(mgr.GetConfig(), cache.Options{
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
	if err := mgr.Add(secrets); err != nil {
		return nil, fmt.Errorf("adding the cache of cluster secrets: %w", err)
	}
	a := &access{
		management: mgr.GetClient(), secrets: secrets, dialer: dialer, kubeconfigs: newKubeconfigs(dialer), stale: map[client.ObjectKey]bool{},
	}
	if err := mgr.Add(a.kubeconfigs); err != nil {
		return nil, fmt.Errorf("adding the kubeconfigs of guests: %w", err)
	}
	return a, nil
}

// config returns the client configuration of a Cluster's guest.
func (a *access) config(ctx context.Context, cluster client.ObjectKey) (*rest.Config, error) {
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
	read := &corev1.Secret{}
	if err := a.secrets.Get(ctx, key, read); err != nil {
		return nil, fmt.Errorf("reading kubeconfig Secret %s: %w", key, err)
	}
	if !isKubeconfig(read) {
		return nil, fmt.Errorf("%s holds no kubeconfig", key)
	}
	config, err := a.kubeconfigs.config(read)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig Secret %s: %w", key, err)
	}
	return config, nil
}

// wanted reports whether a HostedCluster uses AutoNode on a Cluster, or isn't cleaned up yet.
func (a *access) wanted(ctx context.Context, cluster client.ObjectKey) bool {
	hostedClusters, err := a.hostedClusters(ctx, cluster)
	if err != nil {
		return true // never drop a connection for an error
	}
	for i := range hostedClusters {
		if !wantsGuest(&hostedClusters[i]) {
			continue
		}
		if consents, err := a.consents(ctx, &hostedClusters[i], cluster); consents || err != nil {
			return true
		}
	}
	return false
}

// consents reports whether a Cluster allows a connection for a HostedCluster.
func (a *access) consents(ctx context.Context, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) (bool, error) {
	if hostedCluster.Spec.AutoNode == nil || !hostedCluster.DeletionTimestamp.IsZero() {
		return consent.ToRemove(ctx, a.management, hostedCluster, cluster)
	}
	return consent.Given(ctx, a.management, hostedCluster, cluster)
}

// hostedClusters returns those that stand for a Cluster.
func (a *access) hostedClusters(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error) {
	list := &v1beta1.HostedClusterList{}
	if err := a.management.List(ctx, list, client.MatchingFields{clusterIndex: cluster.String()}); err != nil {
		return nil, fmt.Errorf("listing the hosted clusters of %s: %w", cluster, err)
	}
	return list.Items, nil
}

// enqueue has a Cluster reconciled.
func (a *access) enqueue(cluster client.ObjectKey) {
	a.queue.Add(reconcile.Request{NamespacedName: cluster})
}

// replace replaces a connection that was made with another kubeconfig. Probes would notice after almost a minute. An
// invalid kubeconfig keeps the connection. A renewed token reaches the connection by its file.
func (a *access) replace(cluster client.ObjectKey, connection *rest.Config, kubeconfig *corev1.Secret) {
	if connection != nil {
		config, err := a.kubeconfigs.config(kubeconfig)
		if err != nil {
			return
		}
		if !sameAccess(connection, config) {
			a.mu.Lock()
			a.stale[cluster] = true
			a.mu.Unlock()
		}
	}
	a.enqueue(cluster)
}

// takeStale returns true once for each connection that has to be replaced.
func (a *access) takeStale(cluster client.ObjectKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	stale := a.stale[cluster]
	delete(a.stale, cluster)
	return stale
}

// sameAccess compares the servers, their certificate authorities and the credentials of two kubeconfigs.
func sameAccess(a, b *rest.Config) bool {
	return a.Host == b.Host && a.ServerName == b.ServerName && bytes.Equal(a.CAData, b.CAData) &&
		bytes.Equal(a.CertData, b.CertData) && bytes.Equal(a.KeyData, b.KeyData) &&
		a.BearerTokenFile == b.BearerTokenFile && (a.BearerTokenFile != "" || a.BearerToken == b.BearerToken)
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

// clusterOf returns the Cluster of a kubeconfig.
func clusterOf(kubeconfig *corev1.Secret) client.ObjectKey {
	return client.ObjectKey{Namespace: kubeconfig.Namespace, Name: kubeconfig.Labels[clusterv1.ClusterNameLabel]}
}
