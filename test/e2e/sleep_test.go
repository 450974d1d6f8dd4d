// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/sleep"
	"github.com/autonode-io/autonode/cli/why"
)

// TestSleep: a cluster falls asleep within its PodDisruptionBudgets, costs nothing while it is asleep, and wakes by hand.
func TestSleep(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, violet)
	g := NewWithT(t)
	c.nodePool(t, "general")
	c.workload(t, "web", 1, "100m", apart)
	c.waitRunning(t, "web")
	awake := time.Now()
	c.scale(t, "web", 2)
	c.waitRunning(t, "web")
	duration := time.Since(awake)
	budget := c.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0))})
	spare := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "spare"}, Spec: c.defaultClass(g, t.Context()).Spec}
	g.Expect(c.guest.Create(t.Context(), spare)).To(Succeed())
	t.Cleanup(func() { c.sleep(t, context.WithoutCancel(t.Context()), nil) })
	state := func(state v1beta1.AutoNodeState, message string) func(Gomega, context.Context) {
		return func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.AutoNode).To(And(HaveField("State", state), HaveField("Message", ContainSubstring(message))))
			g.Expect(c.condition(g, ctx, v1beta1.Ready)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", string(state))))
		}
	}
	eventuallyIs := func(t *testing.T, check func(Gomega, context.Context)) {
		t.Helper()
		NewWithT(t).Eventually(check).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}

	t.Run("When a budget blocks it, the cluster should say so, and fall asleep once the budget allows it", func(t *testing.T) {
		g := NewWithT(t)
		c.sleep(t, t.Context(), &v1beta1.Sleep{Suspend: true})
		eventuallyIs(t, state(v1beta1.AutoNodeStateFallingAsleep, "PodDisruptionBudget default/web"))
		g.Expect(c.guest.Delete(t.Context(), budget)).To(Succeed())
		eventuallyIs(t, state(v1beta1.AutoNodeStateAsleep, "asleep until someone wakes it, which saves $"))
		eventuallyIs(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.nodes(g, ctx)).To(BeEmpty())
			g.Expect(c.machines(g, ctx)).To(BeEmpty())
			g.Expect(c.karpenterPods(g, ctx)).To(BeEmpty())
			g.Expect(ptr.Deref(c.lease(g, ctx).Spec.HolderIdentity, "")).To(BeEmpty(), "its Lease is released")
			events, err := c.eventsOn(ctx, "NodePool", karpv1.ConditionTypeNodeClassReady)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(events).To(ContainElement(ContainSubstring("the cluster is asleep until someone wakes it")))
		})
		pods := &corev1.PodList{}
		g.Expect(c.guest.List(t.Context(), pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": "web"})).To(Succeed())
		g.Expect(pods.Items).NotTo(BeEmpty())
		explained := c.run(t.Context(), why.NewCommand(), "pod", client.ObjectKeyFromObject(&pods.Items[0]).String(), "--guest-kubeconfig", c.world.Kubeconfig(c.name))
		g.Expect(explained.out).To(ContainSubstring("asleep until someone wakes it"), "%v", explained.err)
	})

	t.Run("When a node class is deleted meanwhile, it should go without Karpenter", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(c.guest.Delete(t.Context(), spare)).To(Succeed())
		eventuallyIs(t, func(g Gomega, ctx context.Context) {
			g.Expect(apierrors.IsNotFound(c.guest.Get(ctx, client.ObjectKeyFromObject(spare), spare))).To(BeTrue())
		})
	})

	t.Run("When someone wakes it, its pods should get nodes again", func(t *testing.T) {
		g := NewWithT(t)
		woken := time.Now()
		commands := sleep.NewCommands()
		printed := c.run(t.Context(), commands[len(commands)-1], c.key().String(), "--for", "1h")
		g.Expect(printed.err).NotTo(HaveOccurred(), printed.out)
		c.waitRunning(t, "web")
		t.Logf("A pod had its node after %s awake, and %s after waking", duration.Round(time.Second/10), time.Since(woken).Round(time.Second/10))
		c.waitEnabled(t, initialRelease)
		g.Expect(c.launchAllowed(g, t.Context())).To(HaveField("Status", metav1.ConditionTrue))
		g.Expect(c.hostedCluster(g, t.Context()).Status.AutoNode.Sleep).To(BeNil())
	})
}

// sleep sets spec.autoNode.sleep and removes the annotations that come before it.
func (c *cluster) sleep(t *testing.T, ctx context.Context, spec *v1beta1.Sleep) {
	t.Helper()
	g := NewWithT(t)
	hosted := c.hostedCluster(g, ctx)
	before := hosted.DeepCopy()
	delete(hosted.Annotations, v1beta1.WakeUntilAnnotation)
	if hosted.Spec.AutoNode != nil {
		hosted.Spec.AutoNode.Sleep = spec
	}
	g.Expect(c.management.Patch(ctx, hosted, client.MergeFrom(before))).To(Succeed())
}
