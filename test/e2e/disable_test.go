// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Story 5: turning AutoNode off drains and removes; turning it on again works; deleting the HostedCluster leaves nothing.
func TestDisable(t *testing.T) {
	t.Parallel()
	c := take(t, green)

	t.Run("When AutoNode is disabled, it should drain the nodes within a PodDisruptionBudget, then remove Karpenter", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "general")
		c.workload(t, "web", 2, "500m", apart)
		c.waitRunning(t, "web")
		blocking := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: new(intstr.FromInt32(0)),
				Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			},
		}
		g.Expect(c.guest.Create(t.Context(), blocking)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(blocking), blocking)).To(Succeed())
			g.Expect(blocking.Status.ExpectedPods).To(BeEquivalentTo(2))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
				HaveField("Status", metav1.ConditionFalse),
				HaveField("Reason", v1beta1.AutoNodeDrainingReason),
				HaveField("Message", ContainSubstring("PodDisruptionBudget default/web")),
			))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(c.karpenter(t).DeletionTimestamp).To(BeNil(), "Karpenter has to run while it drains")

		g.Expect(c.guest.Delete(t.Context(), blocking)).To(Succeed())
		c.waitDisabled(t)
		g.Expect(c.leftovers(g, t.Context())).To(BeEmpty())
		pool := &karpenterv1.NodePool{}
		g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: "general"}, pool)).To(Succeed(), "NodePools stay")
		c.expectUntouched(t, func(object string) bool { return ofStory(object) || staysInGuest(object) })
	})

	t.Run("When AutoNode is enabled again, it should make nodes for the NodePools that stayed", func(t *testing.T) {
		c.enable(t, initialRelease)
		c.waitRunning(t, "web")
	})

	t.Run("When the HostedCluster is deleted, it should leave nothing in either cluster", func(t *testing.T) {
		g := NewWithT(t)
		hosted := c.hostedCluster(g, t.Context())
		restored := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: hosted.Namespace, Name: hosted.Name, Labels: hosted.Labels, Annotations: hosted.Annotations},
			Spec:       hosted.Spec,
		}
		restored.Spec.AutoNode = nil
		g.Expect(c.management.Delete(t.Context(), hosted)).To(Succeed())
		c.waitGone(t)
		c.expectUntouched(t, func(object string) bool {
			return ofStory(object) || strings.HasPrefix(object, "management HostedCluster ")
		})
		g.Expect(c.management.Create(t.Context(), restored)).To(Succeed())
	})
}

// waitDisabled waits until nothing of AutoNode runs.
func (c *cluster) waitDisabled(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.AutoNodeNotConfiguredReason)))
		g.Expect(c.karpenterObjects(g, ctx)).To(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// waitGone waits until the HostedCluster doesn't exist any more.
func (c *cluster) waitGone(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		err := c.management.Get(ctx, c.key(), &v1beta1.HostedCluster{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "HostedCluster: %v", err)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// karpenterObjects names what makes Karpenter up in the control-plane namespace.
func (c *cluster) karpenterObjects(g Gomega, ctx context.Context) []string {
	ours := client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}
	if c.shared != "" {
		ours[v1beta1.HostedClusterLabel] = c.name
	}
	return c.list(g, ctx, c.management, []client.ListOption{client.InNamespace(c.namespace()), ours}, &appsv1.DeploymentList{}, &corev1.ServiceAccountList{}, &corev1.SecretList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}, &v1beta1.ControlPlaneComponentList{})
}

func (c *cluster) list(g Gomega, ctx context.Context, reader client.Reader, options []client.ListOption, lists ...client.ObjectList) []string {
	var found []string
	for _, list := range lists {
		err := reader.List(ctx, list, options...)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // the kind itself has gone
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(meta.EachListItem(list, func(object runtimeObject) error {
			found = append(found, fmt.Sprintf("%T %s", object, object.(client.Object).GetName()))
			return nil
		})).To(Succeed())
	}
	return found
}
