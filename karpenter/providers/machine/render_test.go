// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// render makes the environment's providers render bootstrap data.
func render(s *fixture) {
	s.CACertHashes = []string{"sha256:" + strings.Repeat("0", 64)}
	s.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
}

// bootstrapSecret is the Secret that a Machine names.
func (s *fixture) bootstrapSecret(m *clusterv1.Machine) *corev1.Secret {
	s.t.Helper()
	s.Expect(m.Spec.Bootstrap.DataSecretName).NotTo(BeNil())
	secret := &corev1.Secret{}
	s.Expect(s.Admin.Get(s.t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: *m.Spec.Bootstrap.DataSecretName}, secret)).To(Succeed())
	return secret
}

func TestRenderedBootstrap(t *testing.T) {
	t.Run("When a kubeadm template needs nothing else, a Machine should name a Secret with the token that it may join with", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		nodeClaim, created := s.create("rendered", func(p *machine.Plan) { p.JoinWithin = 30 * time.Minute })
		secret := s.bootstrapSecret(created)
		s.Expect(secret.Type).To(Equal(clusterv1.ClusterSecretType))
		s.Expect(secret.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, s.Cluster.Name))
		s.Expect(secret.Data).To(HaveKeyWithValue("format", []byte("cloud-config")))

		id := created.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
		minted := s.tokenSecret(id)
		s.Expect(string(secret.Data["value"])).To(And(
			ContainSubstring(id+"."+string(minted.Data["token-secret"])), ContainSubstring("10.0.0.1:6443"), ContainSubstring("karpenter.sh/unregistered")))
		s.Expect(time.Parse(time.RFC3339, string(minted.Data["expiration"]))).To(BeTemporally("~", time.Now().Add(35*time.Minute), time.Minute))
		s.Expect(s.Objects(t.Context(), environment.KubeadmConfig)).To(BeEmpty())
		s.Expect(secret.OwnerReferences).To(ConsistOf(HaveField("UID", s.child(environment.TestMachine, nodeClaim).GetUID())))
	})

	t.Run("When an attempt crashed before its Machine, the next one should join with a token of its own", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		nodeClaim := s.NodeClaim(t.Context(), "crashed")
		s.half(nodeClaim, 2)
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(string(s.bootstrapSecret(created).Data["value"])).To(ContainSubstring(created.Annotations[v1alpha1.BootstrapTokenIDAnnotation] + "."))
		again, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(again.UID).To(Equal(created.UID))
		s.Expect(again.Spec.Bootstrap).To(Equal(created.Spec.Bootstrap))
	})

	for name, change := range map[string]func(s *fixture, plan *machine.Plan){
		"the platform leaves it to the bootstrap provider": func(_ *fixture, plan *machine.Plan) {
			plan.Template.Bootstrap.ConfigTemplate.SetAnnotations(map[string]string{v1alpha1.BootstrapDataAnnotation: v1alpha1.BootstrapDataFromProvider})
		},
		"a machine may take longer than a token of Karpenter's lives": func(_ *fixture, plan *machine.Plan) { plan.JoinWithin = time.Hour },
		"the guest's authority isn't known":                           func(s *fixture, _ *machine.Plan) { s.CACertHashes = nil },
		"the guest has no endpoint yet": func(s *fixture, _ *machine.Plan) {
			s.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		},
		"a file comes from a Secret": func(_ *fixture, plan *machine.Plan) {
			files := []any{map[string]any{"path": "/etc/x", "contentFrom": map[string]any{"secret": map[string]any{"name": "x", "key": "y"}}}}
			if err := unstructured.SetNestedSlice(plan.Template.Bootstrap.ConfigTemplate.Object, files, "spec", "template", "spec", "files"); err != nil {
				panic(err)
			}
		},
	} {
		t.Run("When "+name+", a Machine should have a bootstrap config", func(t *testing.T) {
			s := newFixture(t)
			render(s)
			_, created := s.create("configured", func(p *machine.Plan) { change(s, p) })
			s.Expect(created.Spec.Bootstrap.ConfigRef.Kind).To(Equal(environment.KubeadmConfig.Kind))
			s.Expect(created.Spec.Bootstrap.DataSecretName).To(BeNil())
			secrets := &corev1.SecretList{}
			s.Expect(s.Admin.List(t.Context(), secrets, client.InNamespace(s.Namespace))).To(Succeed())
			s.Expect(secrets.Items).NotTo(ContainElement(HaveField("ObjectMeta", HaveField("Name", HavePrefix(v1alpha1.BootstrapSecretPrefix)))))
		})
	}

	t.Run("When the annotation declares nothing that is known, it should say what it has to be, and make nothing", func(t *testing.T) {
		s := newFixture(t)
		plan := s.Plan(s.NodeClaim(t.Context(), "misspelt"))
		plan.Template.Bootstrap.ConfigTemplate = plan.Template.Bootstrap.ConfigTemplate.DeepCopy()
		plan.Template.Bootstrap.ConfigTemplate.SetAnnotations(map[string]string{v1alpha1.BootstrapDataAnnotation: "provider"})
		_, err := s.Machines(nil).Create(t.Context(), plan)
		s.Expect(err).To(MatchError(ContainSubstring(`annotation karpenter.cluster.x-k8s.io/bootstrap-data is "provider"; it has to be Karpenter or Provider`)))
		s.Expect(s.Objects(t.Context(), environment.TestMachine)).To(BeEmpty())
	})
}
