// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
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
)

// tokenIn returns the bootstrap token in a NodeClaim's bootstrap config.
func tokenIn(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) string {
	t.Helper()
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(environment.KubeadmConfig)
	if err := s.Admin.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: nodeClaim.Name}, config); err != nil {
		t.Fatal(err)
	}
	token, _, err := unstructured.NestedString(config.Object, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// tokenSecret returns the Secret of a bootstrap token in the guest.
func tokenSecret(t *testing.T, s *environment.Environment, id string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := s.Admin.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func TestToken(t *testing.T) {
	fixed := func(m *clusterv1.Machine) string { return m.Annotations[v1alpha1.BootstrapTokenIDAnnotation] }

	t.Run("When a Machine is made, it should name the token that is in its bootstrap config and in the guest", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "minted")
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		id, secret, _ := strings.Cut(tokenIn(t, s, nodeClaim), ".")
		g.Expect(fixed(created)).To(Equal(id))
		minted := tokenSecret(t, s, id)
		g.Expect(minted.Type).To(Equal(corev1.SecretTypeBootstrapToken))
		g.Expect(string(minted.Data["token-secret"])).To(Equal(secret))
		g.Expect(string(minted.Data["auth-extra-groups"])).To(Equal("system:bootstrappers:kubeadm:default-node-token,system:bootstrappers:karpenter"))
		g.Expect(time.Parse(time.RFC3339, string(minted.Data["expiration"]))).To(BeTemporally("~", time.Now().Add(15*time.Minute), time.Minute))
	})

	t.Run("When an attempt got to the bootstrap config, the next one should fix the token that is in it", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "replayed")
		_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: 3}).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(errors.Is(err, environment.ErrFault)).To(BeTrue(), "%v", err)
		before := tokenIn(t, s, nodeClaim)
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(tokenIn(t, s, nodeClaim)).To(Equal(before))
		g.Expect(before).To(HavePrefix(fixed(created) + "."))
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
			g := NewWithT(t)
			s := environment.New(t)
			plan := s.Plan(s.NodeClaim(t.Context(), "own"))
			plan.BootstrapTemplate = plan.BootstrapTemplate.DeepCopy()
			g.Expect(unstructured.SetNestedMap(plan.BootstrapTemplate.Object, test.discovery, "spec", "template", "spec", "joinConfiguration", "discovery")).To(Succeed())
			before := &corev1.SecretList{}
			g.Expect(s.Admin.List(t.Context(), before, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
			created, err := s.Machines(nil).Create(t.Context(), plan)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(fixed(created)).To(Equal(test.want))
			after := &corev1.SecretList{}
			g.Expect(s.Admin.List(t.Context(), after, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
			g.Expect(after.Items).To(HaveLen(len(before.Items)))
		})
	}
}
