// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// The attacker is a Karpenter that its guest's admin has taken over. It may create Secrets in its control-plane namespace, for machines.
func TestBootstrapSecrets(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	const hostedNamespace, otherNamespace = "bootstrap-secrets", "bootstrap-secrets-elsewhere"
	enforce(t, "bootstrapsecrets", hostedNamespace, otherNamespace)
	bindKarpenter(t, hostedNamespace)
	bindForeign(t, otherNamespace)
	secret := func(namespace string, change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: v1alpha1.BootstrapSecretPrefix + "abcdef",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1", Kind: "KwokMachine", Name: "web-1", UID: "1"}},
			},
			Type: clusterv1.ClusterSecretType,
			Data: map[string][]byte{"value": []byte("#cloud-config"), "format": []byte("cloud-config")},
		}
		change(s)
		return s
	}
	karpenter := karpenterOf(t, hostedNamespace)
	attacks := map[string]struct {
		change func(*corev1.Secret)
		want   string
	}{
		"a token of another ServiceAccount": {func(s *corev1.Secret) {
			s.Type, s.Data, s.Annotations = corev1.SecretTypeServiceAccountToken, nil, map[string]string{corev1.ServiceAccountNameKey: "etcd"}
		}, "of the type cluster.x-k8s.io/secret"},
		"a Secret of no type":          {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, "of the type cluster.x-k8s.io/secret"},
		"a certificate authority":      {func(s *corev1.Secret) { s.Name = "blue-ca" }, "begins with karpenter-bootstrap-"},
		"a key that is no machine's":   {func(s *corev1.Secret) { maps.Copy(s.Data, map[string][]byte{"tls.key": nil}) }, "the keys value and format"},
		"a key, written as text":       {func(s *corev1.Secret) { s.StringData = map[string]string{"kubeconfig": "x"} }, "the keys value and format"},
		"a Secret that stays for ever": {func(s *corev1.Secret) { s.OwnerReferences = nil }, "has one owner"},
		"a Secret with a finalizer":    {func(s *corev1.Secret) { s.Finalizers = []string{"example.com/stay"} }, "has no finalizer"},
		"a Secret that has more than one owner": {func(s *corev1.Secret) {
			s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "2"})
		}, "has one owner"},
	}
	g.Eventually(func() error {
		return karpenter.Create(ctx, secret(hostedNamespace, attacks["a certificate authority"].change), client.DryRunAll)
	}).Should(MatchError(ContainSubstring("begins with")), "the policy is in force a moment after it was made")

	for name, attack := range attacks {
		t.Run("When Karpenter creates "+name+", it should be refused, and no other client", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, secret(hostedNamespace, attack.change), client.DryRunAll)).To(MatchError(ContainSubstring(attack.want)))
			for whose, other := range map[string]client.Client{"an admin": management, "another's Karpenter": karpenterOf(t, otherNamespace)} {
				where := hostedNamespace
				if whose != "an admin" {
					where = otherNamespace
				}
				if err := other.Create(ctx, secret(where, attack.change), client.DryRunAll); err != nil {
					g.Expect(err.Error()).NotTo(ContainSubstring("Karpenter"), "the API server may refuse it of %s, the policy may not", whose)
				}
			}
		})
	}
	t.Run("When Karpenter creates what a machine boots with, it should be let through", func(t *testing.T) {
		NewWithT(t).Expect(karpenter.Create(ctx, secret(hostedNamespace, func(*corev1.Secret) {}), client.DryRunAll)).To(Succeed())
	})
}
