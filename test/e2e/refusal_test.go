// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// refusedDrain is how long the nodes of this story may drain, and how long they are then forced.
const refusedDrain = time.Minute

// Story 19: a guest's admin keeps AutoNode from going: an admission policy denies the deletion of NodeClaims, and the mark on node classes
// that keeps Karpenter from launching. The drain ends all the same, at its deadline. The world is this story's own, because Karpenter is
// denied what it asks for there.
func TestRefusal(t *testing.T) {
	g := NewWithT(t)
	own, remove, err := startWorld(t.Context(), os.Stdout, blue)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		NewWithT(t).Expect(own.Stop()).To(Succeed())
		remove(t.Failed())
	})
	c := newCluster(t, own, blue)
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t)
		}
	})

	for _, end := range []struct {
		name string
		do   func(t *testing.T)
		done func(t *testing.T)
	}{
		{
			name: "When AutoNode is turned off and the guest refuses, it should end through the management cluster at the deadline",
			do:   func(t *testing.T) { c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil }) },
			done: func(t *testing.T) { c.waitDisabled(t) },
		}, {
			name: "When the HostedCluster is deleted and the guest refuses, it should go at the deadline",
			do: func(t *testing.T) {
				NewWithT(t).Expect(c.management.Delete(t.Context(), c.hostedCluster(NewWithT(t), t.Context()))).To(Succeed())
			},
			done: func(t *testing.T) {
				NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
					err := c.management.Get(ctx, c.key(), &v1beta1.HostedCluster{})
					g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "HostedCluster: %v", err)
				}).WithContext(t.Context()).WithTimeout(rollout).WithPolling(interval).Should(Succeed())
			},
		},
	} {
		t.Run(end.name, func(t *testing.T) {
			g := NewWithT(t)
			c.enable(t, initialRelease)
			c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
				spec.NodeDrain = &v1beta1.NodeDrain{Timeout: &metav1.Duration{Duration: refusedDrain}}
			})
			c.nodePool(t, "general")
			c.workload(t, "web", 3, "500m", apart)
			c.waitRunning(t, "web")
			allow := c.refuse(t)

			began := time.Now()
			end.do(t)
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
					HaveField("Reason", v1beta1.AutoNodeDrainingReason), HaveField("Message", ContainSubstring("ValidatingAdmissionPolicy 'mine'"))))
			}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
			g.Expect(c.machines(g, t.Context())).NotTo(BeEmpty(), "nothing is forced before the deadline")
			end.done(t)
			t.Logf("gone after %s", time.Since(began).Round(time.Second))
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(c.machines(g, ctx)).To(BeEmpty())
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			record := &corev1.ConfigMap{}
			g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.AbandonedConfigMap}, record)).To(Succeed())
			g.Expect(record.Data["machines"]).NotTo(BeEmpty())
			g.Expect(record.Data["leftInGuest"]).To(ContainSubstring("not today"))
			t.Logf("left in the guest:\n%s", record.Data["leftInGuest"])

			allow()
			g.Eventually(func(g Gomega, ctx context.Context) {
				if !c.guestHasKarpenter(g, ctx) {
					return // the definitions have gone, and all NodeClaims with them
				}
				for _, claim := range c.nodeClaims(g, ctx) {
					g.Expect(claim.Finalizers).To(BeEmpty(), "nobody is left who would remove it")
					g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, &claim))).To(Succeed())
				}
				g.Expect(c.nodeClaims(g, ctx)).To(BeEmpty())
			}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
			c.clear(t)
		})
	}
}

// refuse denies everybody the deletion of NodeClaims and every change of node classes' metadata and spec, until allow is called.
func (c *cluster) refuse(t *testing.T) (allow func()) {
	t.Helper()
	g := NewWithT(t)
	rule := func(group, resource string, operations ...admissionv1.OperationType) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: operations, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
		}}
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
				rule("karpenter.sh", "nodeclaims", admissionv1.Delete),
				rule(v1alpha1.Group, "clusterapinodeclasses", admissionv1.Update, admissionv1.Delete),
			}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "not today"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "mine", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	g.Expect(c.guest.Create(t.Context(), policy)).To(Succeed())
	g.Expect(c.guest.Create(t.Context(), binding)).To(Succeed())
	claims := c.nodeClaims(g, t.Context())
	g.Expect(claims).NotTo(BeEmpty())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Delete(ctx, claims[0].DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring("not today")))
	}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
	return func() {
		g := NewWithT(t)
		g.Expect(c.guest.Delete(t.Context(), binding)).To(Succeed())
		g.Expect(c.guest.Delete(t.Context(), policy)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			if !c.guestHasKarpenter(g, ctx) {
				return
			}
			for _, claim := range c.nodeClaims(g, ctx) {
				g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, &claim, client.DryRunAll))).To(Succeed())
			}
		}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
	}
}
