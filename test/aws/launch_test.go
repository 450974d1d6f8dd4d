// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/ec2"
)

// What arrives at EC2 is what Karpenter chose.
func TestLaunch(t *testing.T) {
	c := acquire(t, blue)

	t.Run("When a template declares no capacity, it should have what EC2 reports about its type", func(t *testing.T) {
		g := NewWithT(t)
		template := &unstructured.Unstructured{}
		template.SetGroupVersionKind(awsVersion.WithKind("AWSMachineTemplate"))
		g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: "m5.large"}, template)).To(Succeed())
		capacity, _, err := unstructured.NestedMap(template.Object, "status", "capacity")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(capacity).To(And(HaveKeyWithValue("cpu", "2"), HaveKeyWithValue("memory", "8Gi")))
	})

	t.Run("When a template isn't owned by its Cluster, nothing should be launched from it, and the node class should say what is missing", func(t *testing.T) {
		g := NewWithT(t)
		c.template(t, "orphan", "m5.large", func(template *unstructured.Unstructured) { template.SetOwnerReferences(nil) })
		g.Eventually(func(g Gomega, ctx context.Context) {
			class := &v1alpha1.ClusterAPINodeClass{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
			ready := class.StatusConditions().Get("TemplatesReady")
			g.Expect(ready.Reason).To(Equal("SomeInvalid"))
			g.Expect(ready.Message).To(ContainSubstring("orphan: has no cpu capacity: status.capacity doesn't have it"))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		orphan := &unstructured.Unstructured{}
		orphan.SetGroupVersionKind(awsVersion.WithKind("AWSMachineTemplate"))
		orphan.SetNamespace(c.namespace())
		orphan.SetName("orphan")
		g.Expect(c.management.Delete(t.Context(), orphan)).To(Succeed())
	})

	t.Run("When Karpenter chose on-demand capacity, it should be an on-demand instance of that type in that zone, and join as its node", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "steady", map[string][]string{
			karpv1.CapacityTypeLabelKey: {karpv1.CapacityTypeOnDemand}, corev1.LabelTopologyZone: {zoneB}, corev1.LabelInstanceTypeStable: {"m5.large"},
		})
		c.workload(t, "steady", 1, onPool("steady"))
		c.waitRunning(t, "steady")
		instances, nodes := c.instances("steady"), c.nodes(g, t.Context(), "steady")
		g.Expect(instances).To(HaveLen(1))
		g.Expect(nodes).To(HaveLen(1))
		instance, node := instances[0], nodes[0]
		g.Expect(instance.Type).To(Equal("m5.large"))
		g.Expect(instance.Subnet).To(Equal("subnet-0b"))
		g.Expect(instance.Spot).To(BeFalse())
		g.Expect(instance.CapacityReservation).To(BeEmpty())
		g.Expect(instance.SecurityGroups).To(ConsistOf("sg-0nodes"))
		g.Expect(instance.Image).To(Equal(ec2.ImageID("v"+localworld.InitialRelease, "x86_64")))
		g.Expect(node.Name).To(Equal(instance.PrivateDNSName))
		g.Expect(node.Spec.ProviderID).To(Equal("aws:///" + zoneB + "/" + instance.ID))
		g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal("v" + localworld.InitialRelease))
		g.Expect(node.Labels).To(And(
			HaveKeyWithValue(corev1.LabelTopologyZone, zoneB), HaveKeyWithValue(corev1.LabelInstanceTypeStable, "m5.large"),
			HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
		))
		claims := &karpv1.NodeClaimList{}
		g.Expect(c.guest.List(t.Context(), claims, client.MatchingLabels{karpv1.NodePoolLabelKey: "steady"})).To(Succeed())
		g.Expect(claims.Items).To(HaveLen(1))
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			promised, has := claims.Items[0].Status.Allocatable[name], node.Status.Allocatable[name]
			g.Expect(promised.Sign()).To(Equal(1), "%s is promised", name)
			g.Expect(promised.Cmp(has)).To(BeNumerically("<=", 0), "%s: %s promised, %s there", name, promised.String(), has.String())
		}
		g.Expect(c.eventsOn(t.Context(), "steady", "AllocatableShortfall")).To(BeEmpty())
	})

	t.Run("When Karpenter chose spot capacity, it should be a spot instance", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "thrifty", map[string][]string{corev1.LabelTopologyZone: {zoneA}})
		c.workload(t, "thrifty", 1, onPool("thrifty"))
		c.waitRunning(t, "thrifty")
		instances := c.instances("thrifty")
		g.Expect(instances).To(HaveLen(1))
		g.Expect(instances[0].Type).To(Equal("c5.large"), "the cheapest")
		g.Expect(instances[0].Spot).To(BeTrue())
		g.Expect(instances[0].Subnet).To(Equal("subnet-0a"))
		g.Expect(c.nodes(g, t.Context(), "thrifty")).To(HaveEach(HaveField("Labels", HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))))
	})

	t.Run("When a template is of another architecture, it should be an instance of that", func(t *testing.T) {
		g := NewWithT(t)
		c.template(t, "m6g.large", "m6g.large", nil)
		c.nodePool(t, "arm", map[string][]string{corev1.LabelArchStable: {"arm64"}, corev1.LabelTopologyZone: {zoneA, zoneB}})
		c.workload(t, "arm", 1, onPool("arm"))
		c.waitRunning(t, "arm")
		instances := c.instances("arm")
		g.Expect(instances).To(HaveLen(1))
		g.Expect(instances[0].Image).To(Equal(ec2.ImageID("v"+localworld.InitialRelease, "arm64")))
		g.Expect(c.nodes(g, t.Context(), "arm")).To(HaveEach(HaveField("Labels", HaveKeyWithValue(corev1.LabelArchStable, "arm64"))))
	})

	t.Run("When a template names a capacity reservation, it should be used until it is full, and then the ordinary one", func(t *testing.T) {
		g := NewWithT(t)
		// A reservation is paid for whether it is used or not.
		c.template(t, "reserved", "m5.xlarge", func(template *unstructured.Unstructured) {
			annotations := template.GetAnnotations()
			delete(annotations, v1alpha1.SpotPriceAnnotation)
			annotations[v1alpha1.PriceAnnotation] = "0.001"
			annotations[v1alpha1.InfrastructurePatchesAnnotation] = strings.Join(strings.SplitAfter(patches, "\n")[4:], "")
			annotations["capacity.cluster-autoscaler.kubernetes.io/labels"] = corev1.LabelTopologyZone + "=" + zoneB
			annotations["cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"] = "2"
			template.SetAnnotations(annotations)
			g.Expect(unstructured.SetNestedField(template.Object, "cr-0general", "spec", "template", "spec", "capacityReservationId")).To(Succeed())
		})
		g.Eventually(func(g Gomega, ctx context.Context) {
			class := &v1alpha1.ClusterAPINodeClass{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
			g.Expect(class.Status.Templates).To(ContainElement(HaveField("Source", "AWSMachineTemplate/reserved")))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.nodePool(t, "paid", map[string][]string{
			corev1.LabelInstanceTypeStable: {"m5.xlarge"}, corev1.LabelTopologyZone: {zoneB}, karpv1.CapacityTypeLabelKey: {karpv1.CapacityTypeOnDemand},
		})
		c.workload(t, "paid", 3, onPool("paid"))
		c.waitRunning(t, "paid")
		var used []string
		for _, instance := range c.instances("paid") {
			g.Expect(instance.Type).To(Equal("m5.xlarge"))
			used = append(used, instance.CapacityReservation)
		}
		g.Expect(used).To(ConsistOf("cr-0general", "cr-0general", ""))
	})

	t.Run("When a catalog offers more of a capacity reservation than it holds, it should be used up, and on-demand capacity take the rest", func(t *testing.T) {
		g := NewWithT(t)
		c.template(t, "any", "m5.large", func(template *unstructured.Unstructured) {
			template.SetLabels(map[string]string{clusterv1.ClusterNameLabel: c.name}) // for the catalog alone
			template.SetAnnotations(nil)
		})
		c.catalog(t, "booked")
		c.nodePool(t, "booked", map[string][]string{
			karpv1.CapacityTypeLabelKey: {karpv1.CapacityTypeReserved, karpv1.CapacityTypeOnDemand},
		}, func(pool *karpv1.NodePool) { pool.Spec.Template.Spec.NodeClassRef.Name = "booked" })
		c.workload(t, "booked", 2, onPool("booked"))
		c.waitRunning(t, "booked")
		instances := map[string]ec2.Instance{}
		for _, instance := range c.instances("booked") {
			g.Expect(instance).To(And(HaveField("Type", "c5.large"), HaveField("Zone", zoneB), HaveField("Subnet", "subnet-0b"), HaveField("Spot", false)))
			instances[instance.ID] = instance
		}
		var used []string
		for _, node := range c.nodes(g, t.Context(), "booked") {
			instance, ok := instances[node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]]
			g.Expect(ok).To(BeTrue(), "instance of %s", node.Name)
			g.Expect(node.Labels[v1alpha1.ReservationIDLabel]).To(Equal(instance.CapacityReservation))
			used = append(used, node.Labels[karpv1.CapacityTypeLabelKey]+" "+instance.CapacityReservation)
		}
		g.Expect(used).To(ConsistOf("reserved "+booked, "on-demand "))
		g.Eventually(c.eventsOn).WithContext(t.Context()).WithArguments("booked", "InsufficientCapacity").WithTimeout(eventually).WithPolling(interval).
			Should(ContainElement(ContainSubstring("ReservationCapacityExceeded")))
	})
}

// catalog offers a type on demand and reserved, two of a reservation that holds one, and makes a node class of it.
func (c *cluster) catalog(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	labels := map[string]string{"tier": name}
	from := func(path, variable string) v1alpha1.CatalogPatch {
		return v1alpha1.CatalogPatch{Op: "add", Path: path, ValueFrom: &v1alpha1.CatalogPatchValue{Variable: variable}}
	}
	g.Expect(c.management.Create(t.Context(), &v1alpha1.InstanceTypeCatalog{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: name, Labels: labels},
		Spec: v1alpha1.InstanceTypeCatalogSpec{
			TemplateRef: v1alpha1.InfrastructureTemplateReference{APIGroup: awsVersion.Group, Kind: "AWSMachineTemplate", Name: "any"},
			Patches: []v1alpha1.CatalogPatch{
				from("/spec/instanceType", "instanceType"), from("/spec/capacityReservationId", "reservationID"),
				{Op: "add", Path: "/spec/additionalTags", ValueFrom: &v1alpha1.CatalogPatchValue{
					Template: `{example.org/pool: {{ index .labels "karpenter.sh/nodepool" | quote }}}`,
				}},
			},
			InstanceTypes: []v1alpha1.CatalogInstanceType{{
				Name: "c5.large", MemoryOverhead: "7.5%",
				Capacity: map[string]scalar.Quantity{
					"cpu": scalar.Number(2), "memory": scalar.Text("4Gi"), "ephemeral-storage": scalar.Text("20Gi"),
				},
				Offerings: []v1alpha1.CatalogOffering{
					{Zones: []v1alpha1.CatalogValue{zoneB}, CapacityType: karpv1.CapacityTypeOnDemand, Price: "0.085"},
					{
						Zones: []v1alpha1.CatalogValue{zoneB}, CapacityType: karpv1.CapacityTypeReserved, Price: "0.001",
						Reservation: &v1alpha1.CatalogReservation{ID: booked, Count: 2},
					},
				},
			}},
		},
	})).To(Succeed())
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.CatalogSelectors = []v1alpha1.CatalogSelector{{Selector: metav1.LabelSelector{MatchLabels: labels}}}
	class.Spec.Bootstrap = &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
		APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfigTemplate", Name: bootstrapTemplate,
	}}
	g.Expect(c.guest.Create(t.Context(), class)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(class), class)).To(Succeed())
		g.Expect(class.StatusConditions().IsTrue("Ready", "TemplatesReady")).To(BeTrue(), "%v", class.Status.Conditions)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}
