// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestUpgradeHalts: nodes of a payload never join. The upgrade halts at its first node, and the payload before it stays in use until the platform
// takes it back. The same payload, mended, proves itself on one node and completes.
func TestUpgradeHalts(t *testing.T) {
	t.Parallel()
	c, parent := acquireCluster(t, green), t
	g := NewWithT(t)
	const preferred, soak = "c2-small", 5 * time.Second
	oldVersion, newVersion := "v"+initialRelease, localworld.UpgradedKubernetes
	g.Expect(world.UpgradeControlPlane(t.Context(), c.name, newVersion)).To(Succeed())
	impatient := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "halting"}, Spec: c.defaultClass(g, t.Context()).Spec}
	impatient.Spec.Deadlines = &v1alpha1.Deadlines{Registration: &scalar.Duration{Duration: time.Minute}}
	g.Expect(c.guest.Create(t.Context(), impatient)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), impatient))).To(Succeed())
	})
	c.endsSettled(t, upgradedRelease, c.takeInventory(g, t.Context()))
	c.nodePool(t, "general", budget("100%"), require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
		require(corev1.LabelInstanceTypeStable, preferred),
		func(pool *karpv1.NodePool) { pool.Spec.Template.Spec.NodeClassRef.Name = impatient.Name })
	c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	before := names(c.nodes(g, t.Context()))
	g.Expect(before).To(HaveLen(3))
	disrupted := c.watchDisruptions(t)
	byVersion := func(g Gomega, ctx context.Context) map[string]int {
		counts := map[string]int{}
		for _, node := range c.nodes(g, ctx) {
			counts[node.Status.NodeInfo.KubeletVersion]++
		}
		return counts
	}
	expectHalted := func(g Gomega, ctx context.Context) {
		hosted := c.hostedCluster(g, ctx)
		g.Expect(hosted.Status.Version.NodeUpgrade).To(HaveField("Phase", v1alpha1.NodeUpgradeHalted))
		g.Expect(hosted.Status.Version.NodeUpgrade.FailedNodes).To(HaveLen(1))
		g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.UpgradeHaltedReason), HaveField("Message", And(
				ContainSubstring(hosted.Status.Version.NodeUpgrade.FailedNodes[0]),
				HaveSuffix(v1beta1.ResumeNodeUpgradeAnnotation+"="+upgradedRelease)))))
	}

	t.Run("When the first node of a payload never joins, it should halt, say so and touch no other node", func(t *testing.T) {
		c.fault(parent, preferred, infrav1.FaultNeverJoins, strings.TrimPrefix(newVersion, "v"))
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.Release.Image = world.Release(upgradedRelease)
			spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{
				Canary: &v1beta1.NodeUpgradeCanary{Nodes: 1, SoakDuration: &scalar.Duration{Duration: soak}},
			}
		})
		NewWithT(t).Eventually(expectHalted).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

		g := NewWithT(t)
		c.scale(t, "web", 4)
		c.waitRunning(t, "web")
		g.Expect(byVersion(g, t.Context())).To(Equal(map[string]int{oldVersion: 4}), "a launch during the halt gets the former version")

		c.killKarpenter(t)()
		g.Consistently(func(g Gomega, ctx context.Context) {
			expectHalted(g, ctx)
			g.Expect(byVersion(g, ctx)).To(Equal(map[string]int{oldVersion: 4}))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
	})

	t.Run("When the payload is taken back, it should replace nothing and be complete", func(t *testing.T) {
		g := NewWithT(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(initialRelease) })
		g.Eventually(func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.Version.History[0]).To(And(HaveField("Version", initialRelease), HaveField("State", v1beta1.UpdateCompleted)))
			g.Expect(hosted.Status.Version.NodeUpgrade).To(BeNil())
			g.Expect(c.defaultClass(g, ctx).Status.NodeUpgrade).To(BeNil(), "of the failed payload, which comes back")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(names(c.nodes(g, t.Context()))).To(ContainElements(before))
	})

	most, chosen := disrupted()
	g.Expect(most).To(BeNumerically("<=", 1), "the nodes that waited for a canary at once")
	g.Expect(before).To(ContainElements(chosen), "which run on")

	t.Run("When the mended payload comes, it should prove itself on one node before the others follow", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(parent, preferred, infrav1.FaultNeverJoins, "false")
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(upgradedRelease) })
		// next waits for a Machine of the payload beside another one. Karpenter forgets at its death which node it replaces, so that the canary
		// may be empty and go.
		next := func(beside types.UID) (found clusterv1.Machine) {
			g.Eventually(func(g Gomega, ctx context.Context) {
				others := slices.DeleteFunc(c.machines(g, ctx), func(m clusterv1.Machine) bool {
					return m.UID == beside || !strings.HasSuffix(newVersion, m.Spec.Version)
				})
				g.Expect(others).NotTo(BeEmpty())
				found = others[0]
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			return found
		}
		canary := next("")
		c.killKarpenter(t)()
		second := next(canary.UID)
		g.Expect(second.CreationTimestamp.Sub(canary.CreationTimestamp.Time)).To(BeNumerically(">=", soak), "it comes once the first has soaked")
		c.killKarpenter(t)()
		g.Eventually(func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.Version.History[0]).To(And(HaveField("Version", upgradedRelease), HaveField("State", v1beta1.UpdateCompleted)))
			g.Expect(byVersion(g, ctx)).To(Equal(map[string]int{newVersion: 4}))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When no proof is required any more, the plan should go", func(t *testing.T) {
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode.NodeUpgrade = nil })
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			files := &corev1.ConfigMap{}
			g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.DedicatedNames().NodeImages}, files)).To(Succeed())
			g.Expect(files.Data).NotTo(HaveKey(upgradeplan.Key))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}
