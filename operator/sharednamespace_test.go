// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/manifests"
)

// asInstalled gives the operator of a test the rights that an installation gives it, and returns its configuration.
func asInstalled(t *testing.T) *rest.Config {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	objects, err := manifests.Render(manifests.Options{Image: "registry.example/operator:1"})
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GroupVersionKind().Group == rbacv1.GroupName || object.GetKind() == "Namespace" {
			g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), object))).To(Succeed())
		}
	}
	config := rest.CopyConfig(clusters.Management.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + manifests.Namespace + ":" + manifests.Operator,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + manifests.Namespace, "system:authenticated"},
	}
	return config
}

// share lets the operator write in a namespace, as its owner would.
func share(t *testing.T, namespace string) {
	t.Helper()
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.SharedNamespaceRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: v1beta1.SharedNamespaceRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: manifests.Namespace, Name: manifests.Operator}},
	})).To(Succeed())
}

func createNamespace(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
}

func TestSharedNamespace(t *testing.T) {
	const label = "shared-namespaces"
	provide(t)
	removeAll(t, label)
	options := selecting(label)
	options.LeaderElectionNamespace = manifests.Namespace
	run(t, asInstalled(t), options)
	release := push(t, serveRegistry(t), "1.36.3")
	management := clusters.Management.Client

	// plain makes a Cluster that isn't provisioned, so that its guest stays out of it, and its HostedCluster beside it.
	plain := func(t *testing.T, namespace, name string, mode v1beta1.ControlPlaneNamespaceMode, infraID string) *v1beta1.HostedCluster {
		t.Helper()
		g := NewWithT(t)
		hostedCluster := newHosted(namespace, name, release, label)
		hostedCluster.Spec.InfraID, hostedCluster.Spec.ControlPlaneNamespace, hostedCluster.Spec.ControlPlaneNamespaceMode = infraID, namespace, mode
		g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: hostedCluster.ClusterName(), Annotations: map[string]string{v1beta1.ConsentAnnotation: namespace + "/" + name},
		}}))).To(Succeed())
		g.Expect(management.Create(t.Context(), hostedCluster)).To(Succeed())
		return hostedCluster
	}
	expect := func(t *testing.T, hostedCluster *v1beta1.HostedCluster, reason, message string) {
		t.Helper()
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(hostedCluster), hostedCluster)).To(Succeed())
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal(reason))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring(message))
		}).WithContext(t.Context()).Should(Succeed())
	}

	t.Run("When the namespace's owner hasn't bound the ClusterRole, it should say what to run, and go on once it is bound", func(t *testing.T) {
		g := NewWithT(t)
		createNamespace(t, "team-unbound")
		blue := plain(t, "team-unbound", "blue", v1beta1.ControlPlaneNamespaceShared, "")
		expect(t, blue, "False/NamespaceAccessMissing", "kubectl -n team-unbound create rolebinding autonode-system-shared-namespace "+
			"--clusterrole=autonode-system-shared-namespace --serviceaccount=autonode-system:autonode-operator")
		g.Expect(blue.Finalizers).To(BeEmpty(), "nothing is made")
		share(t, "team-unbound")
		// A change of the HostedCluster triggers the next check at once, and not after half a minute.
		before := blue.DeepCopy()
		metav1.SetMetaDataAnnotation(&blue.ObjectMeta, "example.com/look", "again")
		g.Expect(management.Patch(t.Context(), blue, client.MergeFrom(before))).To(Succeed())
		expect(t, blue, "True/AsExpected", "")
	})

	t.Run("When two HostedClusters share a namespace, each should have a component of its own", func(t *testing.T) {
		g := NewWithT(t)
		createNamespace(t, "team-two")
		share(t, "team-two")
		for _, name := range []string{"blue", "green"} {
			expect(t, plain(t, "team-two", name, v1beta1.ControlPlaneNamespaceShared, ""), "True/AsExpected", "")
			component := scopetest.Get(t.Context(), g, management, "team-two", "karpenter-"+name, &v1beta1.ControlPlaneComponent{})
			g.Expect(component.Labels).To(And(
				HaveKeyWithValue(v1beta1.HostedClusterLabel, name), HaveKeyWithValue(v1beta1.ClusterNameLabel, name),
				HaveKeyWithValue(v1beta1.ControlPlaneNamespaceModeLabel, "Shared")))
		}
		expect(t, plain(t, "team-two", "other", v1beta1.ControlPlaneNamespaceShared, "blue"), "False/InvalidSpec",
			"spec.infraID: Cluster team-two/blue already belongs to HostedCluster team-two/blue")
		expect(t, plain(t, "team-two", "third", v1beta1.ControlPlaneNamespaceDedicated, ""), "False/InvalidSpec",
			"spec.controlPlaneNamespace: namespace team-two already belongs to HostedCluster team-two/")

		blue := scopetest.Get(t.Context(), g, management, "team-two", "blue", &v1beta1.HostedCluster{})
		g.Expect(management.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-two", Name: "blue"}})).To(Succeed())
		g.Expect(management.Delete(t.Context(), blue)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			components := &v1beta1.ControlPlaneComponentList{}
			g.Expect(management.List(ctx, components, client.InNamespace("team-two"))).To(Succeed())
			g.Expect(components.Items).To(ConsistOf(And(HaveField("Name", "karpenter-green"), HaveField("DeletionTimestamp", BeNil()))))
		}).WithContext(t.Context()).Should(Succeed())
	})

	t.Run("When the first HostedCluster of a namespace doesn't share it, the second should say so", func(t *testing.T) {
		createNamespace(t, "team-dedicated")
		share(t, "team-dedicated")
		expect(t, plain(t, "team-dedicated", "blue", v1beta1.ControlPlaneNamespaceDedicated, ""), "True/AsExpected", "")
		expect(t, plain(t, "team-dedicated", "green", v1beta1.ControlPlaneNamespaceShared, ""), "False/InvalidSpec",
			"spec.controlPlaneNamespaceMode: namespace team-dedicated already belongs to HostedCluster team-dedicated/blue, which doesn't share it")
	})

	t.Run("When the component of the other mode is another operator's, it should be found all the same", func(t *testing.T) {
		g := NewWithT(t)
		createNamespace(t, "team-unseen")
		share(t, "team-unseen")
		g.Expect(management.Create(t.Context(), &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-unseen", Name: "karpenter",
			Labels: map[string]string{v1beta1.HostedClusterLabel: "unseen", v1beta1.HostedClusterNamespaceLabel: "elsewhere"},
		}})).To(Succeed())
		expect(t, plain(t, "team-unseen", "green", v1beta1.ControlPlaneNamespaceShared, ""), "False/InvalidSpec", "HostedCluster elsewhere/unseen")
	})

	t.Run("When the namespace is deleted, and the operator's rights there with it, the HostedCluster should go once no Machine is left", func(t *testing.T) {
		g := NewWithT(t)
		createNamespace(t, "team-ending")
		share(t, "team-ending")
		blue := plain(t, "team-ending", "blue", v1beta1.ControlPlaneNamespaceShared, "")
		expect(t, blue, "True/AsExpected", "")
		machine := newMachine("team-ending", "blue", "general-abcde")
		g.Expect(management.Create(t.Context(), machine)).To(Succeed())
		// No controller deletes what is in a namespace here.
		for _, object := range []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-ending"}},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team-ending", Name: v1beta1.SharedNamespaceRole}},
			&v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: "team-ending", Name: "karpenter-blue"}},
			blue,
		} {
			g.Expect(management.Delete(t.Context(), object)).To(Succeed())
		}
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(blue), blue)).To(Succeed())
			g.Expect(blue.Status.AutoNode.Message).To(ContainSubstring("waiting for Machine general-abcde"))
		}).WithContext(t.Context()).Should(Succeed())
		g.Expect(management.Delete(t.Context(), machine)).To(Succeed())
		g.Eventually(func(g Gomega) { scopetest.ExpectGone(t.Context(), g, management, blue) }).Should(Succeed())
	})

	t.Run("When a guest is reached, Karpenter's objects should have the Cluster's name, and the operator the rights to make them", func(t *testing.T) {
		g := NewWithT(t)
		createNamespace(t, "team-whole")
		share(t, "team-whole")
		provision(t, "team-whole", "violet", "team-whole/violet", clusters.Guest.Config)
		plain(t, "team-whole", "violet", v1beta1.ControlPlaneNamespaceShared, "")
		names := v1beta1.SharedNames("violet")
		for name, object := range map[string]client.Object{
			names.Karpenter: &appsv1.Deployment{}, names.GuestAccess: &corev1.Secret{},
		} {
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "team-whole", Name: name}, object)).To(Succeed())
			}).WithContext(t.Context()).Should(Succeed())
		}
		scopetest.Get(t.Context(), g, management, "team-whole", names.Karpenter, &rbacv1.Role{})
		for _, object := range []client.Object{&appsv1.Deployment{}, &corev1.Secret{}, &corev1.ServiceAccount{}} {
			for _, name := range []string{v1beta1.DedicatedNames().Karpenter, v1beta1.DedicatedNames().GuestAccess} {
				g.Expect(management.Get(t.Context(), client.ObjectKey{Namespace: "team-whole", Name: name}, object)).NotTo(Succeed(), "%T %s", object, name)
			}
		}
	})
}
