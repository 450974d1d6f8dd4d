// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"testing"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
)

// computed is what tools such as Flux say of a node class.
func computed(g Gomega, nodeClass *v1alpha1.ClusterAPINodeClass) kstatus.Status {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(nodeClass)
	g.Expect(err).NotTo(HaveOccurred())
	result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	g.Expect(err).NotTo(HaveOccurred())
	return result.Status
}

func TestKstatus(t *testing.T) {
	t.Run("When no Karpenter has seen a node class, it should be in progress", func(t *testing.T) {
		g, e := NewWithT(t), environment.New(t)
		nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace}}
		g.Expect(e.Admin.Create(t.Context(), nodeClass)).To(Succeed())
		g.Expect(computed(g, nodeClass)).To(Equal(kstatus.InProgressStatus))
	})
	f := start(t, "")
	t.Run("When it has no templates, it should be in progress", func(t *testing.T) {
		f.nodeClass(nil)
		f.condition("Ready", "False", v1alpha1.NoTemplatesReason)
		nodeClass := f.stored()
		f.Expect(computed(f, nodeClass)).To(Equal(kstatus.InProgressStatus))
		f.Expect(nodeClass.Status.ObservedGeneration).To(Equal(nodeClass.Generation))
	})
	current := func(g Gomega) {
		nodeClass, err := f.get()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(computed(g, nodeClass)).To(Equal(kstatus.CurrentStatus))
	}
	t.Run("When it is ready, it should be current", func(t *testing.T) {
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.Eventually(current).Should(Succeed())
	})
	t.Run("When its spec changes, it should be current once Karpenter has evaluated that", func(t *testing.T) {
		before := f.stored()
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		})
		f.Eventually(current).Should(Succeed())
		after := f.stored()
		f.Expect(after.Status.ObservedGeneration).To(BeNumerically(">", before.Generation))
	})
}
