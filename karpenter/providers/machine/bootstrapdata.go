// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
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

// createBootstrap creates the machine's bootstrap Secret, or the config from which the bootstrap provider makes one. It
// returns the Machine if that exists already.
func (p *Provider) createBootstrap(
	ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured,
) (*clusterv1.Machine, error) {
	if objects.Bootstrap == nil {
		return nil, nil //nolint:nilnil // it needs none
	}
	if rendered, err := p.renderBootstrap(ctx, plan, objects, infrastructure); err != nil || rendered {
		return nil, err
	}
	if err := p.mintToken(ctx, objects.Bootstrap); err != nil {
		return nil, err
	}
	config, machine, err := p.createChild(ctx, objects.Bootstrap, plan.NodeClaim)
	if err == nil && machine == nil {
		recordToken(objects.Machine, tokenOf(config))
	}
	return machine, err
}

// renderBootstrap creates the machine's bootstrap Secret with a token, and reports whether it did. The Machine then
// names the Secret and needs no bootstrap config. Each attempt makes a new token and a Secret that is named by it, so
// that Karpenter needs no permission to read Secrets. The infrastructure machine owns the Secret, so those of earlier
// attempts are deleted with it.
func (p *Provider) renderBootstrap(ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured) (bool, error) {
	lifetime := plan.JoinWithin + joinMargin
	if plan.bootstrapDataFrom() == v1alpha1.BootstrapDataFromProvider || lifetime > bootstraptoken.MaxLifetime {
		return false, nil // the bootstrap provider extends a token for as long as its machine takes
	}
	config, err := kubeadm.Parse(objects.Bootstrap, plan.Version, kubeadm.Discovery{Endpoint: endpoint(plan.Cluster), CACertHashes: p.CACertHashes})
	if errors.Is(err, kubeadm.ErrProviderNeeded) {
		log.FromContext(ctx).V(1).Info("leaving the bootstrap data to the bootstrap provider", "Machine", klog.KObj(objects.Machine), "reason", err.Error())
		return false, nil
	}
	if err != nil {
		return false, err
	}
	token, err := p.Tokens.Mint(ctx, plan.NodeClaim.Name, max(lifetime, bootstraptoken.Lifetime))
	if err != nil {
		return false, err
	}
	data, err := config.Render(token)
	if err != nil {
		return false, &BuildError{fmt.Errorf("rendering bootstrap data from %s %s: %w", plan.BootstrapTemplate.GetKind(), plan.BootstrapTemplate.GetName(), err)}
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
				APIVersion: infrastructure.GetAPIVersion(), Kind: infrastructure.GetKind(), Name: infrastructure.GetName(), UID: infrastructure.GetUID(),
			}},
		},
		Type: clusterv1.ClusterSecretType,
		Data: data,
	}
	if err := p.Management.Create(ctx, secret, FieldOwner); err != nil {
		return false, fmt.Errorf("creating bootstrap Secret %s: %w", klog.KObj(secret), err)
	}
	objects.Machine.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To(secret.Name)}
	recordToken(objects.Machine, token)
	return true, nil
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
	if p.BootstrapTemplate == nil {
		return ""
	}
	return p.BootstrapTemplate.GetAnnotations()[v1alpha1.BootstrapDataAnnotation]
}

// mintToken mints the machine's bootstrap token and writes it into the bootstrap config, unless the template sets
// another way to join or the kind takes no token. Cluster API's bootstrap provider keeps an existing token. Otherwise
// it makes one, sometimes two, and records only the second.
func (p *Provider) mintToken(ctx context.Context, config *unstructured.Unstructured) error {
	if !KnownBootstrap(config.GroupVersionKind().Group, config.GetKind()) || joinsByItself(config) {
		return nil
	}
	token, err := p.Tokens.Mint(ctx, config.GetName(), bootstraptoken.Lifetime)
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(config.Object, token, bootstrapToken...); err != nil {
		return fmt.Errorf("writing the bootstrap token into %s %s: %w", config.GetKind(), config.GetName(), err)
	}
	return nil
}

func joinsByItself(config *unstructured.Unstructured) bool {
	if _, found, _ := unstructured.NestedMap(config.Object, discoveryFile...); found {
		return true
	}
	return tokenOf(config) != ""
}

// tokenOf returns the machine's bootstrap token, or "" if its config has none. As in kubeadm, the token for TLS
// bootstrapping comes first.
func tokenOf(config *unstructured.Unstructured) string {
	for _, path := range [][]string{tlsBootstrapToken, bootstrapToken} {
		if token, found, err := unstructured.NestedString(config.Object, path...); err == nil && found && token != "" {
			return token
		}
	}
	return ""
}

// recordToken records the public part of the bootstrap token on the Machine before its creation: the operator accepts no
// other token from the machine.
func recordToken(machine *clusterv1.Machine, token string) {
	if id, ok := bootstraptoken.ID(token); ok {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.BootstrapTokenIDAnnotation, id)
	}
}
