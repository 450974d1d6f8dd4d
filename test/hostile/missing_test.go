// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// policies are those that bound Karpenters in the management cluster.
var policies = []string{"bootstrapsecrets", "machines", "references", "sharednamespaces"}

// anotherAPIServer starts one more API server on the management cluster's etcd, as after a restart.
func anotherAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	g := NewWithT(t)
	server := &envtest.APIServer{EtcdURL: clusters.Management.Environment.ControlPlane.Etcd.URL, StartTimeout: 5 * time.Minute}
	g.Expect(server.Start()).To(Succeed())
	t.Cleanup(func() { g.Expect(server.Stop()).To(Succeed()) })
	config, err := server.Authn.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, &rest.Config{
		Host: server.SecureServing.URL("https", "").String(), TLSClientConfig: rest.TLSClientConfig{CAData: server.SecureServing.CA}, QPS: -1,
	})
	g.Expect(err).NotTo(HaveOccurred())
	return config
}

// TestDefinitionMissing removes a CRD of this project's while the policies are installed. A policy whose parameters are of a kind that isn't
// served when an API server starts rejects every request that it matches: Secrets and Machines of the whole management cluster.
func TestDefinitionMissing(t *testing.T) {
	const hostedNamespace, unrelated = "definition-missing", "definition-missing-unrelated"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	for _, policy := range policies {
		enforce(t, policy, hostedNamespace, unrelated)
	}
	namespace(t, unrelated)
	bindKarpenter(t, hostedNamespace)
	component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: hostedNamespace, Name: v1beta1.KarpenterComponent}}
	g.Expect(management.Create(ctx, component)).To(Succeed())
	secret := func(namespace string) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s"}, Type: corev1.SecretTypeOpaque}
	}
	machine := func(namespace string) client.Object {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "blue-ca", Labels: labelsOf("blue-ca", "blue")}, Spec: clusterv1.MachineSpec{ClusterName: "blue"}}
	}
	karpenterAt := func(config *rest.Config) client.Client {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + hostedNamespace + ":karpenter", Groups: []string{"system:serviceaccounts", "system:authenticated"},
		}
		c, err := client.New(config, client.Options{Scheme: management.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		return c
	}
	bounded := func(g Gomega, karpenter client.Client) {
		g.Expect(karpenter.Create(ctx, secret(hostedNamespace), client.DryRunAll)).To(MatchError(ContainSubstring("of the type cluster.x-k8s.io/secret")))
		g.Expect(karpenter.Create(ctx, machine(hostedNamespace), client.DryRunAll)).To(MatchError(ContainSubstring("Secret of Cluster API's")))
	}
	karpenter := karpenterAt(clusters.Management.Config)
	g.Eventually(bounded).WithArguments(karpenter).Should(Succeed())

	t.Run("When the ControlPlaneComponent is deleted and Karpenter's Role is still there, Karpenter should be bounded as before", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Delete(ctx, component)).To(Succeed())
		g.Consistently(bounded, "2s", "200ms").WithArguments(karpenter).Should(Succeed(), "until garbage collection deletes the Role")
	})
	t.Run("When the CRD of ControlPlaneComponents is missing and an API server starts, it should bound Karpenters and no other user", func(t *testing.T) {
		g := NewWithT(t)
		definition := definition(components)
		g.Expect(management.Delete(ctx, definition)).To(Succeed())
		t.Cleanup(func() { installDefinitions(t) })
		g.Eventually(func() error { return management.Get(ctx, client.ObjectKeyFromObject(definition), definition) }).ShouldNot(Succeed())
		config := anotherAPIServer(t)
		g.Eventually(bounded).WithArguments(karpenterAt(config)).Should(Succeed(), "the policies are in force a moment after the start")
		admin, err := client.New(config, client.Options{Scheme: management.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range []client.Object{secret(unrelated), machine(unrelated), secret(hostedNamespace), machine(hostedNamespace)} {
			g.Expect(admin.Create(ctx, object, client.DryRunAll)).To(Succeed())
		}
	})
}
