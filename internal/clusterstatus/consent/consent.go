// SPDX-License-Identifier: Apache-2.0

// Package consent decides whether a control plane belongs to a HostedCluster. A HostedCluster names a namespace and a
// Cluster in it, which may be another tenant's: so the Namespace or the Cluster has to name the HostedCluster too.
package consent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// HyperShiftAnnotation is HyperShift's annotation on the objects of a control plane: its HostedCluster, as <namespace>/<name>.
const HyperShiftAnnotation = "hypershift.openshift.io/cluster"

// Given reports whether a control plane consents to a HostedCluster: its Namespace or its Cluster names it.
func Given(ctx context.Context, management client.Reader, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) (bool, error) {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	for key, object := range map[client.ObjectKey]client.Object{{Name: cluster.Namespace}: namespace, cluster: &clusterv1.Cluster{}} {
		if err := management.Get(ctx, key, object); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading whether %s consents: %w", cluster, err)
		}
		for _, annotation := range []string{v1beta1.ConsentAnnotation, HyperShiftAnnotation} {
			if object.GetAnnotations()[annotation] == client.ObjectKeyFromObject(hostedCluster).String() {
				return true, nil
			}
		}
	}
	return false, nil
}

// ToRemove reports whether the operator may reach a control plane to remove the objects that it made there: with consent, or where it has
// made something for the HostedCluster, which it did with consent.
func ToRemove(ctx context.Context, management client.Reader, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) (bool, error) {
	given, err := Given(ctx, management, hostedCluster, cluster)
	if given || err != nil {
		return given, err
	}
	component, err := componentOf(ctx, management, hostedCluster, cluster.Namespace)
	return component != nil, err
}

// componentOf returns the ControlPlaneComponent that was made for a HostedCluster; nil where there is none.
func componentOf(ctx context.Context, management client.Reader, hostedCluster *v1beta1.HostedCluster,
	namespace string) (*v1beta1.ControlPlaneComponent, error) {
	component := &v1beta1.ControlPlaneComponent{}
	if err := management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: hostedCluster.Names().Karpenter}, component); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading the ControlPlaneComponent: %w", err)
	}
	if component.Labels[v1beta1.HostedClusterLabel] != hostedCluster.Name ||
		component.Labels[v1beta1.HostedClusterNamespaceLabel] != hostedCluster.Namespace {
		return nil, nil
	}
	return component, nil
}

// Missing returns the annotation to write, and who may.
func Missing(hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey) string {
	return fmt.Sprintf("neither Namespace %s nor Cluster %s names this HostedCluster; the control plane's owner has to annotate one of "+
		"them with %s=%s/%s",
		cluster.Namespace, cluster, v1beta1.ConsentAnnotation, hostedCluster.Namespace, hostedCluster.Name)
}

// SharedNamespaceCommand is the command by which the owner of a shared control-plane namespace lets the operator's ServiceAccount write
// there.
func SharedNamespaceCommand(namespace, operatorNamespace, serviceAccount string) string {
	return fmt.Sprintf("kubectl -n %s create rolebinding %s --clusterrole=%s --serviceaccount=%s:%s",
		namespace, v1beta1.SharedNamespaceRole, v1beta1.SharedNamespaceRole, operatorNamespace, serviceAccount)
}
