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

// renderBootstrap creates the machine's bootstrap Secret with a token, and reports whether it did. The Machine then
// names the Secret and needs no bootstrap config. Each attempt makes a new token and a Secret that is named by it, so
// that Karpenter needs no permission to read Secrets. The infrastructure machine owns the Secret, so those of earlier
// attempts are deleted with it.
func (p *Provider) renderBootstrap(ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured) (bool, error) {
	lifetime := plan.JoinWithin + joinMargin
	if !plan.renders() || lifetime > bootstraptoken.MaxLifetime {
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
	fixToken(objects.Machine, token)
	return true, nil
}

// endpoint of a Cluster's API server, empty if it isn't known yet.
func endpoint(cluster *clusterv1.Cluster) string {
	if !cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return ""
	}
	return cluster.Spec.ControlPlaneEndpoint.String()
}

// renders reports whether the platform has Karpenter render the bootstrap data.
func (p Plan) renders() bool {
	return p.BootstrapTemplate.GetAnnotations()[v1alpha1.BootstrapDataAnnotation] != v1alpha1.BootstrapDataFromProvider
}

// checkBootstrapData returns an error if the annotation that selects the renderer of bootstrap data has an unknown
// value.
func checkBootstrapData(template *unstructured.Unstructured) error {
	switch value := template.GetAnnotations()[v1alpha1.BootstrapDataAnnotation]; value {
	case "", v1alpha1.BootstrapDataFromKarpenter, v1alpha1.BootstrapDataFromProvider:
		return nil
	default:
		return fmt.Errorf("annotation %s is %q; it has to be %s or %s", v1alpha1.BootstrapDataAnnotation, value,
			v1alpha1.BootstrapDataFromKarpenter, v1alpha1.BootstrapDataFromProvider)
	}
}
