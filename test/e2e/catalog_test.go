// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// objectsOf are those of a file in testdata, for a control-plane namespace. The last two are the guest's.
func objectsOf(g *WithT, file, namespace string) (management, guest []*unstructured.Unstructured) {
	text, err := os.ReadFile("testdata/" + file)
	g.Expect(err).NotTo(HaveOccurred())
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(strings.ReplaceAll(string(text), "namespace: clusters-blue", "namespace: "+namespace), "\n---\n") {
		object := &unstructured.Unstructured{}
		raw, err := yaml.YAMLToJSON([]byte(document))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(object.UnmarshalJSON(raw)).To(Succeed())
		objects = append(objects, object)
	}
	return objects[:len(objects)-2], objects[len(objects)-2:]
}

// catalogCluster is a guest whose node class "catalog" is the one of testdata/catalog.yaml.
type catalogCluster struct{ *cluster }

func createCatalog(t *testing.T, c *cluster) catalogCluster {
	t.Helper()
	g := NewWithT(t)
	management, guest := objectsOf(g, "catalog.yaml", c.namespace())
	for _, object := range management {
		g.Expect(c.management.Create(t.Context(), object)).To(Succeed())
	}
	for _, object := range guest {
		g.Expect(c.guest.Create(t.Context(), object)).To(Succeed())
	}
	// Before the test's NodePools are removed: its machines go, whatever has become of the catalog.
	t.Cleanup(func() {
		ctx := context.Background()
		for _, object := range management {
			NewWithT(t).Expect(client.IgnoreNotFound(c.management.Delete(ctx, object))).To(Succeed())
		}
		NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(ctx, guest[0]))).To(Succeed())
	})
	return catalogCluster{c}
}

func (c catalogCluster) catalog(g Gomega, ctx context.Context) *v1alpha1.InstanceTypeCatalog {
	found := &v1alpha1.InstanceTypeCatalog{}
	g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: "general"}, found)).To(Succeed())
	return found
}

func (c catalogCluster) change(t *testing.T, change func(*v1alpha1.InstanceTypeCatalogSpec)) {
	t.Helper()
	g := NewWithT(t)
	found := c.catalog(g, t.Context())
	before := found.DeepCopy()
	change(&found.Spec)
	g.Expect(c.management.Patch(t.Context(), found, client.MergeFrom(before))).To(Succeed())
}

func (c catalogCluster) class(g Gomega, ctx context.Context) *v1alpha1.ClusterAPINodeClass {
	class := &v1alpha1.ClusterAPINodeClass{}
	g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: "catalog"}, class)).To(Succeed())
	return class
}

// launched are the machines of a NodePool, each as <type> <zone or -> <capacity type> <reservation>, with the zone of reserved ones only.
func (c catalogCluster) launched(g Gomega, ctx context.Context, pool string) (launched []string) {
	machines := &infrav1.KwokMachineList{}
	g.Expect(c.management.List(ctx, machines, client.InNamespace(c.namespace()), client.MatchingLabels{karpv1.NodePoolLabelKey: pool})).To(Succeed())
	made := map[string]infrav1.KwokMachineSpec{}
	for i := range machines.Items {
		made[machines.Items[i].Status.NodeName] = machines.Items[i].Spec
	}
	for _, node := range c.nodesOf(g, ctx, pool) {
		labels := node.Labels
		machine, ok := made[node.Name]
		g.Expect(ok).To(BeTrue(), "node %s has a machine", node.Name)
		reservation := labels[v1alpha1.ReservationIDLabel]
		g.Expect(machine.InstanceType).To(Equal(labels[corev1.LabelInstanceTypeStable]), "it is what it was offered as")
		g.Expect(machine.NodeLabels["example.com/reservation"]).To(Equal(reservation))
		g.Expect(machine.CapacityType == infrav1.CapacityTypeSpot).To(Equal(labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeSpot))
		zone := "-"
		if reservation != "" {
			zone = labels[corev1.LabelTopologyZone]
		}
		launched = append(launched, strings.TrimSpace(strings.Join([]string{machine.InstanceType, zone, labels[karpv1.CapacityTypeLabelKey], reservation}, " ")))
	}
	return launched
}

// drifted names the NodeClaims that are to be replaced.
func (c catalogCluster) drifted(g Gomega, ctx context.Context) (names []string) {
	for _, nodeClaim := range c.nodeClaims(g, ctx) {
		if nodeClaim.StatusConditions().IsTrue(karpv1.ConditionTypeDrifted) {
			names = append(names, nodeClaim.Name)
		}
	}
	return names
}

// TestCatalog: a NodePool over a catalog gets the cheapest mix; what changes in the catalog replaces no node.
func TestCatalog(t *testing.T) {
	t.Parallel()
	c := createCatalog(t, acquireCluster(t, red))
	eventually := func(t *testing.T, check func(g Gomega, ctx context.Context)) {
		t.Helper()
		NewWithT(t).Eventually(check).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
	t.Run("When the catalog is applied, its NodePool should get the cheapest of at least two types", func(t *testing.T) {
		eventually(t, func(g Gomega, ctx context.Context) {
			found := c.catalog(g, ctx)
			g.Expect(found.StatusConditions().IsTrue("Ready")).To(BeTrue(), "%v", found.Status.Conditions)
			g.Expect(found.Status.InstanceTypeCount).To(HaveValue(BeEquivalentTo(3)))
			g.Expect(c.class(g, ctx).StatusConditions().IsTrue("Ready")).To(BeTrue(), "%v", c.class(g, ctx).Status.Conditions)
		})
		c.workload(t, "web", 3, "1500m", onPool("catalog"), apart)
		c.waitRunning(t, "web")
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.launched(g, ctx, "catalog")).To(Equal([]string{"k2 - spot", "k2 - spot", "k2 - spot"}))
			for _, nodeClaim := range c.nodeClaims(g, ctx) {
				g.Expect(nodeClaim.Spec.Requirements).To(ContainElement(And(
					HaveField("Key", corev1.LabelInstanceTypeStable), HaveField("Values", ContainElements("k2", "k4")),
				)), "Karpenter keeps its choice of types")
			}
		})
	})
	t.Run("When there is a reservation, it should be used up first, and the rest should be spot", func(t *testing.T) {
		c.nodePool(t, "reserved", require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeReserved, karpv1.CapacityTypeSpot), func(pool *karpv1.NodePool) {
			pool.Spec.Template.Spec.NodeClassRef.Name = "catalog"
		})
		c.workload(t, "batch", 3, "3", onPool("reserved"), apart)
		c.waitRunning(t, "batch")
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.launched(g, ctx, "reserved")).To(ConsistOf("k4 a reserved block-7", "k4 a reserved block-7", "k4 - spot"))
		})
	})
	t.Run("When prices change, Karpenter should follow them and replace no node", func(t *testing.T) {
		c.change(t, func(spec *v1alpha1.InstanceTypeCatalogSpec) { spec.InstanceTypes[0].Offerings[1].Price = "0.9" })
		eventually(t, func(g Gomega, ctx context.Context) {
			for _, tmpl := range c.class(g, ctx).Status.Templates {
				if tmpl.InstanceType == "k2" {
					g.Expect(tmpl.SpotPrice).To(Equal("0.9"))
				}
			}
		})
		c.scale(t, "web", 4)
		c.waitRunning(t, "web")
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.launched(g, ctx, "catalog")).To(ConsistOf("k2 - spot", "k2 - spot", "k2 - spot", "k4 - spot"))
			g.Expect(c.drifted(g, ctx)).To(BeEmpty())
		})
	})
	t.Run("When an entry is deleted, its offerings should close and its nodes stay", func(t *testing.T) {
		c.change(t, func(spec *v1alpha1.InstanceTypeCatalogSpec) { spec.InstanceTypes = spec.InstanceTypes[1:3] })
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.class(g, ctx).Status.TemplateCount).To(HaveValue(BeEquivalentTo(2)))
		})
		c.scale(t, "web", 5)
		c.waitRunning(t, "web")
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(c.launched(g, ctx, "catalog")).To(ConsistOf("k2 - spot", "k2 - spot", "k2 - spot", "k4 - spot", "k4 - spot"))
			g.Expect(c.drifted(g, ctx)).To(BeEmpty())
		})
	})
	t.Run("When the overhead of a type changes, its nodes alone should be replaced", func(t *testing.T) {
		before := map[string]bool{}
		g := NewWithT(t)
		for _, node := range c.nodes(g, t.Context()) {
			before[node.Name] = node.Labels[corev1.LabelInstanceTypeStable] == "k2"
		}
		c.change(t, func(spec *v1alpha1.InstanceTypeCatalogSpec) {
			spec.InstanceTypes[0].Overhead = &v1alpha1.CatalogOverhead{KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "100m"}}
		})
		eventually(t, func(g Gomega, ctx context.Context) {
			kept, now := 0, c.nodes(g, ctx)
			for _, node := range now {
				isK2, existed := before[node.Name]
				g.Expect(existed && !isK2).To(BeFalse(), "node %s is of a type that has changed", node.Name)
				if isK2 {
					kept++
				}
			}
			g.Expect(kept).To(Equal(3), "the others stay")
			g.Expect(c.drifted(g, ctx)).To(BeEmpty())
		})
	})
}
