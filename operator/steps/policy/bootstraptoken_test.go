// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestBootstrapTokens(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	setUp(ctx, t)
	asKarpenter, admin := as(g, karpenter), as(g, "alice")

	token := func(change func(*corev1.Secret)) *corev1.Secret {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
			Type:       corev1.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
				"expiration":                     []byte(time.Now().UTC().Add(15 * time.Minute).Format(time.RFC3339)),
				"usage-bootstrap-authentication": []byte("true"), "usage-bootstrap-signing": []byte("true"),
				"auth-extra-groups": []byte(v1alpha1.BootstrapTokenGroups), "description": []byte("for a test"),
			},
		}
		change(secret)
		return secret
	}
	data := func(key, value string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
	}
	without := func(key string) func(*corev1.Secret) { return func(s *corev1.Secret) { delete(s.Data, key) } }
	foreign := func(s *corev1.Secret) {
		s.Type, s.Name, s.Data = corev1.SecretTypeOpaque, "mine", map[string][]byte{"a": []byte("b")}
	}

	g.Eventually(func() error { return asKarpenter.Create(ctx, token(foreign), client.DryRunAll) }).
		Should(MatchError(ContainSubstring("and no others")), "the policy is in force a moment after it was made")

	t.Run("When Karpenter mints a token as a machine needs it, it should be let through", func(t *testing.T) {
		NewWithT(t).Expect(asKarpenter.Create(ctx, token(func(*corev1.Secret) {}), client.DryRunAll)).To(Succeed())
	})

	tomorrow := time.Now().UTC().Add(24 * time.Hour).Format(time.RFC3339)
	for name, test := range map[string]struct {
		change func(*corev1.Secret)
		want   string
	}{
		"a Secret of another type": {foreign, "and no others"},
		"a token of a ServiceAccount": {func(s *corev1.Secret) {
			s.Type, s.Annotations = corev1.SecretTypeServiceAccountToken, map[string]string{corev1.ServiceAccountNameKey: "namespace-controller"}
		}, "and no others"},
		"a token in another namespace":      {func(s *corev1.Secret) { s.Namespace = metav1.NamespaceDefault }, "and no others"},
		"a token in kubeadm's group alone":  {data("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token"), "have exactly the groups"},
		"a token in another group as well":  {data("auth-extra-groups", v1alpha1.BootstrapTokenGroups+",system:bootstrappers:mine"), "have exactly the groups"},
		"a token in no group":               {without("auth-extra-groups"), "have exactly the groups"},
		"a token that lives a day":          {data("expiration", tomorrow), "expires within an hour"},
		"a token that lives a day, by zone": {data("expiration", "2000-01-01T00:00:00-99:99"), "expires within an hour"},
		"a token that lives for ever":       {without("expiration"), "expires within an hour"},
		"a token whose end is no time":      {data("expiration", "soon"), "expires within an hour"},
		"a token with a key of its own":     {data("kubeconfig", "x"), "and no others"},
		"a token without any data":          {func(s *corev1.Secret) { s.Data = nil }, "have exactly the groups"},
	} {
		t.Run("When Karpenter creates "+name+", it should be refused, and an admin let through", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(asKarpenter.Create(ctx, token(test.change), client.DryRunAll)).To(MatchError(ContainSubstring(test.want)))
			err := admin.Create(ctx, token(test.change), client.DryRunAll)
			if err != nil {
				g.Expect(err.Error()).NotTo(ContainSubstring("Karpenter"), "the API server may refuse it, the policy may not")
			}
		})
	}

	t.Run("When data come as text, they should count just the same", func(t *testing.T) {
		secret := token(func(*corev1.Secret) {})
		secret.StringData = map[string]string{}
		for key, value := range maps.All(secret.Data) {
			secret.StringData[key] = string(value)
		}
		secret.Data, secret.StringData["auth-extra-groups"] = nil, "system:bootstrappers:mine"
		NewWithT(t).Expect(asKarpenter.Create(ctx, secret, client.DryRunAll)).To(MatchError(ContainSubstring("have exactly the groups")))
	})
}
