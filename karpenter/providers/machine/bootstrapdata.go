// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/providers/kubeadm"
)

// joinMargin is added to the machine's registration deadline for the lifetime of its token.
const joinMargin = 5 * time.Minute

// discovery is the field of a KubeadmConfig with the machine's way to find the cluster and its first credential.
var (
	discovery         = []string{"spec", "joinConfiguration", "discovery"}
	bootstrapToken    = append(discovery[:3:3], "bootstrapToken", "token")
	tlsBootstrapToken = append(discovery[:3:3], "tlsBootstrapToken")
	discoveryFile     = append(discovery[:3:3], "file")
)

// prepareBootstrap creates the machine's bootstrap Secret with a token; the Machine then names the Secret and needs no bootstrap config.
// Each call makes a new token and a Secret that is named by it, so that Karpenter needs no permission to read Secrets. The infrastructure
// machine owns the Secret, so those of earlier attempts are deleted with it. It returns the token, if it has made one.
//
// If only the bootstrap provider can render the data, it writes a token into the config, unless the template sets another way to join or
// the kind takes no token. Cluster API's bootstrap provider keeps an existing token. Otherwise it makes one, sometimes two, and records
// only the second.
func (p *Provider) prepareBootstrap(
	ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured,
) (string, error) {
	lifetime := max(plan.JoinWithin+joinMargin, bootstraptoken.Lifetime)
	discovery := kubeadm.Discovery{Endpoint: endpoint(plan.Cluster), CACertHashes: p.CACertHashes}
	config, err := kubeadm.Parse(objects.Bootstrap, plan.Version, discovery)
	byProvider := err != nil || plan.bootstrapDataFrom() == v1alpha1.BootstrapDataFromProvider || lifetime > bootstraptoken.MaxLifetime
	if byProvider {
		if err != nil {
			log.FromContext(ctx).V(1).Info("leaving the bootstrap data to the bootstrap provider",
				"Machine", klog.KObj(objects.Machine), "reason", err.Error())
		}
		if !KnownBootstrap(objects.Bootstrap.GroupVersionKind().Group, objects.Bootstrap.GetKind()) || joinsByItself(objects.Bootstrap) {
			return "", nil
		}
		lifetime = bootstraptoken.Lifetime // the bootstrap provider extends it for as long as its machine takes
	}
	token, err := p.Tokens.Mint(ctx, plan.NodeClaim.Name, lifetime)
	if err != nil {
		return "", err
	}
	if byProvider {
		if err := unstructured.SetNestedField(objects.Bootstrap.Object, token, bootstrapToken...); err != nil {
			return "", fmt.Errorf("writing the bootstrap token into %s %s: %w", objects.Bootstrap.GetKind(), objects.Bootstrap.GetName(), err)
		}
		return token, nil
	}
	data, err := config.Render(token)
	if err != nil {
		return "", &BuildError{fmt.Errorf("rendering bootstrap data from %s %s: %w",
			objects.Bootstrap.GetKind(), objects.Bootstrap.GetName(), err)}
	}
	id, _ := bootstraptoken.ID(token)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: objects.Machine.Namespace,
			Name:      v1alpha1.BootstrapSecretPrefix + id,
			Labels: map[string]string{
				clusterv1.ClusterNameLabel: plan.Cluster.Name,
				v1alpha1.NodeClaimLabel:    objects.Machine.Labels[v1alpha1.NodeClaimLabel],
				v1alpha1.NodeClaimUIDLabel: string(plan.NodeClaim.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: infrastructure.GetAPIVersion(), Kind: infrastructure.GetKind(),
				Name: infrastructure.GetName(), UID: infrastructure.GetUID(),
			}},
		},
		Type: clusterv1.ClusterSecretType,
		Data: data,
	}
	if err := p.Management.Create(ctx, secret, FieldOwner); err != nil {
		return "", fmt.Errorf("creating bootstrap Secret %s: %w", klog.KObj(secret), err)
	}
	objects.Bootstrap, objects.Machine.Spec.Bootstrap = nil, clusterv1.Bootstrap{DataSecretName: ptr.To(secret.Name)}
	return token, nil
}

// endpoint of a Cluster's API server, empty if it isn't known yet.
func endpoint(cluster *clusterv1.Cluster) string {
	if !cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return ""
	}
	return cluster.Spec.ControlPlaneEndpoint.String()
}

// bootstrapDataFrom is the annotation by which the platform selects the renderer of the bootstrap data; empty for none.
func (p Plan) bootstrapDataFrom() string {
	if p.Template.Bootstrap.ConfigTemplate == nil {
		return ""
	}
	return p.Template.Bootstrap.ConfigTemplate.GetAnnotations()[v1alpha1.BootstrapDataAnnotation]
}

func joinsByItself(config *unstructured.Unstructured) bool {
	_, file, _ := unstructured.NestedMap(config.Object, discoveryFile...)
	return file || tokenOf(config) != ""
}

// tokenOf returns the machine's bootstrap token, or "" if there is no config or it has none. As in kubeadm, the token for TLS
// bootstrapping comes first.
func tokenOf(config *unstructured.Unstructured) string {
	if config == nil {
		return ""
	}
	for _, path := range [][]string{tlsBootstrapToken, bootstrapToken} {
		if token, found, err := unstructured.NestedString(config.Object, path...); err == nil && found && token != "" {
			return token
		}
	}
	return ""
}
