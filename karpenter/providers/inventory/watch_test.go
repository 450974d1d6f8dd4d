// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

type fixture struct {
	*GomegaWithT
	*environment.Environment
	t        *testing.T
	machines *machine.Provider
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{GomegaWithT: NewWithT(t), Environment: environment.New(t), t: t}
	f.machines = f.Machines(nil)
	return f
}

// start watches with an inventory that has read nothing yet.
func (f *fixture) start() *inventory.Inventory {
	f.t.Helper()
	i := inventory.New(inventory.Config{Clock: clock.RealClock{}})
	f.Expect(i.Watch(f.t.Context(), f.Management.GetCache(), f.Guest.GetCache(), f.machines.Owns)).To(Succeed())
	f.Eventually(i.IsCounted).Should(BeTrue())
	return i
}

// machine makes one with a provider ID, as Cluster API has it once there is one.
func (f *fixture) machine(name string) *clusterv1.Machine {
	f.t.Helper()
	plan := f.Plan(f.NodeClaim(f.t.Context(), name))
	plan.Annotations = map[string]string{v1alpha1.TemplateSourceAnnotation: revision.Source, v1alpha1.TemplateHashAnnotation: revision.ContentHash,
		v1alpha1.BootstrapHashAnnotation: revision.BootstrapHash, v1alpha1.NodeClassHashAnnotation: revision.NodeClassHash}
	m, err := f.machines.Create(f.t.Context(), plan)
	f.Expect(err).NotTo(HaveOccurred())
	patch := client.MergeFrom(m.DeepCopy())
	m.Spec.ProviderID = "test://" + m.Name
	f.Expect(f.Admin.Patch(f.t.Context(), m, patch)).To(Succeed())
	f.Eventually(func() error {
		_, err := f.machines.ForProviderID(f.t.Context(), m.Spec.ProviderID)
		return err
	}).Should(Succeed())
	return m
}

// node makes what the kubelet and Karpenter make of it.
func (f *fixture) node(name, providerID, memory string) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.Namespace + "-" + name, Labels: map[string]string{karpv1.NodeRegisteredLabelKey: "true"}},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
	}
	f.Expect(f.Admin.Create(f.t.Context(), node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.t.Context()), node) })
	f.setMemory(node, memory)
	return node
}

func (f *fixture) setMemory(node *corev1.Node, memory string) {
	f.t.Helper()
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	allocatable := resource.MustParse(memory)
	allocatable.Sub(resource.MustParse("100Mi"))
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: allocatable, corev1.ResourcePods: resource.MustParse("58")}
	f.Expect(f.Admin.Status().Update(f.t.Context(), node)).To(Succeed())
}

var revision = inventory.Revision{Source: "TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large", ContentHash: "template-1", BootstrapHash: "bootstrap-1", NodeClassHash: "class-1"}

func (f *fixture) eventually(memory *inventory.Inventory, want string) {
	f.t.Helper()
	q := resource.MustParse(want)
	f.Eventually(func() int64 { report, _ := memory.Capacity(revision); return report.Memory }).Should(Equal(q.Value()))
	allocatable, _ := memory.Allocatable(revision)
	f.Expect(allocatable.Amounts).To(Equal(inventory.Amounts{Memory: q.Value() - 100<<20, Pods: 58}))
}

func TestLearning(t *testing.T) {
	t.Run("When nodes of a template come and change, it should know what all but the least of them report", func(t *testing.T) {
		f := newFixture(t)
		memory := f.start()
		f.node("a", f.machine("a").Spec.ProviderID, "7900Mi")
		f.eventually(memory, "7900Mi")
		b := f.node("b", f.machine("b").Spec.ProviderID, "7950Mi")
		f.eventually(memory, "7950Mi")
		f.setMemory(b, "7920Mi")
		f.eventually(memory, "7920Mi")
	})
	t.Run("When it restarts, it should observe the existing nodes", func(t *testing.T) {
		f := newFixture(t)
		f.node("a", f.machine("a").Spec.ProviderID, "7900Mi")
		f.eventually(f.start(), "7900Mi")
	})
	t.Run("When a node isn't one of ours, it should teach nothing", func(t *testing.T) {
		f := newFixture(t)
		memory := f.start()
		f.node("stranger", "test://stranger", "1Gi")
		f.node("nameless", "", "1Gi")
		// The first event is handled first.
		f.node("ours", f.machine("ours").Spec.ProviderID, "7900Mi")
		f.eventually(memory, "7900Mi")
	})
}
