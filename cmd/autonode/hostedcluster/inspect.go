// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/kubeconfig"
)

// inspection looks at what a HostedCluster will need.
type inspection struct {
	management    client.Client
	hostedCluster *v1beta1.HostedCluster

	// cluster is the one that the HostedCluster is for.
	cluster *clusterv1.Cluster
	// warnings are what AutoNode will wait for, each with what to do.
	warnings []string
}

func (i *inspection) warn(format string, args ...any) {
	i.warnings = append(i.warnings, fmt.Sprintf(format, args...))
}

// inspect returns an error for what can't work, and adds a warning for each thing that is missing.
func (i *inspection) inspect(ctx context.Context, key client.ObjectKey) error {
	i.cluster = &clusterv1.Cluster{}
	if err := i.management.Get(ctx, key, i.cluster); err != nil {
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("this cluster serves no Cluster API v1.14 or newer: %w; is it the management cluster?", err)
		}
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no Cluster %s; list them with `kubectl get clusters.cluster.x-k8s.io -A`", key)
		}
		return fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	if !i.cluster.DeletionTimestamp.IsZero() {
		return fmt.Errorf("the Cluster %s is being deleted", key)
	}
	for _, check := range []func(context.Context) error{i.others, i.consent, i.controlPlane, i.kubeconfig, i.sources} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// others finds HostedClusters that are in the way, and the payload that they name if there is none.
func (i *inspection) others(ctx context.Context) error {
	list := &v1beta1.HostedClusterList{}
	if err := i.management.List(ctx, list); err != nil {
		if notInstalled(err) {
			return fmt.Errorf("AutoNode isn't installed in this cluster: %w; see docs/install.md", err)
		}
		return fmt.Errorf("listing HostedClusters: %w", err)
	}
	releases := map[string]bool{} // with "" for the operator's default release
	for n := range list.Items {
		other := &list.Items[n]
		releases[other.Spec.Release.Image] = true
		if client.ObjectKeyFromObject(other) == client.ObjectKeyFromObject(i.hostedCluster) {
			return fmt.Errorf("HostedCluster %s exists; change it with `kubectl -n %s edit hostedclusters.autonode.io %s`",
				client.ObjectKeyFromObject(other), other.Namespace, other.Name)
		}
		if namespace := other.ControlPlaneNamespace(); namespace == i.cluster.Namespace {
			if err := i.beside(other); err != nil {
				return err
			}
		}
	}
	if i.hostedCluster.Spec.Release.Image != "" {
		return nil
	}
	switch known := slices.Sorted(maps.Keys(releases)); len(known) {
	case 0: // the operator's default release
	case 1:
		i.hostedCluster.Spec.Release.Image = known[0]
	default:
		return fmt.Errorf("name the release payload with --release: the HostedClusters here have %d different releases", len(known))
	}
	return nil
}

// beside returns an error if another HostedCluster of the control-plane namespace is in the way.
func (i *inspection) beside(other *v1beta1.HostedCluster) error {
	key, namespace := client.ObjectKeyFromObject(other), i.cluster.Namespace
	switch {
	case !other.SharesNamespace():
		return fmt.Errorf("namespace %s belongs to HostedCluster %s, whose controlPlaneNamespaceMode is %s; recreate that one with --shared-namespace, or move one of the Clusters to another namespace",
			namespace, key, v1beta1.ControlPlaneNamespaceDedicated)
	case !i.hostedCluster.SharesNamespace():
		return fmt.Errorf("HostedCluster %s shares namespace %s, so this one has to share it too: leave out --shared-namespace=false", key, namespace)
	case other.ClusterName() == i.cluster.Name:
		return fmt.Errorf("HostedCluster %s has the Cluster %s already", key, client.ObjectKeyFromObject(i.cluster))
	}
	return nil
}

// consent finds a Cluster that another HostedCluster uses.
func (i *inspection) consent(context.Context) error {
	named := i.cluster.Annotations[v1beta1.ConsentAnnotation]
	if named == "" || named == client.ObjectKeyFromObject(i.hostedCluster).String() {
		return nil
	}
	return fmt.Errorf("the Cluster %s consents to HostedCluster %s; remove its annotation %s first",
		client.ObjectKeyFromObject(i.cluster), named, v1beta1.ConsentAnnotation)
}

// controlPlane reports what AutoNode waits for in the Cluster.
func (i *inspection) controlPlane(context.Context) error {
	key := client.ObjectKeyFromObject(i.cluster)
	if !ptr.Deref(i.cluster.Status.Initialization.ControlPlaneInitialized, false) {
		i.warn("the control plane of Cluster %s isn't initialized; AutoNode waits for it. See `kubectl -n %s describe cluster %s`", key, key.Namespace, key.Name)
	}
	if annotations.IsPaused(i.cluster, i.cluster) {
		i.warn("Cluster %s is paused, and so is AutoNode until spec.paused and the annotation %s are gone", key, clusterv1.PausedAnnotation)
	}
	return nil
}

// kubeconfig reads the guest's as the operator does.
func (i *inspection) kubeconfig(ctx context.Context) error {
	key := client.ObjectKey{Namespace: i.cluster.Namespace, Name: secret.Name(i.cluster.Name, secret.Kubeconfig)}
	found := &corev1.Secret{}
	switch err := i.management.Get(ctx, key, found); {
	case apierrors.IsNotFound(err):
		i.warn("there is no Secret %s; the control plane provider writes it when the control plane is initialized", key)
		return nil
	case apierrors.IsForbidden(err):
		i.warn("you may not read Secret %s, so its kubeconfig isn't checked", key)
		return nil
	case err != nil:
		return fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if found.Labels[clusterv1.ClusterNameLabel] != i.cluster.Name {
		i.warn("Secret %s lacks the label %s=%s, by which the operator finds it", key, clusterv1.ClusterNameLabel, i.cluster.Name)
	}
	if _, err := kubeconfig.Parse(found.Data[secret.KubeconfigDataName]); err != nil {
		i.warn("the operator rejects the kubeconfig in Secret %s: %s", key, err)
	}
	return nil
}

// sources counts what Karpenter could launch from.
func (i *inspection) sources(ctx context.Context) error {
	clusterAPI := i.hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI
	if clusterAPI.ScalableResourceSelector != nil {
		return i.count(ctx, clusterv1.GroupVersion.WithKind("MachineDeployment").GroupKind(), clusterAPI.ScalableResourceSelector)
	}
	for n := range clusterAPI.InfrastructureTemplateSelectors {
		selector := &clusterAPI.InfrastructureTemplateSelectors[n]
		if err := i.count(ctx, schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}, &selector.Selector); err != nil {
			return err
		}
	}
	if clusterAPI.Bootstrap == nil {
		return nil
	}
	ref := clusterAPI.Bootstrap.ConfigTemplateRef
	object, err := i.objectOf(schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind})
	if err != nil {
		return err
	}
	err = i.management.Get(ctx, client.ObjectKey{Namespace: i.cluster.Namespace, Name: ref.Name}, object)
	if apierrors.IsNotFound(err) {
		i.warn("there is no %s %s/%s; nothing launches until you create it", ref.Kind, i.cluster.Namespace, ref.Name)
		return nil
	}
	return err
}

// objectOf returns an empty object of a kind in the version that the management cluster prefers.
func (i *inspection) objectOf(kind schema.GroupKind) (*unstructured.Unstructured, error) {
	mapping, err := i.management.RESTMapper().RESTMapping(kind)
	if err != nil {
		return nil, fmt.Errorf("the management cluster serves no %s: %w", kind, err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	return object, nil
}

// count warns if nothing matches.
func (i *inspection) count(ctx context.Context, kind schema.GroupKind, by *metav1.LabelSelector) error {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	object, err := i.objectOf(kind)
	if err != nil {
		return err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(object.GroupVersionKind().GroupVersion().WithKind(object.GetKind() + "List"))
	if err := i.management.List(ctx, list, client.InNamespace(i.cluster.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return fmt.Errorf("listing %s: %w", kind, err)
	}
	if len(list.Items) == 0 {
		i.warn("no %s in namespace %s matches %s; nothing launches until one does", kind.Kind, i.cluster.Namespace, strings.TrimSpace(selector.String()))
	}
	return nil
}
