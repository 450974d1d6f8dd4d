// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// UndecodableMetric counts the objects of the management cluster that can't be decoded, by kind.
const UndecodableMetric = "karpenter_clusterapi_undecodable_objects"

// Management reads the control-plane namespace of the management cluster only. Its caches start on every
// replica, so that a standby can take over at once.
type Management struct {
	cluster.Cluster
	// Typed corrects Cluster's reads, and counts the objects that can't be decoded.
	Typed *lenient.Decoder
	// Objects caches the objects that node classes name: templates and MachineDeployments.
	Objects *informer.Set
	// SharedCatalogs caches the catalogs that the platform shares with all clusters; nil if it shares none.
	SharedCatalogs *informer.Set
	// Infrastructure caches this provider's infrastructure machines. They change often during launches, so template
	// watches exclude them.
	Infrastructure *informer.Set
	// ControlPlanes caches the infrastructure machines of the Cluster's control plane, as far as there are any.
	ControlPlanes *informer.Set

	dynamic   dynamic.Interface
	namespace string
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

// NewManagement connects to the management cluster.
func NewManagement(config *rest.Config, opts Options, report func(*metav1.PartialObjectMetadata, string)) (*Management, error) {
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
	typed := lenient.New(scheme, UndecodableMetric, report)
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
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	m := &Management{
		Cluster: management, Typed: typed, dynamic: dynamicClient, namespace: opts.Namespace,
		Objects: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Versions: template.Versions,
			Names: map[schema.GroupKind]string{template.ClusterKind: opts.ClusterName},
		}),
		Infrastructure: informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Selector: ours,
		}),
	}
	m.ControlPlanes = informer.New(informer.Config{
		Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.Namespace, Selector: controlPlane,
	})
	if opts.SharedCatalogNamespace != "" {
		m.SharedCatalogs = informer.New(informer.Config{
			Management: dynamicClient, Mapper: management.GetRESTMapper(), Namespace: opts.SharedCatalogNamespace, Versions: template.Versions,
		})
	}
	return m, nil
}

// Named caches one object of a kind in the control-plane namespace, once it is added to a manager. mapper needs no request for the kind.
func (m *Management) Named(mapper meta.RESTMapper, kind schema.GroupKind, name string) *informer.Set {
	return informer.New(informer.Config{
		Management: m.dynamic, Mapper: mapper, Namespace: m.namespace, Names: map[schema.GroupKind]string{kind: name},
	})
}

// catalogs reads the shared catalogs; it is nil if the platform shares none.
func (m *Management) catalogs() template.Objects {
	if m.SharedCatalogs == nil {
		return nil // a nil *informer.Set in an interface isn't nil
	}
	return m.SharedCatalogs
}

// AddTo starts the caches with the guest's manager, which is ready once they have synced.
func (m *Management) AddTo(ctx context.Context, guest *coreoperator.Operator) error {
	if err := machine.Index(ctx, m.GetFieldIndexer()); err != nil {
		return err
	}
	// Start it now, so that it is synced before the first read.
	if _, err := m.GetCache().GetInformer(ctx, &clusterv1.Cluster{}); err != nil {
		return fmt.Errorf("caching Clusters: %w", err)
	}
	if err := errors.Join(guest.Add(m.Cluster), guest.Add(m.Objects), guest.Add(m.Infrastructure), guest.Add(m.ControlPlanes)); err != nil {
		return fmt.Errorf("adding the management cluster: %w", err)
	}
	if m.SharedCatalogs != nil {
		if err := guest.Add(m.SharedCatalogs); err != nil {
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
