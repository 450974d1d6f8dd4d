// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
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
func render(s *environment.Environment) {
	s.CACertHashes = []string{"sha256:" + strings.Repeat("0", 64)}
	s.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
}

// bootstrapSecret is the Secret that a Machine names.
func bootstrapSecret(t *testing.T, s *environment.Environment, m *clusterv1.Machine) *corev1.Secret {
	t.Helper()
	g := NewWithT(t)
	g.Expect(m.Spec.Bootstrap.DataSecretName).NotTo(BeNil())
	secret := &corev1.Secret{}
	g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: *m.Spec.Bootstrap.DataSecretName}, secret)).To(Succeed())
	return secret
}

func TestRenderedBootstrap(t *testing.T) {
	t.Run("When a kubeadm template needs nothing else, a Machine should name a Secret with the token that it may join with", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		render(s)
		plan := s.Plan(s.NodeClaim(t.Context(), "rendered"))
		plan.JoinWithin = 30 * time.Minute
		created, err := s.Machines(nil).Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		secret := bootstrapSecret(t, s, created)
		g.Expect(secret.Type).To(Equal(clusterv1.ClusterSecretType))
		g.Expect(secret.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, s.Cluster.Name))
		g.Expect(secret.Data).To(HaveKeyWithValue("format", []byte("cloud-config")))

		id := created.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
		minted := tokenSecret(t, s, id)
		g.Expect(string(secret.Data["value"])).To(And(
			ContainSubstring(id+"."+string(minted.Data["token-secret"])), ContainSubstring("10.0.0.1:6443"), ContainSubstring("karpenter.sh/unregistered")))
		g.Expect(time.Parse(time.RFC3339, string(minted.Data["expiration"]))).To(BeTemporally("~", time.Now().Add(35*time.Minute), time.Minute))
		g.Expect(s.Objects(t.Context(), environment.KubeadmConfig)).To(BeEmpty())

		infrastructure := &unstructured.Unstructured{}
		infrastructure.SetGroupVersionKind(environment.TestMachine)
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: created.Spec.InfrastructureRef.Name}, infrastructure)).To(Succeed())
		g.Expect(secret.OwnerReferences).To(ConsistOf(HaveField("UID", infrastructure.GetUID())))
	})

	t.Run("When an attempt crashed before its Machine, the next one should join with a token of its own", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		render(s)
		nodeClaim := s.NodeClaim(t.Context(), "crashed")
		_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: 3}).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(errors.Is(err, environment.ErrFault)).To(BeTrue(), "%v", err)
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(bootstrapSecret(t, s, created).Data["value"])).To(ContainSubstring(created.Annotations[v1alpha1.BootstrapTokenIDAnnotation] + "."))
		again, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.UID).To(Equal(created.UID))
		g.Expect(again.Spec.Bootstrap).To(Equal(created.Spec.Bootstrap))
	})

	for name, change := range map[string]func(s *environment.Environment, plan *machine.Plan){
		"the platform leaves it to the bootstrap provider": func(_ *environment.Environment, plan *machine.Plan) {
			plan.BootstrapTemplate.SetAnnotations(map[string]string{v1alpha1.BootstrapDataAnnotation: v1alpha1.BootstrapDataFromProvider})
		},
		"a machine may take longer than a token of Karpenter's lives": func(_ *environment.Environment, plan *machine.Plan) { plan.JoinWithin = time.Hour },
		"the guest's authority isn't known":                           func(s *environment.Environment, _ *machine.Plan) { s.CACertHashes = nil },
		"the guest has no endpoint yet": func(s *environment.Environment, _ *machine.Plan) {
			s.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		},
		"a file comes from a Secret": func(_ *environment.Environment, plan *machine.Plan) {
			files := []any{map[string]any{"path": "/etc/x", "contentFrom": map[string]any{"secret": map[string]any{"name": "x", "key": "y"}}}}
			if err := unstructured.SetNestedSlice(plan.BootstrapTemplate.Object, files, "spec", "template", "spec", "files"); err != nil {
				panic(err)
			}
		},
	} {
		t.Run("When "+name+", a Machine should have a bootstrap config", func(t *testing.T) {
			g := NewWithT(t)
			s := environment.New(t)
			render(s)
			plan := s.Plan(s.NodeClaim(t.Context(), "configured"))
			plan.BootstrapTemplate = plan.BootstrapTemplate.DeepCopy()
			change(s, &plan)
			created, err := s.Machines(nil).Create(t.Context(), plan)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(created.Spec.Bootstrap.ConfigRef.Kind).To(Equal(environment.KubeadmConfig.Kind))
			g.Expect(created.Spec.Bootstrap.DataSecretName).To(BeNil())
			secrets := &corev1.SecretList{}
			g.Expect(s.Admin.List(t.Context(), secrets, client.InNamespace(s.Namespace))).To(Succeed())
			g.Expect(secrets.Items).NotTo(ContainElement(HaveField("ObjectMeta", HaveField("Name", HavePrefix(v1alpha1.BootstrapSecretPrefix)))))
		})
	}

	t.Run("When the annotation declares nothing that is known, it should say what it has to be, and make nothing", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		plan := s.Plan(s.NodeClaim(t.Context(), "misspelt"))
		plan.BootstrapTemplate = plan.BootstrapTemplate.DeepCopy()
		plan.BootstrapTemplate.SetAnnotations(map[string]string{v1alpha1.BootstrapDataAnnotation: "provider"})
		_, err := s.Machines(nil).Create(t.Context(), plan)
		g.Expect(err).To(MatchError(ContainSubstring(`annotation karpenter.cluster.x-k8s.io/bootstrap-data is "provider"; it has to be Karpenter or Provider`)))
		g.Expect(s.Objects(t.Context(), environment.TestMachine)).To(BeEmpty())
	})
}
