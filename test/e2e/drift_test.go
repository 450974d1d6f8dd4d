// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/disruption"
	"github.com/autonode-io/autonode/test/world/hosting"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestDrift: a platform team changes what nodes are made from. The nodes are replaced once, within the disruption budget, and say why.
func TestDrift(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, blue)
	c.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))})
	c.nodePool(t, "general", require(corev1.LabelInstanceTypeStable, "c2-small"), budget("1"))
	web := c.workload(t, "web", 2, "100m", apart)
	c.waitRunning(t, "web")

	inNamespace := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: c.namespace(), Name: name} }
	for _, tc := range []struct {
		name, reason string
		template     client.Object
		field, value string
	}{
		{"When an infrastructure template's content changes, it should replace each node once, one after the other", "TemplateDrifted",
			&infrav1.KwokMachineTemplate{ObjectMeta: inNamespace("c2-small")}, "nodeLabels", `{"rack":"new"}`},
		{"When the bootstrap template's content changes, it should replace each node once, one after the other", "BootstrapDrifted",
			&bootstrapv1.KubeadmConfigTemplate{ObjectMeta: inNamespace(hosting.BootstrapTemplate)}, "preKubeadmCommands", `["true"]`},
	} {
		change := func(ctx context.Context, value string) error {
			patch := fmt.Appendf(nil, `{"spec":{"template":{"spec":{%q:%s}}}}`, tc.field, value)
			return c.management.Patch(ctx, tc.template, client.RawPatch("application/merge-patch+json", patch))
		}
		t.Cleanup(func() { NewWithT(t).Expect(change(context.WithoutCancel(t.Context()), "null")).To(Succeed()) })
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			before := names(c.nodes(g, t.Context()))
			g.Expect(before).To(HaveLen(2))
			disrupted, reasons := c.watchDisruptions(t), c.watchDrift(t)
			g.Expect(change(t.Context(), tc.value)).To(Succeed())
			g.Eventually(func(g Gomega, ctx context.Context) {
				c.expectMostRun(g, ctx, web)
				g.Expect(names(c.nodes(g, ctx))).To(And(HaveLen(2), Not(ContainElement(BeElementOf(before)))))
				c.expectOneEach(g, ctx)
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			c.waitRunning(t, "web")
			most, replaced := disrupted()
			g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
			g.Expect(replaced).To(ConsistOf(before))
			g.Expect(reasons()).To(Equal(map[string]string{before[0]: tc.reason, before[1]: tc.reason}))
		})
	}

	t.Run("When the nodes are what they would be made as now, it should replace none again", func(t *testing.T) {
		g := NewWithT(t)
		disrupted, after := c.watchDisruptions(t), names(c.nodes(g, t.Context()))
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds.
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(names(c.nodes(g, ctx))).To(ConsistOf(after))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
		expectUndisturbed(t, disrupted)
	})

	t.Run("When the bootstrap of one source can't be used, a replaced template should roll out all the same", c.unusableSource)
}

// unusableSource adds a MachineDeployment whose bootstrap config is no template, and replaces another source by a template of another name.
func (c *cluster) unusableSource(t *testing.T) {
	g := NewWithT(t)
	unusable := map[string]string{"pool": "unusable", clusterv1.ClusterNameLabel: c.name}
	inNamespace := metav1.ObjectMeta{Namespace: c.namespace(), Name: "unusable", Labels: unusable}
	create := func(object client.Object) {
		g.Expect(c.management.Create(t.Context(), object)).To(Succeed())
		t.Cleanup(func() { g.Expect(c.management.Delete(context.WithoutCancel(t.Context()), object)).To(Succeed()) })
	}
	create(&bootstrapv1.KubeadmConfig{ObjectMeta: inNamespace})
	create(&clusterv1.MachineDeployment{ObjectMeta: inNamespace, Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: c.name, Replicas: new(int32(0)), Selector: metav1.LabelSelector{MatchLabels: unusable},
		Template: clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: unusable}, Spec: clusterv1.MachineSpec{
			ClusterName: c.name,
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfig", Name: inNamespace.Name,
			}},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.GroupVersion.Group, Kind: "KwokMachineTemplate", Name: "c8-xlarge",
			},
		}},
	}})
	c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
		spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: unusable}
	})
	t.Cleanup(func() { c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = autoNode() }) })
	g.Eventually(func(g Gomega, ctx context.Context) {
		conditions := c.defaultClass(g, ctx).StatusConditions()
		g.Expect(conditions.IsTrue("Ready")).To(BeTrue())
		g.Expect(conditions.Get(v1alpha1.ConditionReferencesResolved)).To(HaveField("Message", And(
			ContainSubstring("KubeadmConfig"), ContainSubstring("the references of 4 other sources are resolved"))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

	template := &infrav1.KwokMachineTemplate{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: "c2-small"}, template)).To(Succeed())
	restored := &infrav1.KwokMachineTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: template.Namespace, Name: template.Name, Labels: template.Labels, Annotations: template.Annotations,
	}, Spec: template.Spec}
	successor := restored.DeepCopy()
	successor.Name, successor.Annotations[v1alpha1.InstanceTypeAnnotation] = "c2-small-2", "c2-small"
	successor.Spec.Template.Spec.NodeLabels = map[string]string{"image": "two"}
	create(successor)
	g.Expect(c.management.Delete(t.Context(), template)).To(Succeed())
	t.Cleanup(func() { g.Expect(c.management.Create(context.WithoutCancel(t.Context()), restored)).To(Succeed()) })
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.nodes(g, ctx)).To(ContainElement(HaveField("Labels", HaveKeyWithValue("image", "two"))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// watchDrift watches every NodeClaim from now on. The function that it returns ends the watch and returns why each node has drifted, by
// its name.
func (c *cluster) watchDrift(t *testing.T) (result func() map[string]string) {
	t.Helper()
	reasons := map[string]string{}
	end, err := disruption.NodeClaims(t.Context(), c.guest, func(claim *karpv1.NodeClaim) {
		for _, condition := range claim.Status.Conditions {
			if condition.Type == karpv1.ConditionTypeDrifted && condition.Status == metav1.ConditionTrue {
				reasons[claim.Status.NodeName] = condition.Reason
			}
		}
	}, func(*karpv1.NodeClaim) {})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return func() map[string]string {
		end()
		return reasons
	}
}

// expectMostRun ends the Eventually that g belongs to when more than one pod of a Deployment isn't available.
func (c *cluster) expectMostRun(g Gomega, ctx context.Context, of *appsv1.Deployment) {
	now := &appsv1.Deployment{}
	g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(of), now)).To(Succeed())
	if available := now.Status.AvailableReplicas; available < *now.Spec.Replicas-1 {
		StopTrying(fmt.Sprintf("%d of %d pods of %s run", available, *now.Spec.Replicas, now.Name)).Now()
	}
}

func names(nodes []corev1.Node) []string {
	out := make([]string, 0, len(nodes))
	for _, node := range nodes {
		out = append(out, node.Name)
	}
	return out
}

// watchDisruptions watches every change of every NodeClaim from now on. The function that it returns ends the watch and
// reports how many nodes were disrupted at once at most, and which nodes ever were, counted as Karpenter's budgets do.
func (c *cluster) watchDisruptions(t *testing.T) (result func() (most int, ever []string)) {
	t.Helper()
	end, err := disruption.Watch(t.Context(), c.guest)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return end
}
