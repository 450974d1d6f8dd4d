// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/manifests"
)

// sharesNamespace reports whether a Cluster's namespace has other Clusters, or a HostedCluster that shares it.
func sharesNamespace(ctx context.Context, management client.Client, cluster client.ObjectKey) (bool, error) {
	clusters, hostedClusters := &clusterv1.ClusterList{}, &v1beta1.HostedClusterList{}
	for _, list := range []client.ObjectList{clusters, hostedClusters} {
		err := management.List(ctx, list, client.InNamespace(cluster.Namespace))
		if meta.IsNoMatchError(err) || notInstalled(err) {
			return false, nil // the inspection warns of it
		}
		if err != nil {
			return false, fmt.Errorf("looking for other Clusters in namespace %s: %w; or decide with --shared-namespace=false",
				cluster.Namespace, err)
		}
	}
	for i := range hostedClusters.Items {
		if other := &hostedClusters.Items[i]; other.ControlPlaneNamespace() == cluster.Namespace {
			return other.SharesNamespace(), nil
		}
	}
	return slices.ContainsFunc(clusters.Items, func(c clusterv1.Cluster) bool { return c.Name != cluster.Name }), nil
}

// access returns the RoleBinding by which the operator may write in the namespace that the HostedCluster shares.
func (o *CreateOptions) access(namespace string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.SharedNamespaceRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: v1beta1.SharedNamespaceRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: o.OperatorNamespace, Name: manifests.Operator}},
	}
}

// accessCommand is what to run for the same.
func (o *CreateOptions) accessCommand(namespace string) string {
	return consent.SharedNamespaceCommand(namespace, o.OperatorNamespace, manifests.Operator)
}

// grant lets the operator write in the namespace, unless it may already. A user who may not create the RoleBinding gets the command for the
// namespace's owner: AutoNode waits for it.
func (o *CreateOptions) grant(ctx context.Context, management client.Client, namespace string) (warning string, err error) {
	err = management.Create(ctx, o.access(namespace), client.FieldOwner(cluster.FieldOwner))
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return "", nil
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("you may not let the operator write in namespace %s, and AutoNode waits for it; the owner of the namespace grants "+
			"it with: %s",
			namespace, o.accessCommand(namespace)), nil
	}
	return "", fmt.Errorf("creating RoleBinding %s/%s: %w", namespace, v1beta1.SharedNamespaceRole, err)
}
