// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// refusedDrain is how long the nodes of this test may drain, and how long they are then forced.
const refusedDrain = time.Minute

// guestRefuses: a guest's admin keeps AutoNode from going: an admission policy denies the deletion of NodeClaims, and the mark on node classes
// that keeps Karpenter from launching. The drain ends all the same, at its deadline.
func (f *faults) guestRefuses(t *testing.T) {
	g := NewWithT(t)
	abandoned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace(), Name: v1beta1.AbandonedConfigMap}}
	drain := func(ctx context.Context, timeout string) {
		patch := fmt.Appendf(nil, `{"spec":{"nodeDrain":{"timeout":%s}}}`, timeout)
		g.Expect(f.management.Patch(ctx, f.hostedCluster(g, ctx), client.RawPatch("application/merge-patch+json", patch))).To(Succeed())
	}
	t.Cleanup(func() { // the record stays until a person removes it
		ctx := context.WithoutCancel(t.Context())
		drain(ctx, "null")
		g.Expect(client.IgnoreNotFound(f.management.Delete(ctx, abandoned.DeepCopy()))).To(Succeed())
	})
	f.endsOff(t, append(slices.Clone(f.off), "management ConfigMap "+client.ObjectKeyFromObject(abandoned).String()))
	f.enable(t, initialRelease)
	drain(t.Context(), strconv.Quote(refusedDrain.String()))
	f.runWeb(t, 3)
	allow := f.refuse(t)

	t.Run("When AutoNode is turned off and the guest refuses, it should end through the management cluster at the deadline", func(t *testing.T) {
		g := NewWithT(t)
		machines := len(f.machines(g, t.Context()))
		began := time.Now()
		f.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
				HaveField("Reason", v1beta1.AutoNodeDrainingReason), HaveField("Message", ContainSubstring("ValidatingAdmissionPolicy 'mine'"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		deadline := began.Truncate(time.Second).Add(refusedDrain)
		var early []string
		g.Eventually(func(g Gomega, ctx context.Context) {
			now := f.machines(g, ctx)
			if len(now) < machines && time.Now().Before(deadline) {
				early = append(early, fmt.Sprintf("%d of %d machines are left", len(now), machines))
			}
			for _, machine := range now {
				if at := machine.DeletionTimestamp; at != nil && at.Time.Before(deadline) {
					early = append(early, machine.Name)
				}
			}
			g.Expect(now).To(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(early).To(BeEmpty(), "nothing is forced before the deadline")
		f.waitDisabled(t, t.Context())
		t.Logf("gone after %s", time.Since(began).Round(time.Second))
		record := abandoned.DeepCopy()
		g.Expect(f.management.Get(t.Context(), client.ObjectKeyFromObject(record), record)).To(Succeed())
		g.Expect(record.Data["machines"]).NotTo(BeEmpty())
		g.Expect(record.Data["leftInGuest"]).To(ContainSubstring("not today"))
		t.Logf("left in the guest:\n%s", record.Data["leftInGuest"])
	})

	allow()
	f.removeAbandonedClasses(t)
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, claim := range f.nodeClaims(g, ctx) {
			g.Expect(claim.Finalizers).To(BeEmpty(), "no controller is left that would remove it")
			g.Expect(client.IgnoreNotFound(f.guest.Delete(ctx, &claim))).To(Succeed())
		}
		g.Expect(f.nodeClaims(g, ctx)).To(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// removeAbandonedClasses does what the record of a drain requires of the guest's admin: AutoNode could neither release nor delete its node class.
func (c *cluster) removeAbandonedClasses(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	classes := &v1alpha1.ClusterAPINodeClassList{}
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
	remove := c.policy(t, "mine", "false", "not today",
		ruleFor("karpenter.sh", "nodeclaims", admissionregistrationv1.Delete),
		ruleFor(v1alpha1.Group, "clusterapinodeclasses", admissionregistrationv1.Update, admissionregistrationv1.Delete))
	claims := c.nodeClaims(g, t.Context())
	g.Expect(claims).NotTo(BeEmpty())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Delete(ctx, claims[0].DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring("not today")))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	return func() {
		g := NewWithT(t)
		remove()
		g.Eventually(func(g Gomega, ctx context.Context) {
			for _, claim := range c.nodeClaims(g, ctx) {
				g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, &claim, client.DryRunAll))).To(Succeed())
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
}

type admissionRule = admissionregistrationv1.NamedRuleWithOperations

func ruleFor(group, resource string, operations ...admissionregistrationv1.OperationType) (rule admissionRule) {
	rule.Operations = operations
	rule.APIGroups, rule.APIVersions, rule.Resources = []string{group}, []string{"*"}, []string{resource}
	return rule
}

// policy creates a ValidatingAdmissionPolicy in the guest. The API server enforces it only a moment later.
func (c *cluster) policy(t *testing.T, name, expression, message string, rules ...admissionRule) (remove func()) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: rules},
			Validations:      []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	NewWithT(t).Expect(c.guest.Create(t.Context(), policy)).To(Succeed())
	NewWithT(t).Expect(c.guest.Create(t.Context(), binding)).To(Succeed())
	return func() {
		g, ctx := NewWithT(t), context.WithoutCancel(t.Context())
		g.Expect(c.guest.Delete(ctx, binding)).To(Succeed())
		g.Expect(c.guest.Delete(ctx, policy)).To(Succeed())
	}
}

// rejectedPool: a policy of the guest rejects the NodeClaims of the NodePool that Karpenter prefers.
func (c *cluster) rejectedPool(t *testing.T) {
	g := NewWithT(t)
	const message = "this NodePool has no cost centre"
	t.Cleanup(c.policy(t, "cost-centre", `object.metadata.labels["karpenter.sh/nodepool"] != "preferred"`, message,
		ruleFor("karpenter.sh", "nodeclaims", admissionregistrationv1.Create)))
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "any", Labels: map[string]string{karpv1.NodePoolLabelKey: "preferred"}}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass}
	claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Create(ctx, claim.DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring(message)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

	for name, weight := range map[string]int32{"preferred": 10, "accepted": 1} {
		c.nodePool(t, name, require(corev1.LabelInstanceTypeStable, "c2-small"), func(pool *karpv1.NodePool) {
			pool.Spec.Weight = &weight
			pool.Spec.Template.Labels = map[string]string{"team": "batch"}
		})
	}
	c.workload(t, "batch", 1, "500m", func(template *corev1.PodTemplateSpec) {
		template.Spec.NodeSelector = map[string]string{"team": "batch"}
	})
	c.waitRunning(t, "batch")
	g.Expect(c.nodesOf(g, t.Context(), "accepted")).To(HaveLen(1))
	g.Expect(c.eventsOn(t.Context(), "NodePool", "NodeClaimRejected")).To(ConsistOf(
		ContainSubstring("ValidatingAdmissionPolicy 'cost-centre' with binding 'cost-centre' denied request: " + message)))
}
