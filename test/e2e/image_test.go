// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestImageUpgrade: a platform's machines boot an image with a kubelet in it, so an upgrade to the next minor version is a new payload and a new
// machine template, after the control plane. No node is replaced for the first of them, and each is replaced once for both.
func TestImageUpgrade(t *testing.T) {
	t.Parallel()
	c, parent := acquireCluster(t, amber), t
	g := NewWithT(t)
	const older, newer = "v" + initialRelease, localworld.NextMinorKubernetes
	has, wanted := strings.TrimPrefix(older, "v"), strings.TrimPrefix(newer, "v")
	first := c.imageTemplate(t, older)
	c.nodePool(t, "general", require(corev1.LabelInstanceTypeStable, imageType), budget("1"))
	c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	before := names(c.nodes(g, t.Context()))
	early, disrupted, reasons, ahead := c.watchDisruptions(t), c.watchDisruptions(t), c.watchDrift(t), c.watchAhead(t)

	t.Run("When the control plane and the payload come first, it should replace no node and say which image is needed", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(world.UpgradeControlPlane(t.Context(), c.name, newer)).To(Succeed())
		c.upgradeTo(t, nextMinorRelease)
		c.waitResolved(t, newer)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodeImageOlderReason),
				HaveField("Message", fmt.Sprintf(`3 of 3 nodes run %s: the image of machine template "KwokMachineTemplate/%s" still has %s; provide a template whose image has %s`,
					has, first.Name, has, wanted))))
			class := c.defaultClass(g, ctx)
			g.Expect(class.StatusConditions().Get(v1alpha1.ConditionTemplatesReady)).To(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ImageOlderReason), HaveField("Message", ContainSubstring(first.Name))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.expectHeld(t, before, rounds)
		expectUndisturbed(t, early)
	})

	t.Run("When the template comes, it should replace each node once within the budget, say so and complete the history", func(t *testing.T) {
		g := NewWithT(t)
		second := c.imageTemplate(parent, newer) // for as long as its nodes are there
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodesOutdatedReason)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodes(g, ctx)).To(And(HaveLen(len(before)), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", newer))))
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(HaveField("Status", metav1.ConditionTrue))
			history := c.hostedCluster(g, ctx).Status.Version.History
			g.Expect(history).NotTo(BeEmpty())
			g.Expect(history[0]).To(And(HaveField("Version", nextMinorRelease), HaveField("State", v1beta1.UpdateCompleted)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		for _, machine := range c.machines(g, t.Context()) {
			g.Expect(machine.Annotations).To(And(
				HaveKeyWithValue(v1alpha1.TemplateSourceAnnotation, HaveSuffix("/"+second.Name)),
				HaveKeyWithValue(v1alpha1.TemplateKubernetesVersionAnnotation, wanted)))
		}
		c.expectHeld(t, names(c.nodes(g, t.Context())), rounds) // the old template is still there, and none goes back to it
		most, replaced := disrupted()
		g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
		g.Expect(replaced).To(ConsistOf(before), "each once, and no new one")
		why := reasons()
		g.Expect(why).To(HaveLen(len(before)))
		for _, node := range before {
			g.Expect(why).To(HaveKeyWithValue(node, string(drift.VersionDrifted)))
		}
		g.Expect(ahead()).To(BeEmpty(), "machines that were newer than the API server")
	})
}

// imageType is the instance type of the templates that imageTemplate makes.
const imageType = "i2-small"

// imageTemplate makes a template like c2-small whose image has a kubelet of that version and no other.
func (c *cluster) imageTemplate(t *testing.T, version string) *infrav1.KwokMachineTemplate {
	t.Helper()
	g := NewWithT(t)
	like := &infrav1.KwokMachineTemplate{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: "c2-small"}, like)).To(Succeed())
	template := &infrav1.KwokMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace(), Name: imageType + "-" + strings.ReplaceAll(version, ".", "-"),
			Labels: map[string]string{clusterv1.ClusterNameLabel: c.name}, Annotations: map[string]string{
				v1alpha1.InstanceTypeAnnotation: imageType, v1alpha1.KubernetesVersionAnnotation: version,
			},
		},
		Spec: like.Spec,
	}
	maps.Copy(template.Labels, like.Labels)
	for _, key := range []string{v1alpha1.PriceAnnotation, v1alpha1.SpotPriceAnnotation, v1alpha1.InfrastructurePatchesAnnotation, v1alpha1.MemoryOverheadAnnotation} {
		template.Annotations[key] = like.Annotations[key]
	}
	template.Spec.Template.Spec.ImageVersion = version
	g.Expect(c.management.Create(t.Context(), template)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(client.IgnoreNotFound(c.management.Delete(context.WithoutCancel(t.Context()), template))).To(Succeed())
	})
	return template
}
