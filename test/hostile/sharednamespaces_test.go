// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"math"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// TestSharedNamespaces has a compromised Karpenter, with all rights in its namespace, reach for what another Cluster of the namespace has.
func TestSharedNamespaces(t *testing.T) {
	const namespaceName = "shared-namespaces"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachine", "kwokmachines", "v1beta1"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	for _, policy := range []string{"machines", "bootstrapsecrets", "sharednamespaces"} {
		enforce(t, policy, namespaceName)
	}
	namespace(t, namespaceName)
	as := func(cluster string) client.Client {
		names := v1beta1.SharedNames(cluster)
		bindServiceAccount(t, namespaceName, names, references.InstancePrefix(v1alpha1.InstancePrefix("uid")), references.ClusterName(cluster))
		return serviceAccount(t, namespaceName, names.Karpenter)
	}
	blue, green := as("blue"), as("green")

	meta := func(name, cluster string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespaceName, Name: name, Labels: labelsOf(name, cluster)}
	}
	machine := func(name, label, cluster string) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: meta(name, label), Spec: clusterv1.MachineSpec{ClusterName: cluster}}
		m.Name = v1alpha1.InstanceName("uid", name)
		return m
	}
	other := func(apiVersion, kind, name, cluster string) client.Object {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(apiVersion)
		object.SetKind(kind)
		object.SetNamespace(namespaceName)
		object.SetName(v1alpha1.InstanceName("uid", name))
		object.SetLabels(labelsOf(name, cluster))
		return object
	}
	infrastructure := func(name, cluster string) client.Object {
		return other("infrastructure.cluster.x-k8s.io/v1beta1", "KwokMachine", name, cluster)
	}
	config := func(name, cluster string) client.Object {
		return other("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", name, cluster)
	}
	secret := func(cluster string) client.Object {
		s := &corev1.Secret{ObjectMeta: meta("karpenter-bootstrap-abcde", cluster), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": nil}}
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1", Kind: "KwokMachine", Name: "general-abcde", UID: "1"}}
		return s
	}
	lease := func(cluster string) client.Object {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: v1beta1.SharedNames(cluster).LeaderElection}}
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = ptr.To("blue"), ptr.To(int32(math.MaxInt32))
		return l
	}
	const ofCluster, ofLabel = "may write only what is its own Cluster's", "may create only Secrets with the label cluster.x-k8s.io/cluster-name=blue"
	g.Eventually(func() error {
		return blue.Create(ctx, infrastructure("general-abcde", "green"), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(ofCluster)), "the policy is in force a moment after it was made")
	g.Eventually(func() error { return blue.Create(ctx, lease("green"), client.DryRunAll) }).Should(MatchError(ContainSubstring("may create only the Lease")))

	for name, attack := range map[string]struct {
		object client.Object
		want   string
	}{
		"a Machine of another Cluster":                         {machine("general-abcde", "green", "green"), ofCluster},
		"a Machine of another Cluster with its own label":      {machine("general-abcde", "blue", "green"), ofCluster},
		"an infrastructure machine of another Cluster":         {infrastructure("general-abcde", "green"), ofCluster},
		"an infrastructure machine of no Cluster":              {infrastructure("general-abcde", ""), ofCluster},
		"a bootstrap config of another Cluster":                {config("general-abcde", "green"), ofCluster},
		"a bootstrap Secret of another Cluster":                {secret("green"), ofLabel},
		"a Secret that isn't bootstrap data":                   {&corev1.Secret{ObjectMeta: meta("token", "blue")}, "of the type cluster.x-k8s.io/secret"},
		"the Lease of another Cluster's Karpenter":             {lease("green"), "may create only the Lease karpenter-leader-election-blue"},
		"a Machine that is called like another Cluster's CA":   {machine("green-ca", "blue", "blue"), "Secret of Cluster API's"},
		"a Machine that is called like another's guest access": {&clusterv1.Machine{ObjectMeta: meta("karpenter-guest-access-green", "blue"), Spec: clusterv1.MachineSpec{ClusterName: "blue"}}, "Secret of the operator's"},
	} {
		t.Run("When Karpenter creates "+name+", it should be refused, and no admin", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(blue.Create(ctx, attack.object.DeepCopyObject().(client.Object), client.DryRunAll)).To(MatchError(ContainSubstring(attack.want)))
			g.Expect(management.Create(ctx, attack.object, client.DryRunAll)).To(Succeed())
		})
	}
	t.Run("When Karpenter changes or deletes what another Cluster has, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		theirs := []client.Object{machine("general-vwxyz", "green", "green"), infrastructure("general-vwxyz", "green"), config("general-vwxyz", "green")}
		for _, object := range theirs {
			g.Expect(green.Create(ctx, object)).To(Succeed())
			before := object.DeepCopyObject().(client.Object)
			object.SetLabels(labelsOf("general-vwxyz", "blue"))
			g.Expect(blue.Patch(ctx, object.DeepCopyObject().(client.Object), client.MergeFrom(before))).To(MatchError(ContainSubstring(ofCluster)), "it mustn't take it")
			g.Expect(blue.Delete(ctx, object)).To(MatchError(ContainSubstring(ofCluster)))
			g.Expect(green.Delete(ctx, object)).To(Succeed())
		}
	})
	t.Run("When a Karpenter with a namespace of its own creates the Lease of another program, it should be refused", func(t *testing.T) {
		g, dedicated := NewWithT(t), lease("green")
		bindKarpenter(t, namespaceName)
		karpenter := karpenterOf(t, namespaceName)
		g.Expect(karpenter.Create(ctx, dedicated, client.DryRunAll)).To(MatchError(ContainSubstring("may create only the Lease karpenter-leader-election")))
		dedicated.SetName(v1beta1.DedicatedNames().LeaderElection)
		g.Expect(karpenter.Create(ctx, dedicated, client.DryRunAll)).To(Succeed())
	})
	t.Run("When Karpenter writes what is its own, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		bound := machine("general-abcde", "blue", "blue")
		bound.Spec.Bootstrap.DataSecretName = ptr.To("karpenter-bootstrap-abcde")
		for _, object := range []client.Object{infrastructure("general-abcde", "blue"), config("general-abcde", "blue"), secret("blue"), bound, lease("blue")} {
			g.Expect(blue.Create(ctx, object)).To(Succeed())
		}
		before := bound.DeepCopy()
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, v1alpha1.InstanceGoneAnnotation, "gone")
		g.Expect(blue.Patch(ctx, bound, client.MergeFrom(before))).To(Succeed())
		g.Expect(blue.Delete(ctx, bound)).To(Succeed())
	})
}

// labelsOf are those of an object that a Karpenter has made for a NodeClaim of the same name; no Cluster's if cluster is empty.
func labelsOf(name, cluster string) map[string]string {
	labels := map[string]string{v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "1"}
	if cluster != "" {
		labels[v1beta1.ClusterNameLabel] = cluster
	}
	return labels
}
