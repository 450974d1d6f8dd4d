// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

// TestMachinePolicy is a Karpenter that its guest's admin has taken over. It creates Machines, and Cluster API reads or overwrites the Secrets that
// those name.
func TestMachinePolicy(t *testing.T) {
	const namespaceName = "machine-policy"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	_, err := envtest.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := os.ReadFile("../../manifests/policy/machines.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		g.Expect(client.IgnoreAlreadyExists(management.Create(ctx, object))).To(Succeed())
	}
	namespace(t, namespaceName)
	g.Expect(management.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: "karpenter"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespaceName, Name: "karpenter"}},
	})).To(Succeed())
	g.Expect(management.Create(ctx, &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: v1beta1.KarpenterComponent}})).To(Succeed())
	config := rest.CopyConfig(clusters.Management.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespaceName + ":karpenter", Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	karpenter, err := client.New(config, client.Options{Scheme: management.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())

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
