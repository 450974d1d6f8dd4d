// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
)

// inspection looks at what a HostedCluster will need.
type inspection struct {
	management    client.Client
	hostedCluster *v1beta1.HostedCluster
	// operatorNamespace has the operators.
	operatorNamespace string

	// cluster is the one that the HostedCluster is for.
	cluster *clusterv1.Cluster
	// Report has what AutoNode will wait for.
	check.Report
}

// inspect returns an error for what can't work, and reports each thing that is missing.
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
	if err := i.others(ctx); err != nil {
		return err
	}
	consented := i.cluster.Annotations[v1beta1.ConsentAnnotation]
	if consented != "" && consented != client.ObjectKeyFromObject(i.hostedCluster).String() {
		return fmt.Errorf("the Cluster %s consents to HostedCluster %s; remove its annotation %s first", key, consented,
			v1beta1.ConsentAnnotation)
	}
	i.ControlPlane(i.cluster)
	if err := i.Kubeconfig(ctx, i.management, i.cluster); apierrors.IsForbidden(err) {
		i.Unread("Kubeconfig of Cluster "+key.String(), err)
	} else if err != nil {
		return err
	}
	return i.Templates(ctx, i.management, key, i.hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI)
}

// others finds HostedClusters that are in the way, and the payload that they name if there is none.
func (i *inspection) others(ctx context.Context) error {
	list := &v1beta1.HostedClusterList{}
	if err := i.management.List(ctx, list); err != nil {
		if notInstalled(err) {
			return fmt.Errorf("AutoNode isn't installed in this cluster: %w; see docs/platform/install.md", err)
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
	if len(releases) > 1 {
		return fmt.Errorf("name the release payload with --release: the HostedClusters here have %d different releases", len(releases))
	}
	for image := range releases {
		i.hostedCluster.Spec.Release.Image = image
	}
	if i.hostedCluster.Spec.Release.Image == "" {
		i.DefaultRelease(ctx, i.management, i.operatorNamespace)
	}
	return nil
}

// beside returns an error if another HostedCluster of the control-plane namespace is in the way.
func (i *inspection) beside(other *v1beta1.HostedCluster) error {
	key, namespace := client.ObjectKeyFromObject(other), i.cluster.Namespace
	switch {
	case !other.SharesNamespace():
		return fmt.Errorf("namespace %s belongs to HostedCluster %s, whose controlPlaneNamespaceMode is %s; recreate that one with "+
			"--shared-namespace, or move one of the Clusters to another namespace",
			namespace, key, v1beta1.ControlPlaneNamespaceDedicated)
	case !i.hostedCluster.SharesNamespace():
		return fmt.Errorf("HostedCluster %s shares namespace %s, so this one has to share it too: leave out --shared-namespace=false", key,
			namespace)
	case other.ClusterName() == i.cluster.Name:
		return fmt.Errorf("HostedCluster %s already manages the Cluster %s", key, client.ObjectKeyFromObject(i.cluster))
	}
	return nil
}
