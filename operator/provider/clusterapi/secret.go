// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
)

const (
	clusterGroup = "cluster.x-k8s.io"
	// bootstrapGroup is that of the objects whose Secrets are bootstrap data.
	bootstrapGroup = "bootstrap." + clusterGroup
)

// secretRecheck is how often a Secret that can't be used is read again: it isn't watched.
const secretRecheck = 30 * time.Second

// checkSecret returns why Karpenter isn't to read the bootstrap Secret that the spec names, which could be any of the control plane's: its
// kubeconfig, its keys, a cloud's credentials. Who may write the Secret allows it by a label; one that belongs to a bootstrap object needs
// none.
func checkSecret(ctx context.Context, in provider.Input) (provider.Finding, error) {
	bootstrap := in.Config.ClusterAPI.Bootstrap
	if bootstrap == nil || bootstrap.DataSecretName == "" {
		return provider.Finding{}, nil
	}
	refuse := func(format string, args ...any) (provider.Finding, error) {
		message := fmt.Sprintf("spec.autoNode.provisionerConfig.karpenter.clusterAPI.bootstrap.dataSecretName: Secret %s/%s ",
			in.Namespace, bootstrap.DataSecretName)
		return provider.Finding{Reason: v1beta1.InvalidSpecReason, Message: message + fmt.Sprintf(format, args...), Recheck: secretRecheck}, nil
	}
	for _, purpose := range []secret.Purpose{
		secret.Kubeconfig, secret.ClusterCA, secret.EtcdCA, secret.ServiceAccount, secret.FrontProxyCA,
		secret.APIServerEtcdClient, "user-" + secret.Kubeconfig,
	} {
		if bootstrap.DataSecretName == secret.Name(in.ClusterName, purpose) {
			return refuse("is of the control plane itself; name one with bootstrap data")
		}
	}
	found := &unstructured.Unstructured{} // which is read live: the caches have few Secrets
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := in.Reader.Get(ctx, client.ObjectKey{Namespace: in.Namespace, Name: bootstrap.DataSecretName}, found); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return provider.Finding{}, fmt.Errorf("reading the bootstrap Secret: %w", err)
		}
		return refuse("doesn't exist, or isn't labelled %s=true", v1beta1.BootstrapDataLabel)
	}
	owners := found.GetOwnerReferences()
	data, _, _ := unstructured.NestedMap(found.Object, "data")
	kind, _, _ := unstructured.NestedString(found.Object, "type")
	switch {
	case found.GetLabels()[v1beta1.ManagedByLabel] == v1beta1.ManagedByOperator:
		return refuse("is the operator's; name one with bootstrap data")
	case kind == string(corev1.SecretTypeServiceAccountToken) || kind == string(corev1.SecretTypeDockerConfigJson):
		return refuse("is of type %s; name one with bootstrap data", kind)
	case data[secret.TLSKeyDataName] != nil:
		// The kubeadm bootstrap provider owns the authorities of control planes that have no KubeadmControlPlane.
		return refuse("has the key %s, a private key; name one with bootstrap data", secret.TLSKeyDataName)
	case slices.ContainsFunc(owners, ofBootstrap):
	case slices.ContainsFunc(owners, ofClusterAPI):
		return refuse("belongs to an object of Cluster API that is no bootstrap config; name one with bootstrap data")
	case found.GetLabels()[v1beta1.BootstrapDataLabel] != "true":
		return refuse("doesn't exist, or isn't labelled %s=true", v1beta1.BootstrapDataLabel)
	}
	return provider.Finding{}, nil
}

func ofBootstrap(owner metav1.OwnerReference) bool { return groupOf(owner) == bootstrapGroup }

func ofClusterAPI(owner metav1.OwnerReference) bool {
	group := groupOf(owner)
	return group == clusterGroup || strings.HasSuffix(group, "."+clusterGroup)
}

func groupOf(owner metav1.OwnerReference) string {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return ""
	}
	return version.Group
}
