// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

// TestMachinePolicy has a compromised Karpenter create Machines. Cluster API reads or overwrites the Secrets that they
// name.
func TestMachinePolicy(t *testing.T) {
	const namespaceName = "machine-policy"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	_, err := envtest.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	createManifest(t, "../../manifests/policy/machines.yaml")
	bindKarpenter(t, namespaceName)
	g.Expect(management.Create(ctx, &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: v1beta1.KarpenterComponent}})).To(Succeed())
	karpenter := karpenterOf(t, namespaceName)

	machine := func(name, secret string) client.Object {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: name}, Spec: clusterv1.MachineSpec{ClusterName: "blue"}}
		if secret != "" {
			m.Spec.Bootstrap.DataSecretName = ptr.To(secret)
		}
		return m
	}
	kubeadmConfig := func(name string) client.Object {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("bootstrap.cluster.x-k8s.io/v1beta2")
		object.SetKind("KubeadmConfig")
		object.SetNamespace(namespaceName)
		object.SetName(name)
		return object
	}
	const ofClusterAPI, ofOperator = "Secret of Cluster API's", "Secret of the operator's"
	attacks := map[string]struct {
		object client.Object
		want   string
	}{
		"a Machine that names the kubeconfig":               {machine("general-abcde", "blue-kubeconfig"), ofClusterAPI},
		"a Machine that names a user's kubeconfig":          {machine("general-abcde", "blue-user-kubeconfig"), ofClusterAPI},
		"a Machine that names another Cluster's CA":         {machine("general-abcde", "green-ca"), ofClusterAPI},
		"a Machine that names Karpenter's access":           {machine("general-abcde", v1beta1.GuestAccessSecret), ofOperator},
		"a Machine that is called like the CA":              {machine("blue-ca", ""), ofClusterAPI},
		"a Machine that is called like the pull secret":     {machine("karpenter-pull-secret", ""), ofOperator},
		"a bootstrap config that is called like the CA":     {kubeadmConfig("blue-ca"), ofClusterAPI},
		"a bootstrap config that is called like etcd's key": {kubeadmConfig("blue-apiserver-etcd-client"), ofClusterAPI},
	}
	g.Eventually(func() error {
		return karpenter.Create(ctx, machine("blue-ca", ""), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(ofClusterAPI)), "the policy is in force a moment after it was made")

	for name, attack := range attacks {
		t.Run("When Karpenter creates "+name+", it should be refused, and no admin", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, attack.object.DeepCopyObject().(client.Object), client.DryRunAll)).To(MatchError(ContainSubstring(attack.want)))
			g.Expect(management.Create(ctx, attack.object, client.DryRunAll)).To(Succeed())
		})
	}
	t.Run("When Karpenter changes a Machine to name the kubeconfig, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		m := &clusterv1.Machine{}
		g.Expect(karpenter.Create(ctx, machine("general-vwxyz", "workers"))).To(Succeed())
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespaceName, Name: "general-vwxyz"}, m)).To(Succeed())
		before := m.DeepCopy()
		m.Spec.Bootstrap.DataSecretName = ptr.To("blue-kubeconfig")
		g.Expect(karpenter.Patch(ctx, m, client.MergeFrom(before), client.DryRunAll)).To(MatchError(ContainSubstring(ofClusterAPI)))
	})
	t.Run("When Karpenter creates what it makes for a NodeClaim, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		for _, object := range []client.Object{machine("general-abcde", ""), machine("general-abcde", "karpenter-bootstrap-abcdef"), machine("general-abcde", "workers"), kubeadmConfig("general-abcde")} {
			g.Expect(karpenter.Create(ctx, object, client.DryRunAll)).To(Succeed())
		}
	})
}
