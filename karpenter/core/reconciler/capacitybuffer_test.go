// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/state/cost"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// triggers counts the requested scheduling passes.
type triggers int

func (p *triggers) Trigger(types.UID) { *p++ }

func TestRecountBuffers(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	claim := func(name, providerID string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}},
			Status:     karpv1.NodeClaimStatus{ProviderID: providerID},
		}
	}
	setUp := func(t *testing.T, objects ...client.Object) (client.Client, *triggers, func(name string) reconcile.Result) {
		g := NewWithT(t)
		guest := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&karpv1.NodeClaim{}).Build()
		cluster, requested := state.NewCluster(clock.RealClock{}, guest, provider{}), new(triggers)
		core := informer.NewNodeClaimController(guest, provider{}, cluster, cost.NewClusterCost(t.Context(), provider{}, guest))
		recount := RecountBuffers(guest, cluster, requested)(Registered{Inner: IgnoreNodePoolGone()(Registered{Inner: core})})
		return guest, requested, func(name string) reconcile.Result {
			result, err := recount.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
			g.Expect(err).NotTo(HaveOccurred())
			return result
		}
	}
	buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c"}}

	t.Run("When Karpenter has a node's provider ID, or another one later, it should have it count again, once", func(t *testing.T) {
		g := NewWithT(t)
		x := claim("x", "cloud://x")
		guest, requested, pass := setUp(t, buffer, x)
		for range 2 {
			pass("x")
		}
		g.Expect(*requested).To(BeEquivalentTo(1))
		x.Status.ProviderID = "cloud://y"
		g.Expect(guest.Status().Update(t.Context(), x)).To(Succeed())
		pass("x")
		g.Expect(*requested).To(BeEquivalentTo(2))
	})
	t.Run("When a NodeClaim hasn't been launched, it should wait: a pass would be lost", func(t *testing.T) {
		g := NewWithT(t)
		y := claim("y", "")
		guest, requested, pass := setUp(t, buffer, claim("x", "cloud://x"), y)
		pass("y")
		g.Expect(pass("x").RequeueAfter).To(BeNumerically("==", 1e9))
		g.Expect(*requested).To(BeEquivalentTo(0))
		y.Status.ProviderID = "cloud://y"
		g.Expect(guest.Status().Update(t.Context(), y)).To(Succeed())
		pass("y")
		g.Expect(*requested).To(BeEquivalentTo(1))
	})
	t.Run("When a NodeClaim is another Karpenter's, it should not wait for it", func(t *testing.T) {
		foreign := claim("foreign", "")
		foreign.Spec.NodeClassRef.Kind = "Another"
		_, requested, pass := setUp(t, buffer, claim("x", "cloud://x"), foreign)
		pass("x")
		NewWithT(t).Expect(*requested).To(BeEquivalentTo(1))
	})
	t.Run("When there is no capacity buffer, it should ask for no pass", func(t *testing.T) {
		_, requested, pass := setUp(t, claim("x", "cloud://x"))
		pass("x")
		NewWithT(t).Expect(*requested).To(BeEquivalentTo(0))
	})
}
