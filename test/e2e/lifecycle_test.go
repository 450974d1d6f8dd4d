// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// The main job from beginning to end, in a small world of its own. `make test` plays only this one; the other tests of this
// package look closer at each part of it.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	c := ownWorld(t, blue)[0]
	const pool = "general"
	untouched := c.untouched(t)

	t.Run("When AutoNode is turned on, it should run Karpenter at exactly the payload's digest", func(t *testing.T) {
		g := NewWithT(t)
		c.enable(t, initialRelease)
		image := c.world.ComponentImage(initialRelease)
		g.Expect(c.karpenter(t).Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", image)))
		_, digest, _ := strings.Cut(image, "@")
		g.Expect(c.karpenterPods(g, t.Context())).To(And(HaveLen(1), HaveEach(HaveField("Status.ContainerStatuses", ConsistOf(HaveField("ImageID", HaveSuffix(digest)))))))
	})
	first := c.karpenterPods(NewWithT(t), t.Context())[0].UID

	t.Run("When a HostedCluster selects nothing or names no bootstrap, autonode check and describe should name the line and what to do", c.expectMistakes)

	t.Run("When pods are pending, it should launch nodes of the payload's version", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, pool, budget("1"))
		c.workload(t, "web", 2, "500m", apart)
		c.waitRunning(t, "web")
		g.Expect(c.nodes(g, t.Context())).To(And(HaveLen(2), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", "v"+initialRelease))))
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.hostedCluster(g, ctx).Status.AutoNode).To(HaveValue(And(
				HaveField("NodeCount", HaveValue(BeEquivalentTo(2))), HaveField("NodeVersions", ConsistOf(HaveField("Version", initialRelease))))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When it has nodes, Karpenter should get a standby, and its pod should go on", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.karpenterPods(g, ctx)).To(And(HaveLen(2), ContainElement(HaveField("UID", first)), HaveEach(HaveField("Status.ContainerStatuses", HaveEach(HaveField("Ready", true))))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When nodes run, autonode check and describe should find nothing wrong", c.expectNothingWrong)

	t.Run("When a pod is too large for every template, autonode describe should count it and say why it waits", c.expectPending)

	t.Run("When a cluster admin edits the NodePool, it should replace the nodes one at a time", func(t *testing.T) {
		c.expectReplaced(t, func() {
			edit := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"metadata":{"labels":{"team":"web"}}}}}`))
			NewWithT(t).Expect(c.guest.Patch(t.Context(), named(pool), edit)).To(Succeed())
		}, HaveField("Labels", HaveKeyWithValue("team", "web")))
	})

	t.Run("When the payload and the control plane are upgraded, it should roll out Karpenter, then the nodes, one at a time", func(t *testing.T) {
		g := NewWithT(t)
		c.expectReplaced(t, func() {
			c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = c.world.Release(upgradedRelease) })
			c.waitEnabled(t, upgradedRelease)
			g.Expect(c.karpenter(t).Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", c.world.ComponentImage(upgradedRelease))))
			g.Expect(c.world.UpgradeControlPlane(t.Context(), c.name, localworld.UpgradedKubernetes)).To(Succeed())
		}, HaveField("Status.NodeInfo.KubeletVersion", localworld.UpgradedKubernetes))
		g.Eventually(func(g Gomega, ctx context.Context) {
			version := c.hostedCluster(g, ctx).Status.Version
			g.Expect(version.History).NotTo(BeEmpty())
			g.Expect(version.History[0]).To(And(HaveField("Version", upgradedRelease), HaveField("State", v1beta1.UpdateCompleted)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When all that has happened, it should have shown no credential, been denied nothing and not repeated itself", c.expectNoTrace)

	t.Run("When AutoNode is turned off, it should drain the nodes, remove Karpenter and keep the NodePools", func(t *testing.T) {
		g := NewWithT(t)
		c.disable(t, t.Context())
		g.Expect(c.leftovers(g, t.Context())).To(BeEmpty())
		g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: pool}, named(pool))).To(Succeed())
		c.expectInventory(t, untouched, func(object string) bool { return ofTest(object) || staysInGuest(object) })
	})

	t.Run("When a HostedCluster names a Cluster and no payload, it should run the operator's Karpenter, and nodes of the control plane's version", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(c.management.Delete(t.Context(), c.hostedCluster(g, t.Context()))).To(Succeed())
		c.waitGone(t)
		g.Expect(c.management.Create(t.Context(), &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.key().Namespace, Name: c.key().Name},
			Spec: v1beta1.HostedClusterSpec{
				InfraID: c.name, AutoNode: autoNode(),
				PullSecret: &corev1.LocalObjectReference{Name: hosting.PullSecret}, // the world's registry needs credentials
			},
		})).To(Succeed())
		c.waitEnabled(t, localworld.DefaultRelease(localworld.UpgradedKubernetes))
		g.Expect(c.condition(g, t.Context(), v1beta1.ReleaseResolved)).To(HaveField("Reason", v1beta1.DefaultReleaseReason))
		g.Expect(c.karpenter(t).Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", c.world.DefaultImage())))
		c.waitRunning(t, "web")
		g.Expect(c.nodes(g, t.Context())).To(And(HaveLen(2), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", localworld.UpgradedKubernetes))))
	})

	t.Run("When the HostedCluster is deleted with nodes, it should leave nothing in either cluster", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(c.management.Delete(t.Context(), c.hostedCluster(g, t.Context()))).To(Succeed())
		c.waitGone(t)
		g.Expect(c.leftovers(g, t.Context())).To(BeEmpty())
		c.expectInventory(t, untouched, func(object string) bool {
			return ofTest(object) || strings.HasPrefix(object, "management HostedCluster ")
		})
	})
}

// named is a NodePool that has nothing but its name.
func named(pool string) *karpv1.NodePool {
	nodePool := &karpv1.NodePool{}
	nodePool.Name = pool
	return nodePool
}

// expectReplaced expects that a change replaces each node once, one after the other, by nodes that match, and that the pods run on them.
func (c *cluster) expectReplaced(t *testing.T, change func(), match OmegaMatcher) {
	t.Helper()
	g := NewWithT(t)
	before, disrupted := names(c.nodes(g, t.Context())), c.watchDisruptions(t)
	change()
	g.Eventually(func(g Gomega, ctx context.Context) {
		nodes := c.nodes(g, ctx)
		g.Expect(nodes).To(And(HaveLen(len(before)), HaveEach(match)))
		g.Expect(names(nodes)).NotTo(ContainElement(BeElementOf(before)))
		c.expectOneEach(g, ctx)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	c.waitRunning(t, "web")
	most, replaced := disrupted()
	g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
	g.Expect(replaced).To(ConsistOf(before), "each once, and no new one")
}
