// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// refusedDrain is how long the nodes of this story may drain, and how long they are then forced.
const refusedDrain = time.Minute

// Story 19: a guest's admin keeps AutoNode from going: an admission policy denies the deletion of NodeClaims, and the mark on node classes
// that keeps Karpenter from launching. The drain ends all the same, at its deadline. The world is this story's own, because Karpenter is
// denied what it asks for there.
func TestRefusal(t *testing.T) {
	clusters := ownWorld(t, blue, green)
	clusters[0].leavesNoTrace(t)

	for _, end := range []struct {
		name  string
		guest *cluster
		do    func(t *testing.T, c *cluster)
		done  func(t *testing.T, c *cluster)
		// stays is what stays by design, but for the record of what was abandoned.
		stays func(object string) bool
	}{
		{
			name: "When AutoNode is turned off and the guest refuses, it should end through the management cluster at the deadline", guest: clusters[0],
			do: func(t *testing.T, c *cluster) {
				c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
			},
			done:  func(t *testing.T, c *cluster) { c.waitDisabled(t) },
			stays: staysInGuest,
		}, {
			name: "When the HostedCluster is deleted and the guest refuses, it should go at the deadline", guest: clusters[1],
			do: func(t *testing.T, c *cluster) {
				g := NewWithT(t)
				hosted := c.hostedCluster(g, t.Context())
				g.Expect(c.management.Delete(t.Context(), hosted)).To(Succeed())
				t.Cleanup(func() {
					restored := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: hosted.Namespace, Name: hosted.Name}, Spec: hosted.Spec}
					restored.Spec.AutoNode = nil
					NewWithT(t).Expect(c.management.Create(context.WithoutCancel(t.Context()), restored)).To(Succeed())
				})
			},
			done:  func(t *testing.T, c *cluster) { c.waitGone(t) },
			stays: func(string) bool { return false },
		},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			g, c := NewWithT(t), end.guest
			off := c.takeInventory(g, t.Context())
			c.enable(t, initialRelease)
			after := append(off, "management ConfigMap "+c.namespace()+"/"+v1beta1.AbandonedConfigMap)
			for _, object := range c.takeInventory(g, t.Context()) {
				if end.stays(object) && !slices.Contains(off, object) {
					after = append(after, object)
				}
			}
			slices.Sort(after)
			c.endsOff(t, after)
			c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
				spec.NodeDrain = &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: refusedDrain}}
			})
			c.nodePool(t, "general")
			c.workload(t, "web", 3, "500m", apart)
			c.waitRunning(t, "web")
			allow := c.refuse(t)

			machines := c.machineNames(g, t.Context())
			began := time.Now()
			end.do(t, c)
			if allStories() {
				go prepareWorld() // which the next stories need, while this one waits for its deadline
			}
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
					HaveField("Reason", v1beta1.AutoNodeDrainingReason), HaveField("Message", ContainSubstring("ValidatingAdmissionPolicy 'mine'"))))
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			g.Consistently(func(g Gomega, ctx context.Context) {
				g.Expect(c.machineNames(g, ctx)).To(Equal(machines))
			}).WithContext(t.Context()).WithTimeout(refusedDrain-time.Since(began)-2*time.Second).WithPolling(interval).Should(Succeed(), "nothing is forced before the deadline")
			end.done(t, c)
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
			c.removeAbandonedClasses(t)
			g.Eventually(func(g Gomega, ctx context.Context) {
				if !c.guestHasKarpenter(g, ctx) {
					return // the definitions have gone, and all NodeClaims with them
				}
				for _, claim := range c.nodeClaims(g, ctx) {
					g.Expect(claim.Finalizers).To(BeEmpty(), "no controller is left that would remove it")
					g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, &claim))).To(Succeed())
				}
				g.Expect(c.nodeClaims(g, ctx)).To(BeEmpty())
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			c.clear(t)
		})
	}
}

// removeAbandonedClasses does what the record of a drain asks of the guest's admin: AutoNode could neither release nor delete its node class.
func (c *cluster) removeAbandonedClasses(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	classes := nodeClassList()
	g.Expect(c.guest.List(t.Context(), classes)).To(Succeed())
	g.Expect(classes.Items).To(ConsistOf(HaveField("Name", v1alpha1.DefaultNodeClass)))
	class := &classes.Items[0]
	// An API server enforces a policy for a moment after its deletion.
	g.Eventually(func(g Gomega, ctx context.Context) {
		released := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		g.Expect(client.IgnoreNotFound(c.guest.Patch(ctx, class.DeepCopy(), released))).To(Succeed())
		g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, class.DeepCopy()))).To(Succeed())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
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
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
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
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
}
