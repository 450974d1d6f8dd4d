// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestOverlay(t *testing.T) {
	f := newFixture(t)
	guest, err := client.New(f.Guest.GetConfig(), client.Options{Scheme: clientgoscheme.Scheme})
	f.Expect(err).NotTo(HaveOccurred())
	_, inPool := f.nodePool(nil, requirement(corev1.LabelOSStable, "linux"))
	overlay := &karpv1alpha1.NodeOverlay{
		ObjectMeta: metav1.ObjectMeta{Name: f.Namespace},
		Spec: karpv1alpha1.NodeOverlaySpec{
			Requirements: []karpv1alpha1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c2-small"}}},
			Price:        ptr.To("5"),
		},
	}
	f.Expect(guest.Create(t.Context(), overlay)).To(Succeed())
	t.Cleanup(func() { _ = guest.Delete(context.WithoutCancel(t.Context()), overlay) })
	f.provider.Overlays = nodeoverlay.NewInstanceTypeStore()
	on := options.ToContext(t.Context(), &options.Options{FeatureGates: options.FeatureGates{NodeOverlay: true}})

	t.Run("When the gate is on and Karpenter hasn't evaluated the overlays yet, it should end the launch", func(t *testing.T) {
		g := NewWithT(t)
		_, err := f.provider.Create(on, f.claim("early", inPool))
		g.Expect(karpcloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
	})

	t.Run("When a NodeClaim has no NodePool, it should launch without overlays", func(t *testing.T) {
		g := NewWithT(t)
		created, err := f.provider.Create(on, f.claim("own", func(n *karpv1.NodeClaim) { delete(n.Labels, karpv1.NodePoolLabelKey) }))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
	})

	clk := clocktesting.NewFakeClock(metav1.Now().Time)
	_, err = nodeoverlay.NewController(clk, guest, f.provider, f.provider.Overlays, state.NewCluster(clk, guest, f.provider)).Reconcile(on, reconcile.Request{})
	f.Expect(err).NotTo(HaveOccurred())
	t.Run("When an overlay makes the cheapest instance type dear, it should take the next one", func(t *testing.T) {
		g := NewWithT(t)
		created, err := f.provider.Create(on, f.claim("overlaid", inPool))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
	})
	t.Run("When only a dear instance type fits, it should say the overlay's price", func(t *testing.T) {
		g := NewWithT(t)
		created, err := f.provider.Create(on, f.claim("dear", func(n *karpv1.NodeClaim) {
			inPool(n)
			n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelInstanceTypeStable, "c2-small"))
		}))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Labels).To(HaveKeyWithValue(v1alpha1.NodePriceLabel, "5"))
	})
	t.Run("When the gate is off, it should go by its own prices", func(t *testing.T) {
		g := NewWithT(t)
		created, err := f.provider.Create(f.ctx, f.claim("off", inPool))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
	})
}
