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

// Story 23: a platform's machines boot an image with a kubelet in it, so an upgrade is a new payload and a new machine template. No node is
// replaced for the first of them, and each is replaced once for both.
func TestImageUpgrade(t *testing.T) {
	t.Parallel()
	u := startImageUpgrade(t, take(t, violet))
	story := t

	t.Run("When the control plane and the payload come first, it should replace no node and say which image is needed", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(world.UpgradeControlPlane(t.Context(), u.name, u.newer)).To(Succeed())
		u.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(upgradedRelease) })
		u.waitResolved(t, u.newer)
		has, wants := strings.TrimPrefix(u.older, "v"), strings.TrimPrefix(u.newer, "v")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(u.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodeImageOlderReason),
				HaveField("Message", fmt.Sprintf(`3 of 3 nodes run %s: the image of machine template "KwokMachineTemplate/%s" still has %s; provide a template whose image has %s`,
					has, u.first.Name, has, wants))))
			g.Expect(u.nodeClass(g, ctx).StatusConditions().Get(v1alpha1.ConditionTemplatesReady)).To(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ImageOlderReason), HaveField("Message", ContainSubstring(u.first.Name))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		u.expectHeld(t, u.before, held)
		expectUndisturbed(t, u.early)
	})

	t.Run("When the template comes, it should replace each node once within the budget, say so and complete the history", func(t *testing.T) {
		second := u.imageTemplate(story, u.newer) // for as long as its nodes are there
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(u.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodesOutdatedReason)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		u.completes(t, second)
	})
}

// Story 23, the other way around: the new template is there first, and then the payload, and both are ahead of the control plane. Its guest is
// this story's own, because a control plane isn't downgraded.
func TestImageFirst(t *testing.T) {
	t.Parallel()
	u := startImageUpgrade(t, take(t, amber))
	second := u.imageTemplate(t, u.newer)
	// newerWaits expects that nothing launches from the new template, and that the old one isn't behind.
	newerWaits := func(g Gomega, ctx context.Context) {
		class := u.nodeClass(g, ctx)
		g.Expect(class.Status.Version).To(Equal(strings.TrimPrefix(u.older, "v")))
		g.Expect(class.Status.Templates).To(ContainElements(
			And(HaveField("Source", HaveSuffix("/"+second.Name)), HaveField("Unavailable", v1alpha1.TemplateImageNewer)),
			And(HaveField("Source", HaveSuffix("/"+u.first.Name)), HaveField("Unavailable", BeEmpty()), HaveField("Image", BeEmpty()))))
	}

	t.Run("When the template comes first, it should replace no node, say that nothing launches from it, and boot new nodes from the old one", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(newerWaits).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		u.scale(t, "web", 4)
		u.waitRunning(t, "web")
		nodes := u.nodes(g, t.Context())
		g.Expect(nodes).To(HaveLen(4))
		g.Expect(nodes).To(HaveEach(HaveField("Status.NodeInfo.KubeletVersion", u.older)))
		u.before = names(nodes)
		u.expectHeld(t, u.before, held)
		g.Expect(u.condition(g, t.Context(), v1beta1.NodesUpToDate)).To(HaveField("Status", metav1.ConditionTrue))
	})

	t.Run("When the payload comes and the control plane is still older, both should wait for it", func(t *testing.T) {
		g := NewWithT(t)
		u.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(upgradedRelease) })
		u.waitResolved(t, u.older)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(u.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ControlPlaneOlderReason)))
			newerWaits(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		u.expectHeld(t, u.before, held)
		expectUndisturbed(t, u.early)
	})

	t.Run("When the control plane comes, it should replace each node once within the budget and complete the history", func(t *testing.T) {
		NewWithT(t).Expect(world.UpgradeControlPlane(t.Context(), u.name, u.newer)).To(Succeed())
		u.completes(t, second)
	})
}

// imageUpgrade is a guest whose nodes boot an image with an older kubelet, and what happens to them from then on.
type imageUpgrade struct {
	*cluster
	older, newer string
	// first is the template that the nodes are of.
	first  *infrav1.KwokMachineTemplate
	before []string
	// early ends with the wait for what comes last, and the others with the upgrade.
	early, disrupted func() (most int, ever []string)
	reasons          func() map[string]string
}

func startImageUpgrade(t *testing.T, c *cluster) *imageUpgrade {
	t.Helper()
	u := &imageUpgrade{cluster: c, older: "v" + initialRelease, newer: localworld.UpgradedKubernetes}
	u.first = c.imageTemplate(t, u.older)
	c.nodePool(t, "general", require(corev1.LabelInstanceTypeStable, imageType), budget("1"))
	c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	u.before = names(c.nodes(NewWithT(t), t.Context()))
	u.early, u.disrupted, u.reasons = c.watchDisruptions(t), c.watchDisruptions(t), c.watchDrift(t)
	return u
}

// completes waits until each node was replaced by one of the second template, once and within the budget, and the history says so.
func (u *imageUpgrade) completes(t *testing.T, second *infrav1.KwokMachineTemplate) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega, ctx context.Context) {
		nodes := u.nodes(g, ctx)
		g.Expect(nodes).To(HaveLen(len(u.before)))
		g.Expect(nodes).To(HaveEach(HaveField("Status.NodeInfo.KubeletVersion", u.newer)))
		g.Expect(u.condition(g, ctx, v1beta1.NodesUpToDate)).To(HaveField("Status", metav1.ConditionTrue))
		history := u.hostedCluster(g, ctx).Status.Version.History
		g.Expect(history).NotTo(BeEmpty())
		g.Expect(history[0]).To(And(HaveField("Version", upgradedRelease), HaveField("State", v1beta1.UpdateCompleted)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	u.waitRunning(t, "web")
	for _, machine := range u.machines(g, t.Context()) {
		g.Expect(machine.Annotations).To(And(
			HaveKeyWithValue(v1alpha1.TemplateSourceAnnotation, HaveSuffix("/"+second.Name)),
			HaveKeyWithValue(v1alpha1.TemplateKubernetesVersionAnnotation, strings.TrimPrefix(u.newer, "v"))))
	}
	u.expectHeld(t, names(u.nodes(g, t.Context())), held) // the old template is still there, and none goes back to it
	most, replaced := u.disrupted()
	g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
	g.Expect(replaced).To(ConsistOf(u.before), "each once, and no new one")
	why := u.reasons()
	g.Expect(why).To(HaveLen(len(u.before)))
	for _, node := range u.before {
		g.Expect(why).To(HaveKeyWithValue(node, string(drift.VersionDrifted)))
	}
}

// nodeClass is the default one.
func (c *cluster) nodeClass(g Gomega, ctx context.Context) *v1alpha1.ClusterAPINodeClass {
	class := &v1alpha1.ClusterAPINodeClass{}
	g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
	return class
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
		NewWithT(t).Expect(c.management.Delete(context.WithoutCancel(t.Context()), template)).To(Succeed())
	})
	return template
}
