// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// team is the namespace of both Clusters and HostedClusters of the test.
const team = "team"

// TestSharedNamespace: two plain Clusters are in one namespace, as users of Cluster API have them. Each gets a Karpenter of its own, with the same names
// inside, and neither touches what is the other's. The world is this test's own: it binds rights that no other test may have.
func TestSharedNamespace(t *testing.T) {
	t.Parallel()
	clusterPool.borrow(t, 3)
	own := startOwnWorld(t, localworld.Config{Guests: []string{blue, green}, SharedNamespace: team})
	left, right := newCluster(t, own, blue), newCluster(t, own, green)
	t.Cleanup(func() {
		if t.Failed() {
			left.describe(t)
			right.describe(t)
		}
	})
	left.shared, right.shared = team, team
	left.leavesNoTrace(t)
	both := []*cluster{left, right}
	bind := func(t *testing.T) {
		t.Helper()
		NewWithT(t).Expect(left.management.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: v1beta1.SharedNamespaceRole},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: v1beta1.SharedNamespaceRole},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: localworld.OperatorNamespace, Name: localworld.OperatorServiceAccount}},
		})).To(Succeed())
	}

	t.Run("When the namespace's owner hasn't let the operator in, it should say what to run", func(t *testing.T) {
		left.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = autoNode() })
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(left.condition(g, ctx, v1beta1.ValidConfiguration)).To(And(
				HaveField("Reason", v1beta1.NamespaceAccessMissingReason), HaveField("Message", ContainSubstring("create rolebinding"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		bind(t)
	})

	t.Run("When two clusters share a namespace, both should get nodes", func(t *testing.T) {
		g := NewWithT(t)
		for _, c := range both {
			c.enable(t, initialRelease)
		}
		for _, c := range both {
			c.nodePool(t, "general")
			c.workload(t, "web", 2, "500m", apart)
		}
		for _, c := range both {
			c.waitRunning(t, "web")
			machines := c.machines(g, t.Context())
			g.Expect(machines).To(HaveLen(2))
			g.Expect(machines).To(HaveEach(HaveField("Spec.ClusterName", c.name)))
			lease := &coordinationv1.Lease{}
			g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: team, Name: c.names().LeaderElection}, lease)).To(Succeed())
		}
	})

	t.Run("When a guest's admin selects templates, it should find those of its own Cluster only", func(t *testing.T) {
		g := NewWithT(t)
		class := left.defaultClass(g, t.Context())
		g.Expect(class.Status.Templates).NotTo(BeEmpty())
		g.Expect(class.Status.Templates).To(HaveEach(HaveField("Source", ContainSubstring("/"+hosting.TemplatePrefix(left.name)))))
		thief := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: class.Spec}
		thief.Spec.Bootstrap = class.Spec.Bootstrap.DeepCopy()
		thief.Spec.Bootstrap.ConfigTemplateRef.Name = hosting.TemplatePrefix(right.name) + hosting.BootstrapTemplate
		// The guest's own policies don't refuse the operator.
		g.Expect(left.guestAs(t, operatorInGuest).Create(t.Context(), thief)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(left.guest.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
			g.Expect(thief.StatusConditions().Get(v1alpha1.ConditionBootstrapReady)).To(HaveValue(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.BootstrapNotAllowedReason))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(left.guest.Delete(t.Context(), thief)).To(Succeed())
	})

	t.Run("When Karpenter of one cluster writes what is the other's, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		asLeft := left.managementAs(t)
		theirs := right.machines(g, t.Context())[0]
		g.Expect(asLeft.Delete(t.Context(), theirs.DeepCopy())).To(MatchError(ContainSubstring("may write only what is its own Cluster's")))
		infrastructure := &infrav1.KwokMachine{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: theirs.Spec.InfrastructureRef.Name}}
		g.Expect(asLeft.Delete(t.Context(), infrastructure)).To(MatchError(ContainSubstring("may write only what is its own Cluster's")))
		// It is as Karpenter makes them, so that no other policy refuses it, too: which one answers is the API server's choice.
		ours := left.machines(g, t.Context())[0]
		forged := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: ours.Name, Labels: ours.Labels, Annotations: ours.Annotations}}
		forged.Spec = *ours.Spec.DeepCopy()
		forged.Spec.ClusterName, forged.Spec.ProviderID = right.name, ""
		// Cluster API's webhook has corrected the label by then.
		g.Expect(asLeft.Create(t.Context(), forged)).To(MatchError(ContainSubstring("may write only what is its own Cluster's")))
		secret := &corev1.Secret{}
		for _, name := range []string{right.names().GuestAccess, right.name + "-kubeconfig"} {
			g.Expect(asLeft.Get(t.Context(), client.ObjectKey{Namespace: team, Name: name}, secret)).To(MatchError(ContainSubstring("forbidden")))
		}
	})

	t.Run("When one cluster has no use for its nodes and AutoNode is turned off, the other's nodes and objects should stay", func(t *testing.T) {
		g := NewWithT(t)
		kept, objects, disrupted := names(right.nodes(g, t.Context())), right.leftovers(g, t.Context()), right.watchDisruptions(t)
		left.scale(t, "web", 0)
		left.waitNothingLeft(t)
		left.disable(t, t.Context())
		g.Expect(names(right.nodes(g, t.Context()))).To(ConsistOf(kept))
		g.Expect(right.leftovers(g, t.Context())).To(Equal(objects))
		expectUndisturbed(t, disrupted)
		g.Eventually(func(g Gomega, ctx context.Context) { // the garbage collector takes a moment
			for name, object := range map[string]client.Object{left.names().GuestAccess: &corev1.Secret{}, left.names().Karpenter: &rbacv1.Role{}} {
				g.Expect(apierrors.IsNotFound(left.management.Get(ctx, client.ObjectKey{Namespace: team, Name: name}, object))).To(BeTrue(), name)
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		for name, object := range map[string]client.Object{right.names().GuestAccess: &corev1.Secret{}, right.names().Karpenter: &rbacv1.Role{}} {
			g.Expect(right.management.Get(t.Context(), client.ObjectKey{Namespace: team, Name: name}, object)).To(Succeed())
		}
	})

	t.Run("When the HostedCluster of the first is deleted, the other should still get nodes", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(left.management.Delete(t.Context(), left.hostedCluster(g, t.Context()))).To(Succeed())
		left.waitGone(t)
		right.scale(t, "web", 3)
		right.waitRunning(t, "web")
		g.Expect(right.machines(g, t.Context())).To(HaveLen(3))
	})
}

// names are what the cluster's objects are called in its control-plane namespace.
func (c *cluster) names() v1beta1.Names {
	if c.shared != "" {
		return v1beta1.SharedNames(c.name)
	}
	return v1beta1.DedicatedNames()
}

// managementAs is a client of the management cluster with a token of this cluster's Karpenter, and nothing else.
func (c *cluster) managementAs(t *testing.T) client.Client {
	t.Helper()
	g := NewWithT(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: c.names().Karpenter}}
	token := &authenticationv1.TokenRequest{}
	g.Expect(c.management.SubResource("token").Create(t.Context(), account, token)).To(Succeed())
	config := rest.AnonymousClientConfig(c.world.Management().RESTConfig())
	config.BearerToken, config.UserAgent = token.Status.Token, testerAgent
	as, err := newClient(config)
	g.Expect(err).NotTo(HaveOccurred())
	return as
}
