// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestAdopted(t *testing.T) {
	f := newFixture(t)
	adopted := func(nodeClaim *karpv1.NodeClaim) {
		nodeClaim.Annotations = map[string]string{v1alpha1.AdoptedAnnotation: "workers"}
	}
	t.Run("When no Machine is bound to an adopted NodeClaim, it should launch none", func(t *testing.T) {
		g := NewWithT(t)
		_, err := f.provider.Create(f.ctx, f.claim("workers-1", adopted))
		g.Expect(karpcloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		machines := &clusterv1.MachineList{}
		g.Expect(f.Admin.List(f.ctx, machines, client.InNamespace(f.Namespace))).To(Succeed())
		g.Expect(machines.Items).To(BeEmpty())
	})
	t.Run("When a Machine is bound to it, it should return that in any state of the node class, and annotate it", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := f.claim("workers-2", adopted)
		uid := string(nodeClaim.UID)
		m := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: f.Namespace, Name: nodeClaim.Name, Annotations: map[string]string{v1alpha1.AdoptedAnnotation: uid},
				Labels: map[string]string{
					clusterv1.ClusterNameLabel: f.Cluster.Name, v1alpha1.NodeClaimLabel: nodeClaim.Name, v1alpha1.NodeClaimUIDLabel: uid,
					corev1.LabelInstanceTypeStable: "c4-large", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
				},
			},
			Spec: clusterv1.MachineSpec{ClusterName: f.Cluster.Name, InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachine", Name: "of-workers-2",
			}},
		}
		m.Spec.Bootstrap.DataSecretName = new("data")
		g.Expect(f.Admin.Create(f.ctx, m)).To(Succeed())
		turnOff(f)
		created, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Labels).To(And(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"), HaveKeyWithValue(corev1.LabelTopologyZone, "a")))
		g.Expect(f.Admin.Get(f.ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
		g.Expect(m.Annotations).To(And(HaveKeyWithValue(v1alpha1.PriceAnnotation, "0.1"), HaveKey(v1alpha1.MachineSizeAnnotation),
			HaveKeyWithValue(v1alpha1.TemplateSourceAnnotation, ContainSubstring("c4-large-source"))))
	})
}
