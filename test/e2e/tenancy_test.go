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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestTenancy: two hosted clusters with identical names inside don't touch each other.
func TestTenancy(t *testing.T) {
	t.Parallel()
	both := acquireClusters(t, blue, green)
	left, right := both[0], both[1]
	for _, c := range both {
		c.enable(t, initialRelease)
	}

	t.Run("When two clusters have the same names inside, it should keep their objects apart", func(t *testing.T) {
		g := NewWithT(t)
		for _, c := range both {
			c.nodePool(t, "general")
			c.workload(t, "web", 2, "500m", apart)
		}
		for _, c := range both {
			c.waitRunning(t, "web")
			machines := c.machines(g, t.Context())
			g.Expect(machines).To(HaveLen(2))
			g.Expect(machines).To(HaveEach(HaveField("Spec.ClusterName", c.name)))
		}
		kept, disrupted := names(right.nodes(g, t.Context())), right.watchDisruptions(t)

		left.scale(t, "web", 0)
		left.waitNothingLeft(t)
		g.Expect(names(right.nodes(g, t.Context()))).To(ConsistOf(kept))
		expectUndisturbed(t, disrupted)
		g.Expect(right.machines(g, t.Context())).To(HaveLen(2))
	})

	t.Run("When an attacker has Karpenter's token, it should open nothing of another's control plane", func(t *testing.T) {
		for _, pair := range [][2]*cluster{{left, right}, {right, left}} {
			from, to := pair[0], pair[1]
			asKarpenter := from.inManagement(t, from.karpenterToken(t))
			_, err := asKarpenter.Resource(clusterv1.GroupVersion.WithResource("machines")).Namespace(from.namespace()).List(t.Context(), metav1.ListOptions{})
			NewWithT(t).Expect(err).NotTo(HaveOccurred(), "the token itself has to work")
			for _, resource := range []schema.GroupVersionResource{
				corev1.SchemeGroupVersion.WithResource("secrets"),
				corev1.SchemeGroupVersion.WithResource("configmaps"),
				corev1.SchemeGroupVersion.WithResource("pods"),
				coordinationv1.SchemeGroupVersion.WithResource("leases"),
				clusterv1.GroupVersion.WithResource("machines"),
				clusterv1.GroupVersion.WithResource("clusters"),
				infrav1.GroupVersion.WithResource("kwokmachines"),
				bootstrapv1.GroupVersion.WithResource("kubeadmconfigs"),
				rbacv1.SchemeGroupVersion.WithResource("roles"),
				v1beta1.GroupVersion.WithResource("hostedclusters"),
			} {
				for verb, err := range attempts(t.Context(), asKarpenter.Resource(resource).Namespace(to.namespace())) {
					NewWithT(t).Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s %s in %s as Karpenter of %s: %v", verb, resource, to.namespace(), from.name, err)
				}
			}
		}
	})

	t.Run("When a guest's admin reads everything that is in the guest, it should hold nothing that leads to the management cluster", func(t *testing.T) {
		g := NewWithT(t)
		findings, err := managementCredentialsIn(t.Context(), world, world.Guest(right.name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(findings).To(BeEmpty())
	})

	t.Run("When an attacker has Karpenter's token for a guest, it should open nothing in the management cluster", func(t *testing.T) {
		g := NewWithT(t)
		asKarpenter := right.inManagement(t, string(right.guestAccess(g, t.Context()).Data["token"]))
		for verb, err := range attempts(t.Context(), asKarpenter.Resource(clusterv1.GroupVersion.WithResource("machines")).Namespace(right.namespace())) {
			g.Expect(apierrors.IsUnauthorized(err)).To(BeTrue(), "%s: %v", verb, err)
		}
	})

	t.Run("When a guest's admin has a machine boot with a Secret of the platform's, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		thief := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: left.defaultClass(g, t.Context()).Spec}
		thief.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: left.name + "-kubeconfig"}
		g.Expect(left.guest.Create(t.Context(), thief.DeepCopy())).To(MatchError(ContainSubstring("HostedCluster %s", left.key())), "policies are in force")
		// Whoever gets past the policies doesn't get past Karpenter.
		g.Expect(left.guestAs(t, operatorInGuest).Create(t.Context(), thief)).To(Succeed())
		t.Cleanup(func() { _ = left.guest.Delete(context.WithoutCancel(t.Context()), thief) })
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(left.guest.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
			g.Expect(thief.StatusConditions().Get(v1alpha1.ConditionBootstrapReady)).To(HaveValue(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.BootstrapNotAllowedReason))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}

// karpenterToken is a token of this cluster's Karpenter, such as its pods have.
func (c *cluster) karpenterToken(t *testing.T) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: c.names().Karpenter}}
	token := &authenticationv1.TokenRequest{}
	NewWithT(t).Expect(c.management.SubResource("token").Create(t.Context(), account, token)).To(Succeed())
	return token.Status.Token
}

// inManagement is the management cluster with a token and nothing else.
func (c *cluster) inManagement(t *testing.T, token string) dynamic.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(c.world.Management().RESTConfig())
	config.BearerToken = token
	config.UserAgent = testerAgent
	management, err := dynamic.NewForConfig(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return management
}

// guestAccess holds Karpenter's token for the guest.
func (c *cluster) guestAccess(g Gomega, ctx context.Context) *corev1.Secret {
	secret := &corev1.Secret{}
	g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
	return secret
}

// attempts tries every verb. Nothing would change if one of them were allowed.
func attempts(ctx context.Context, resource dynamic.ResourceInterface) map[string]error {
	const name = "nobody"
	none, dryRun := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}}}, []string{metav1.DryRunAll}
	return map[string]error{
		"get":              second(resource.Get(ctx, name, metav1.GetOptions{})),
		"list":             second(resource.List(ctx, metav1.ListOptions{})),
		"watch":            second(resource.Watch(ctx, metav1.ListOptions{TimeoutSeconds: new(int64(1))})),
		"create":           second(resource.Create(ctx, none, metav1.CreateOptions{DryRun: dryRun})),
		"update":           second(resource.Update(ctx, none, metav1.UpdateOptions{DryRun: dryRun})),
		"patch":            second(resource.Patch(ctx, name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: dryRun})),
		"delete":           resource.Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun}),
		"deletecollection": resource.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dryRun}, metav1.ListOptions{}),
	}
}

func second[T any](_ T, err error) error { return err }
