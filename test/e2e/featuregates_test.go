// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

const (
	small, large = "c2-small", "c4-large"
	fpga         = corev1.ResourceName("example.com/fpga")
)

// TestFeatureGates: a hosted cluster turns feature gates on that its platform allows, and its admin uses what they bring: warm nodes, devices of
// DRA drivers, and Deployments that are scaled down by node. A NodeOverlay needs no gate of the cluster's own.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	c := gatedCluster{acquireCluster(t, red)}

	t.Run("When a HostedCluster sets feature gates, those that the platform allows should be on, and a condition name the others", func(t *testing.T) {
		g := NewWithT(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.AutoNode.ProvisionerConfig.Karpenter.FeatureGates = map[string]bool{
				"CapacityBuffer": true, "DynamicResourceAllocation": true, "PodDeletionCostManagement": true, "SpotToSpotConsolidation": true,
			}
		})
		c.eventually(t, func(g Gomega, ctx context.Context) {
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.AutoNode.FeatureGates).To(And(ContainElements("CapacityBuffer", "DynamicResourceAllocation", "PodDeletionCostManagement"), Not(ContainElement("SpotToSpotConsolidation"))))
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
	t.Run("When pods claim devices of a DRA driver, they should get a node with such devices, and one node for as many as it has", c.devices)
	t.Run("When a Deployment is scaled down, the pods of the node with the lowest rank should go, and then the node", c.deletionCosts)
	t.Run("When a NodeOverlay adds a resource, a pod that requests it should get a node", c.resources)
}

// gatedCluster is a guest in which the feature gates CapacityBuffer, DynamicResourceAllocation and PodDeletionCostManagement are on.
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
		g.Expect(warm).To(HaveLen(2), "for four pods that don't exist")
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

func (c gatedCluster) deletionCosts(t *testing.T) {
	g := NewWithT(t)
	c.nodePool(t, "ranked", require(corev1.LabelInstanceTypeStable, small))
	c.workload(t, "ranked", 6, "600m", onPool("ranked")) // three on a node
	c.waitRunning(t, "ranked")
	nodes := names(c.nodesOf(g, t.Context(), "ranked"))
	g.Expect(nodes).To(HaveLen(2))
	c.eventually(t, func(g Gomega, ctx context.Context) {
		pods := &corev1.PodList{}
		g.Expect(c.guest.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": "ranked"})).To(Succeed())
		ranks := map[string]int{}
		for _, pod := range pods.Items {
			g.Expect(pod.Annotations).To(HaveKey(corev1.PodDeletionCost), pod.Name)
			rank, err := strconv.Atoi(pod.Annotations[corev1.PodDeletionCost])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rank).To(BeNumerically("<", 0))
			if known, ok := ranks[pod.Spec.NodeName]; ok {
				g.Expect(rank).To(Equal(known), "the pods of %s", pod.Spec.NodeName)
			}
			ranks[pod.Spec.NodeName] = rank
		}
		g.Expect(ranks).To(HaveLen(2))
		g.Expect(ranks[nodes[0]]).NotTo(Equal(ranks[nodes[1]]))
	})

	c.scale(t, "ranked", 3)
	c.eventually(t, func(g Gomega, ctx context.Context) {
		left := names(c.nodesOf(g, ctx, "ranked"))
		g.Expect(left).To(ConsistOf(BeElementOf(nodes)), "the other is empty, and goes")
		g.Expect(c.podsOn(g, ctx, "ranked")).To(Equal(left))
	})
	c.waitRunning(t, "ranked")
	c.scale(t, "ranked", 0)
}

const draDriver = "gpu.example.com"

func (c gatedCluster) devices(t *testing.T) {
	g := NewWithT(t)
	const annotation = "capacity.cluster-autoscaler.kubernetes.io/"
	c.fault(t, large, annotation+"dra-driver", draDriver) // annotations of a template as faults are
	c.fault(t, large, annotation+"gpu-count", "2")
	c.create(t, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + draDriver + `"`}}},
	}})
	c.create(t, &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "gpu"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["` + draDriver + `"].type == "gpu"`}}},
			}}},
		}}},
	})
	c.nodePool(t, "devices", require(corev1.LabelInstanceTypeStable, small, large))
	c.workload(t, "training", 3, "100m", onPool("devices"), func(template *corev1.PodTemplateSpec) {
		template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}}
		template.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	})
	// The test is the DRA driver: it publishes the devices of each node that has joined, as the template promises.
	c.eventually(t, func(g Gomega, ctx context.Context) {
		nodes := c.nodesOf(g, ctx, "devices")
		for i := range nodes {
			g.Expect(nodes[i].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, large), "it has devices")
			c.publish(g, ctx, &nodes[i])
		}
		g.Expect(nodes).To(HaveLen(2), "for three devices")
		for _, claim := range c.nodeClaims(g, ctx) {
			g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized)).To(BeTrue(), claim.Name)
		}
	})
	c.waitRunning(t, "training")
	claims := &resourcev1.ResourceClaimList{}
	g.Expect(c.guest.List(t.Context(), claims, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	g.Expect(claims.Items).To(HaveLen(3))
	g.Expect(claims.Items).To(HaveEach(HaveField("Status.Allocation.Devices.Results", ConsistOf(HaveField("Driver", draDriver)))))
	g.Expect(c.nodesOf(g, t.Context(), "devices")).To(HaveLen(2))
}

// publish writes the ResourceSlice of a node, which goes with the node.
func (c gatedCluster) publish(g Gomega, ctx context.Context, node *corev1.Node) {
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name + "-gpu", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true),
		}}},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: draDriver, NodeName: &node.Name, Pool: resourcev1.ResourcePool{Name: node.Name, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for _, name := range []string{"gpu-0", "gpu-1"} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: new("gpu")}},
		})
	}
	g.Expect(client.IgnoreAlreadyExists(c.guest.Create(ctx, slice))).To(Succeed())
}

func (c gatedCluster) resources(t *testing.T) {
	g := NewWithT(t)
	c.nodePool(t, "boards", require(corev1.LabelInstanceTypeStable, small))
	boards := &karpv1alpha1.NodeOverlay{ObjectMeta: metav1.ObjectMeta{Name: "boards"}, Spec: karpv1alpha1.NodeOverlaySpec{
		Requirements: []karpv1alpha1.NodeSelectorRequirement{
			{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{small}},
			{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"boards"}},
		},
		Capacity: corev1.ResourceList{fpga: resource.MustParse("1")},
	}}
	c.create(t, boards)
	c.eventually(t, func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(boards), boards)).To(Succeed())
		g.Expect(boards.StatusConditions().IsTrue(karpv1alpha1.ConditionTypeValidationSucceeded)).To(BeTrue())
	})
	c.workload(t, "synthesis", 1, "500m", onPool("boards"), func(template *corev1.PodTemplateSpec) {
		requests := template.Spec.Containers[0].Resources.Requests
		requests[fpga] = resource.MustParse("1")
		template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{fpga: resource.MustParse("1")}
	})
	// The test is the device plugin of the node.
	c.eventually(t, func(g Gomega, ctx context.Context) {
		nodes := c.nodesOf(g, ctx, "boards")
		g.Expect(nodes).To(HaveLen(1))
		before := nodes[0].DeepCopy()
		nodes[0].Status.Capacity[fpga], nodes[0].Status.Allocatable[fpga] = resource.MustParse("1"), resource.MustParse("1")
		g.Expect(c.guest.Status().Patch(ctx, &nodes[0], client.StrategicMergeFrom(before))).To(Succeed())
		for _, claim := range c.nodeClaims(g, ctx) {
			g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized)).To(BeTrue(), claim.Name)
		}
	})
	c.waitRunning(t, "synthesis")
	g.Expect(c.nodesOf(g, t.Context(), "boards")).To(HaveLen(1))
}
