// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/state/cost"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestIgnoreNodePoolGone(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{
		karpv1.NodePoolLabelKey: "general", karpv1.CapacityTypeLabelKey: "spot", corev1.LabelTopologyZone: "a", corev1.LabelInstanceTypeStable: "c2-small",
	}}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	claim.Status.ProviderID = "cloud://1"
	notFound := WithTransform(apierrors.IsNotFound, BeTrue())
	for name, tc := range map[string]struct {
		with   Middleware
		expect gomegatypes.GomegaMatcher
	}{
		"When a NodeClaim's NodePool is gone, Karpenter core alone should fail": {func(r Registered) reconcile.Reconciler { return r.Inner }, notFound},
		"When a NodeClaim's NodePool is gone, it should count as done":          {IgnoreNodePoolGone(), Not(HaveOccurred())},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			guest := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(claim.DeepCopy()).WithStatusSubresource(claim).Build()
			cluster := state.NewCluster(clock.RealClock{}, guest, provider{})
			core := informer.NewNodeClaimController(guest, provider{}, cluster, cost.NewClusterCost(t.Context(), provider{}, guest))
			_, err := tc.with(Registered{Inner: core}).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
			g.Expect(err).To(tc.expect)
			g.Expect(cluster.NodeClaimExists(claim.Name)).To(BeTrue(), "the state has it")
		})
	}
}
