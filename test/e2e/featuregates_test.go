// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

const small = "c2-small"

// TestFeatureGates: a hosted cluster turns a feature gate on that its platform allows, and its admin uses what that brings: warm nodes.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	c := gatedCluster{acquireCluster(t, red)}

	t.Run("When a HostedCluster sets feature gates, those that the platform allows should be on, and a condition name the others", func(t *testing.T) {
		g := NewWithT(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.AutoNode.ProvisionerConfig.Karpenter.FeatureGates = map[string]bool{"CapacityBuffer": true, "SpotToSpotConsolidation": true}
		})
		c.eventually(t, func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.AutoNode.FeatureGates).To(And(ContainElement("CapacityBuffer"), Not(ContainElement("SpotToSpotConsolidation"))))
			g.Expect(c.condition(g, ctx, v1beta1.FeatureGatesAccepted)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.FeatureGateNotAllowedReason),
				HaveField("Message", ContainSubstring("SpotToSpotConsolidation without effect"))))
		})
		c.waitEnabled(t, initialRelease)
		definition := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: "capacitybuffers.autoscaling.x-k8s.io"}, definition)).To(Succeed())
		g.Expect(definition.Labels).To(HaveKeyWithValue(v1beta1.ManagedByLabel, v1beta1.ManagedByOperator))
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			delete(spec.AutoNode.ProvisionerConfig.Karpenter.FeatureGates, "SpotToSpotConsolidation")
		})
		c.eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(meta.FindStatusCondition(c.hostedCluster(g, ctx).Status.Conditions, v1beta1.FeatureGatesAccepted)).To(BeNil())
		})
	})
	t.Run("When a buffer keeps warm nodes, pods should take them at once, and the buffer should refill", c.buffers)
}

// gatedCluster is a guest in which the feature gate CapacityBuffer is on.
type gatedCluster struct{ *cluster }

func (c gatedCluster) eventually(t *testing.T, check func(g Gomega, ctx context.Context)) {
	t.Helper()
	NewWithT(t).Eventually(check).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// create creates an object that goes with the test.
func (c gatedCluster) create(t *testing.T, object client.Object) {
	t.Helper()
	NewWithT(t).Expect(c.guest.Create(t.Context(), object)).To(Succeed())
	t.Cleanup(func() { c.remove(t, object) })
}

func (c gatedCluster) remove(t *testing.T, object client.Object) {
	t.Helper()
	NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), object))).To(Succeed())
}

// podsOn names the nodes that a workload's pods run on, sorted.
func (c gatedCluster) podsOn(g Gomega, ctx context.Context, workload string) (nodes []string) {
	pods := &corev1.PodList{}
	g.Expect(c.guest.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": workload})).To(Succeed())
	for i := range pods.Items {
		nodes = append(nodes, pods.Items[i].Spec.NodeName)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (c gatedCluster) buffers(t *testing.T) {
	g := NewWithT(t)
	// A node has room for three of these pods.
	pod := c.workload(t, "burst", 0, "600m", onPool("warm")).Spec.Template
	c.nodePool(t, "warm", require(corev1.LabelInstanceTypeStable, small))
	c.create(t, &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "room"}, Template: pod})
	buffer := &autoscalingv1beta1.CapacityBuffer{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "room"},
		Spec:       autoscalingv1beta1.CapacityBufferSpec{PodTemplateRef: &autoscalingv1beta1.LocalObjectRef{Name: "room"}, Replicas: new(int32(4))},
	}
	c.create(t, buffer)
	full := func(g Gomega, ctx context.Context) []string {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(buffer), buffer)).To(Succeed())
		g.Expect(meta.FindStatusCondition(buffer.Status.Conditions, autoscalingv1beta1.ProvisioningCondition)).To(
			HaveValue(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", "FitsExistingCapacity"))))
		g.Expect(buffer.Status.Replicas).To(HaveValue(BeEquivalentTo(4)))
		for _, claim := range c.nodeClaims(g, ctx) {
			g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized)).To(BeTrue(), claim.Name)
		}
		return names(c.nodesOf(g, ctx, "warm"))
	}
	var warm []string
	c.eventually(t, func(g Gomega, ctx context.Context) {
		warm = full(g, ctx)
		g.Expect(warm).To(HaveLen(2), "for four pods that nobody has created")
	})

	c.scale(t, "burst", 4)
	c.waitRunning(t, "burst")
	g.Expect(c.podsOn(g, t.Context(), "burst")).To(ConsistOf(warm), "no pod waits for a node")
	c.eventually(t, func(g Gomega, ctx context.Context) {
		g.Expect(full(g, ctx)).To(And(ContainElements(warm), HaveLen(3)), "four pods take two thirds of two nodes, four more need one")
	})

	c.remove(t, buffer)
	c.scale(t, "burst", 0)
	c.eventually(t, func(g Gomega, ctx context.Context) {
		g.Expect(c.nodesOf(g, ctx, "warm")).To(BeEmpty(), "what nothing keeps warm goes as any empty node")
	})
}
