// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// tokenIn returns the bootstrap token in a NodeClaim's bootstrap config.
func (s *fixture) tokenIn(nodeClaim *karpv1.NodeClaim) string {
	s.t.Helper()
	config := s.child(environment.KubeadmConfig, nodeClaim)
	token, _, err := unstructured.NestedString(config.Object, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token")
	s.Expect(err).NotTo(HaveOccurred())
	return token
}

// tokenSecret returns the Secret of a bootstrap token in the guest.
func (s *fixture) tokenSecret(id string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{}
	s.Expect(s.Admin.Get(s.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, secret)).To(Succeed())
	return secret
}

func TestToken(t *testing.T) {
	fixed := func(m *clusterv1.Machine) string { return m.Annotations[v1alpha1.BootstrapTokenIDAnnotation] }

	t.Run("When a Machine is made, it should name the token that is in its bootstrap config and in the guest", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim, created := s.create("minted")
		id, secret, _ := strings.Cut(s.tokenIn(nodeClaim), ".")
		s.Expect(fixed(created)).To(Equal(id))
		minted := s.tokenSecret(id)
		s.Expect(minted.Type).To(Equal(corev1.SecretTypeBootstrapToken))
		s.Expect(string(minted.Data["token-secret"])).To(Equal(secret))
		s.Expect(string(minted.Data["auth-extra-groups"])).To(Equal("system:bootstrappers:kubeadm:default-node-token,system:bootstrappers:karpenter"))
		s.Expect(time.Parse(time.RFC3339, string(minted.Data["expiration"]))).To(BeTemporally("~", time.Now().Add(15*time.Minute), time.Minute))
	})

	t.Run("When an attempt got to the bootstrap config, the next one should fix the token that is in it", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "replayed")
		s.half(nodeClaim, 2)
		before := s.tokenIn(nodeClaim)
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(s.tokenIn(nodeClaim)).To(Equal(before))
		s.Expect(before).To(HavePrefix(fixed(created) + "."))
	})

	for name, test := range map[string]struct {
		discovery map[string]any
		want      string
	}{
		"names a token": {
			discovery: map[string]any{"bootstrapToken": map[string]any{"token": "abcdef.0123456789abcdef"}}, want: "abcdef",
		},
		"names another token for TLS bootstrapping": {
			discovery: map[string]any{"tlsBootstrapToken": "ghijkl.0123456789abcdef", "bootstrapToken": map[string]any{"token": "abcdef.0123456789abcdef"}},
			want:      "ghijkl",
		},
		"joins by a file": {
			discovery: map[string]any{"file": map[string]any{"kubeConfigPath": "/etc/kubernetes/discovery.conf"}},
		},
	} {
		t.Run("When the template "+name+", it should mint none and fix what is named", func(t *testing.T) {
			s := newFixture(t)
			before := &corev1.SecretList{}
			s.Expect(s.Admin.List(t.Context(), before, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
			_, created := s.create("own", func(p *machine.Plan) {
				s.Expect(unstructured.SetNestedMap(p.Template.Bootstrap.ConfigTemplate.Object, test.discovery, "spec", "template", "spec", "joinConfiguration", "discovery")).To(Succeed())
			})
			s.Expect(fixed(created)).To(Equal(test.want))
			after := &corev1.SecretList{}
			s.Expect(s.Admin.List(t.Context(), after, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
			s.Expect(after.Items).To(HaveLen(len(before.Items)))
		})
	}
}
