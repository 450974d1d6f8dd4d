// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// releaseTimeout bounds how long the start may be held up by an attempt to make it shorter.
const releaseTimeout = 5 * time.Second

// managementConfig leads to the management cluster: by its own kubeconfig if there is one, else by what this program is
// given anyway, its KUBECONFIG or its service account.
func managementConfig(opts Options) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if opts.ManagementKubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", opts.ManagementKubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	return config, nil
}

// setEnvironment says what Karpenter core takes from the environment. It has to come after managementConfig: core finds the
// guest by the same means as that finds the management cluster.
func setEnvironment(opts Options) error {
	if opts.GuestKubeconfig != "" {
		if _, err := os.Stat(opts.GuestKubeconfig); err != nil {
			return fmt.Errorf("finding the guest cluster: %w", err)
		}
		if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, opts.GuestKubeconfig); err != nil {
			return fmt.Errorf("finding the guest cluster: %w", err)
		}
	}
	for name, value := range map[string]string{
		"LEADER_ELECTION_NAMESPACE": opts.Namespace,
		// Several clusters may share a namespace, and one Lease would let only one of them have nodes.
		"LEADER_ELECTION_NAME": "karpenter-leader-election-" + opts.ClusterName,
	} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting up the leader election: %w", err)
		}
	}
	return nil
}

// releasePredecessor makes this pod's Lease free if a container that crashed has left it held. Where that fails the Lease expires.
func releasePredecessor(ctx context.Context, config *rest.Config, pod string) {
	opts := options.FromContext(ctx)
	if opts.DisableLeaderElection {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	released := false
	leases, err := coordinationclient.NewForConfig(config)
	if err == nil {
		released, err = leadership.Release(ctx, leases.Leases(opts.LeaderElectionNamespace), opts.LeaderElectionName, pod, clock.RealClock{})
	}
	switch logger := ctrl.Log.WithName("leadership"); {
	case err != nil:
		logger.Error(err, "unable to release the lease of the container before this one; waiting until it expires")
	case released:
		logger.Info("the container before this one held the lease when it ended; released it")
	}
}

// managementCluster is the control-plane namespace of the management cluster, and nothing else there. Its caches start on
// every replica, so that one that takes over has everything in memory.
type managementCluster struct {
	cluster.Cluster
	// objects are those that a node class names: templates, MachineDeployments.
	objects *informer.Set
	// infrastructure are the infrastructure machines of this provider. They change often while they start: what watches templates
	// needn't hear of it.
	infrastructure *informer.Set
}

// newManagement connects to the management cluster.
func newManagement(config *rest.Config, opts Options) (*managementCluster, error) {
	config = rest.CopyConfig(config)
	// Machines are created as fast as Karpenter asks for them; the API server's own priority and fairness is the limit.
	config.QPS = -1
	// Machines are made with Cluster API's finalizer, whose name API servers warn about each time.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering Cluster API's types: %w", err)
	}
	ours, err := oursSelector(opts)
	if err != nil {
		return nil, err
	}
	management, err := cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache = cache.Options{
			DefaultNamespaces: map[string]cache.Config{opts.Namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject:          map[client.Object]cache.ByObject{&clusterv1.Machine{}: {Label: ours}},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(management.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	return &managementCluster{
		Cluster: management,
		objects: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Versions: template.Versions,
		}),
		infrastructure: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Selector: ours,
		}),
	}, nil
}

// addTo has the caches start with the guest's manager, which is ready when they have synced.
func (m *managementCluster) addTo(ctx context.Context, guest *operator.Operator) error {
	if err := machine.Index(ctx, m.GetFieldIndexer()); err != nil {
		return err
	}
	// Asked for now, so that it is synced before anything reads it.
	if _, err := m.GetCache().GetInformer(ctx, &clusterv1.Cluster{}); err != nil {
		return fmt.Errorf("caching Clusters: %w", err)
	}
	if err := errors.Join(guest.Add(m.Cluster), guest.Add(m.objects), guest.Add(m.infrastructure)); err != nil {
		return fmt.Errorf("adding the management cluster: %w", err)
	}
	if err := guest.AddReadyzCheck("management", func(req *http.Request) error {
		if !m.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("the management cluster's objects haven't been read yet")
		}
		return nil
	}); err != nil {
		return fmt.Errorf("adding the management cluster's readiness: %w", err)
	}
	return nil
}

// oursSelector selects what this provider makes for its cluster.
func oursSelector(opts Options) (labels.Selector, error) {
	cluster, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Equals, []string{opts.ClusterName})
	if err != nil {
		return nil, fmt.Errorf("selecting Machines of Cluster %s: %w", opts.ClusterName, err)
	}
	claimed, err := labels.NewRequirement(v1alpha1.NodeClaimUIDLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting Machines of NodeClaims: %w", err)
	}
	return labels.NewSelector().Add(*cluster, *claimed), nil
}
