// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
)

// Story 4: a new payload rolls Karpenter, then the nodes, never ahead of the control plane nor of the approval that is asked for; one
// that can't be resolved changes nothing. The guest is this story's own, because a control plane isn't downgraded.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	c := take(t, red)
	g := NewWithT(t)
	c.nodePool(t, "general", budget("1"))
	c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	before := names(c.nodes(g, t.Context()))
	disrupted := c.watchDisruptions(t)

	t.Run("When the payload can't be resolved, it should say so and change nothing", func(t *testing.T) {
		g := NewWithT(t)
		deployment := c.karpenter(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = missingRelease() })
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.ReleaseResolved)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ImageNotFoundReason)))
			g.Expect(c.hostedCluster(g, ctx).Status.AutoNode).To(HaveField("State", v1beta1.AutoNodeStateWaiting))
		}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
		g.Expect(c.karpenter(t).UID).To(Equal(deployment.UID))
		g.Expect(c.karpenter(t).Generation).To(Equal(deployment.Generation))
		g.Expect(names(c.nodes(g, t.Context()))).To(ConsistOf(before))
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(initialRelease) })
		c.waitEnabled(t, initialRelease)
	})

	t.Run("When the guest's API server is still old, it should roll Karpenter and replace no node", func(t *testing.T) {
		g := NewWithT(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.Release.Image = world.Release(upgradedRelease)
			spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeManual} // for later
		})
		g.Eventually(func(g Gomega, ctx context.Context) {
			component := &v1beta1.ControlPlaneComponent{}
			g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
			g.Expect(component.Status.Version).To(Equal(upgradedRelease))
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ControlPlaneOlderReason)))
		}).WithContext(t.Context()).WithTimeout(rollout).WithPolling(interval).Should(Succeed())
		g.Expect(c.karpenter(t).Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", world.ComponentImage(upgradedRelease))))
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds.
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(names(c.nodes(g, ctx))).To(ConsistOf(before))
			for _, claim := range c.nodeClaims(g, ctx) {
				g.Expect(claim.StatusConditions().IsTrue(karpenterv1.ConditionTypeDrifted)).To(BeFalse(), claim.Name)
			}
		}).WithContext(t.Context()).WithTimeout(soon / 2).WithPolling(interval).Should(Succeed())
	})

	t.Run("When the guest's API server is upgraded but nobody has approved the version, it should replace no node and say how to approve", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(world.UpgradeControlPlane(t.Context(), c.name, localworld.UpgradedKubernetes)).To(Succeed())
		approve := v1beta1.ApproveNodeVersionAnnotation + "=" + strings.TrimPrefix(localworld.UpgradedKubernetes, "v")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodeUpgradeHeldReason),
				HaveField("Message", HaveSuffix(approve))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(names(c.nodes(g, ctx))).To(ConsistOf(before))
			for _, claim := range c.nodeClaims(g, ctx) {
				g.Expect(claim.StatusConditions().IsTrue(karpenterv1.ConditionTypeDrifted)).To(BeFalse(), claim.Name)
			}
		}).WithContext(t.Context()).WithTimeout(soon / 6).WithPolling(interval).Should(Succeed())
	})

	t.Run("When the version is approved, it should replace the nodes within the budget and complete the history", func(t *testing.T) {
		g := NewWithT(t)
		hosted := c.hostedCluster(g, t.Context())
		unapproved := hosted.DeepCopy()
		metav1.SetMetaDataAnnotation(&hosted.ObjectMeta, v1beta1.ApproveNodeVersionAnnotation, strings.TrimPrefix(localworld.UpgradedKubernetes, "v"))
		g.Expect(c.management.Patch(t.Context(), hosted, client.MergeFrom(unapproved))).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.Version.History).NotTo(BeEmpty())
			g.Expect(hosted.Status.Version.History[0]).To(And(
				HaveField("Version", upgradedRelease), HaveField("State", v1beta1.UpdateCompleted),
				HaveField("CompletionTime", Not(BeNil()))))
			nodes := c.nodes(g, ctx)
			g.Expect(nodes).To(HaveLen(3))
			g.Expect(nodes).To(HaveEach(HaveField("Status.NodeInfo.KubeletVersion", localworld.UpgradedKubernetes)))
		}).WithContext(t.Context()).WithTimeout(2 * rollout).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		most, replaced := disrupted()
		g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
		g.Expect(replaced).To(ContainElements(before))
	})
}

// missingRelease names a payload that isn't in the registry.
func missingRelease() string {
	repository, _, _ := strings.Cut(world.Release(initialRelease), "@")
	return repository + ":missing"
}

// karpenter reads Karpenter's Deployment.
func (c *cluster) karpenter(t *testing.T) *appsv1.Deployment {
	t.Helper()
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}
	NewWithT(t).Expect(c.management.Get(t.Context(), key, deployment)).To(Succeed())
	return deployment
}

// karpenterPods lists the pods of Karpenter's Deployment.
func (c *cluster) karpenterPods(g Gomega, ctx context.Context) []corev1.Pod {
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}
	g.Expect(c.management.Get(ctx, key, deployment)).To(Succeed())
	pods := &corev1.PodList{}
	g.Expect(c.management.List(ctx, pods, client.InNamespace(c.namespace()),
		client.MatchingLabels(deployment.Spec.Selector.MatchLabels))).To(Succeed())
	return pods.Items
}
