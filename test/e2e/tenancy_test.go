// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// Story 6: two hosted clusters with identical names inside don't touch each other.
func TestTenancy(t *testing.T) {
	t.Parallel()
	left, right := take(t, blue), take(t, green)

	t.Run("When two clusters have the same names inside, it should keep their objects apart", func(t *testing.T) {
		g := NewWithT(t)
		for _, c := range []*cluster{left, right} {
			c.nodePool(t, "general")
			c.workload(t, "web", 2, "500m", apart)
		}
		for _, c := range []*cluster{left, right} {
			c.waitRunning(t, "web")
			machines := c.machines(g, t.Context())
			g.Expect(machines).To(HaveLen(2))
			g.Expect(machines).To(HaveEach(HaveField("Spec.ClusterName", c.name)))
		}
		kept := names(right.nodes(g, t.Context()))

		left.scale(t, "web", 0)
		left.waitNothingLeft(t)
		g.Expect(names(right.nodes(g, t.Context()))).To(ConsistOf(kept))
		g.Expect(right.machines(g, t.Context())).To(HaveLen(2))
	})

	t.Run("When Karpenter of one cluster asks for the other's objects, it should be refused", func(t *testing.T) {
		for _, pair := range [][2]*cluster{{left, right}, {right, left}} {
			from, to := pair[0], pair[1]
			for _, attributes := range []authorizationv1.ResourceAttributes{
				{Verb: "get", Resource: "secrets"},
				{Verb: "list", Resource: "secrets"},
				{Verb: "list", Group: clusterv1.GroupVersion.Group, Resource: "machines"},
				{Verb: "delete", Group: clusterv1.GroupVersion.Group, Resource: "machines"},
				{Verb: "create", Group: infrav1.GroupVersion.Group, Resource: "kwokmachines"},
			} {
				attributes.Namespace = to.namespace()
				NewWithT(t).Expect(from.mayInManagement(t, attributes)).To(BeFalse(), "%s: %v", from.name, attributes)
				attributes.Namespace = ""
				NewWithT(t).Expect(from.mayInManagement(t, attributes)).To(BeFalse(), "%s in all namespaces: %v", from.name, attributes)
			}
			own := authorizationv1.ResourceAttributes{
				Verb: "create", Group: clusterv1.GroupVersion.Group, Resource: "machines", Namespace: from.namespace()}
			NewWithT(t).Expect(from.mayInManagement(t, own)).To(BeTrue(), "the question itself has to be right")
		}
	})

	t.Run("When a guest's admin wants a machine to boot with a Secret of the platform's, it should be refused", func(t *testing.T) {
		for name, change := range map[string]func(*v1alpha1.ClusterAPINodeClassSpec){
			"by-name": func(spec *v1alpha1.ClusterAPINodeClassSpec) {
				spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: left.name + "-kubeconfig"}
			},
			"by-patch": func(spec *v1alpha1.ClusterAPINodeClassSpec) {
				spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{
					APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfig",
					Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/users/0/passwdFrom/secret/name", Value: left.name + "-kubeconfig"}},
				}}
			},
		} {
			g := NewWithT(t)
			class := &v1alpha1.ClusterAPINodeClass{}
			g.Expect(left.guest.Get(t.Context(), client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
			thief := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "thief-" + name}, Spec: class.Spec}
			change(&thief.Spec)
			g.Expect(left.guest.Create(t.Context(), thief)).To(Succeed())
			t.Cleanup(func() { _ = left.guest.Delete(context.WithoutCancel(t.Context()), thief) })
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(left.guest.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
				g.Expect(thief.StatusConditions().Get(v1alpha1.ConditionBootstrapReady)).To(HaveValue(And(
					HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.BootstrapNotAllowedReason))))
			}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
		}
	})
}

// mayInManagement asks management's API server what this cluster's Karpenter may do there.
func (c *cluster) mayInManagement(t *testing.T, attributes authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + c.namespace() + ":" + v1beta1.KarpenterComponent,
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + c.namespace(), "system:authenticated"},
		ResourceAttributes: &attributes,
	}}
	NewWithT(t).Expect(c.management.Create(t.Context(), review)).To(Succeed())
	return review.Status.Allowed
}
