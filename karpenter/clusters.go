// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/lenient"
)

// releaseTimeout limits the attempt to release the predecessor's Lease at startup.
const releaseTimeout = 5 * time.Second

// managementConfig returns the management cluster's configuration: its own kubeconfig, else this program's KUBECONFIG
// or service account.
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

// setEnvironment sets the environment variables that Karpenter core reads. Call it after managementConfig: core finds
// the guest in the way that finds the management cluster.
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
		// Several clusters may share a namespace; each needs its own Lease.
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

// releasePredecessor releases this pod's Lease if a crashed container left it held. If that fails, the Lease expires.
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
		logger.Error(err, "releasing the lease of the previous container; waiting for it to expire")
	case released:
		logger.Info("released the lease of the previous container")
	}
}

// election is Karpenter's leader-election Lease, which outlives its processes.
type election struct {
	config *rest.Config
	opts   *options.Options
}

var _ capacity.Memory = election{}

// isFirst reports whether no process but this one was ever elected; false if that isn't known.
func (e election) isFirst(ctx context.Context) (bool, error) {
	if e.opts.DisableLeaderElection {
		return false, nil
	}
	_, lease, err := e.lease(ctx)
	if err != nil {
		return false, err
	}
	return ptr.Deref(lease.Spec.LeaseTransitions, 0) == 0, nil
}

// Governed implements capacity.Memory. Without an election nothing is remembered.
func (e election) Governed(ctx context.Context) (bool, error) {
	if e.opts.DisableLeaderElection {
		return false, nil
	}
	_, lease, err := e.lease(ctx)
	if err != nil {
		return false, err
	}
	return lease.Annotations[v1alpha1.LeasedAnnotation] == "true", nil
}

// Remember implements capacity.Memory. It fails if the elector renews the Lease at the same time.
func (e election) Remember(ctx context.Context, governed bool) error {
	if e.opts.DisableLeaderElection {
		return nil
	}
	leases, lease, err := e.lease(ctx)
	if err != nil || (lease.Annotations[v1alpha1.LeasedAnnotation] == "true") == governed {
		return err
	}
	delete(lease.Annotations, v1alpha1.LeasedAnnotation)
	if governed {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.LeasedAnnotation, "true")
	}
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the lease: %w", err)
	}
	return nil
}

func (e election) lease(ctx context.Context) (coordinationclient.LeaseInterface, *coordinationv1.Lease, error) {
	leases, err := coordinationclient.NewForConfig(e.config)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the lease: %w", err)
	}
	in := leases.Leases(e.opts.LeaderElectionNamespace)
	lease, err := in.Get(ctx, e.opts.LeaderElectionName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the lease: %w", err)
	}
	return in, lease, nil
}

// managementCluster reads the control-plane namespace of the management cluster only. Its caches start on every
// replica, so that a standby can take over at once.
type managementCluster struct {
	cluster.Cluster
	// typed decodes what Cluster reads.
	typed *lenient.Decoder
	// objects caches what node classes name: templates and MachineDeployments.
	objects *informer.Set
	// sharedCatalogs caches the catalogs that the platform shares with all clusters; nil if it shares none.
	sharedCatalogs *informer.Set
	// leases caches the CapacityLease, which an older management cluster doesn't serve.
	leases *informer.Set
	// infrastructure caches this provider's infrastructure machines. They change often during launches, so template
	// watches exclude them.
	infrastructure *informer.Set
	// controlPlanes caches the infrastructure machines of the Cluster's control plane, as far as there are any.
	controlPlanes *informer.Set
}

// logAnswers logs why a watch ended if the management cluster has answered. That it doesn't answer is logged once for all
// watches, by package leadership.
func logAnswers(ctx context.Context, reflector *toolscache.Reflector, err error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		return
	}
	log.FromContext(ctx).V(1).Info("watch ended", "type", reflector.TypeDescription(), "error", err.Error())
}

// newManagement connects to the management cluster.
func newManagement(config *rest.Config, opts Options, report func(*metav1.PartialObjectMetadata, string)) (*managementCluster, error) {
	config = rest.CopyConfig(config)
	// No client-side limit: the API server's priority and fairness applies.
	config.QPS = -1
	// API servers warn about the name of Cluster API's finalizer on each create.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme), autonodev1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering Cluster API's types: %w", err)
	}
	ours, err := clusterSelector(opts, v1alpha1.NodeClaimUIDLabel)
	if err != nil {
		return nil, err
	}
	controlPlane, err := clusterSelector(opts, clusterv1.MachineControlPlaneLabel)
	if err != nil {
		return nil, err
	}
	typed := lenient.New(lenient.Config{Scheme: scheme, Report: report})
	typedConfig := rest.CopyConfig(config)
	typed.Wrap(typedConfig)
	management, err := cluster.New(typedConfig, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache = cache.Options{
			DefaultNamespaces: map[string]cache.Config{opts.Namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&clusterv1.Machine{}: {Label: ours},
				&clusterv1.Cluster{}: {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, opts.ClusterName)},
			},
			DefaultWatchErrorHandler: logAnswers,
			NewInformer:              typed.NewInformer,
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	m := &managementCluster{
		Cluster: management,
		typed:   typed,
		objects: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Versions: template.Versions,
			Names: map[schema.GroupKind]string{template.ClusterKind: opts.ClusterName},
		}),
		leases: informer.New(informer.Config{
			Management: dynamicClient, Mapper: capacity.Mapper(), Namespace: opts.Namespace,
			Names: map[schema.GroupKind]string{capacity.Kind: opts.names().Karpenter},
		}),
		infrastructure: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Selector: ours,
		}),
	}
	m.controlPlanes = informer.New(informer.Config{
		Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Selector: controlPlane,
	})
	if opts.SharedCatalogNamespace != "" {
		m.sharedCatalogs = informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.SharedCatalogNamespace, Versions: template.Versions,
		})
	}
	return m, nil
}

// catalogs reads the shared catalogs; it is nil if the platform shares none.
func (m *managementCluster) catalogs() template.Objects {
	if m.sharedCatalogs == nil {
		return nil // a nil *informer.Set in an interface isn't nil
	}
	return m.sharedCatalogs
}

// addTo starts the caches with the guest's manager, which is ready once they have synced.
func (m *managementCluster) addTo(ctx context.Context, guest *operator.Operator) error {
	if err := machine.Index(ctx, m.GetFieldIndexer()); err != nil {
		return err
	}
	// Start it now, so that it is synced before the first read.
	if _, err := m.GetCache().GetInformer(ctx, &clusterv1.Cluster{}); err != nil {
		return fmt.Errorf("caching Clusters: %w", err)
	}
	if err := errors.Join(guest.Add(m.Cluster), guest.Add(m.objects), guest.Add(m.infrastructure), guest.Add(m.controlPlanes), guest.Add(m.leases)); err != nil {
		return fmt.Errorf("adding the management cluster: %w", err)
	}
	if m.sharedCatalogs != nil {
		if err := guest.Add(m.sharedCatalogs); err != nil {
			return fmt.Errorf("adding the shared catalogs: %w", err)
		}
	}
	if err := guest.AddReadyzCheck("management", func(req *http.Request) error {
		if !m.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("caches of the management cluster haven't synced yet")
		}
		return nil
	}); err != nil {
		return fmt.Errorf("adding the management cluster's readiness: %w", err)
	}
	return nil
}

// clusterSelector selects the objects of the cluster that have a label: this provider's, or the control plane's.
func clusterSelector(opts Options, label string) (labels.Selector, error) {
	cluster, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Equals, []string{opts.ClusterName})
	if err != nil {
		return nil, fmt.Errorf("selecting Machines of Cluster %s: %w", opts.ClusterName, err)
	}
	labelled, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting Machines with label %s: %w", label, err)
	}
	return labels.NewSelector().Add(*cluster, *labelled), nil
}
