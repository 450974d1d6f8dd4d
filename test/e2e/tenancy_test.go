// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

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
