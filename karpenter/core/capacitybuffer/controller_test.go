// SPDX-License-Identifier: Apache-2.0

package capacitybuffer_test

import (
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/capacitybuffer"
)

// passes counts the requested scheduling passes.
type passes int

func (p *passes) Trigger(types.UID) { *p++ }

// provider has one kind of node class.
type provider struct {
	karpcloudprovider.CloudProvider
}

func (provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

func nodeClaim(name, providerID string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.GroupVersion.Group, Kind: "ClusterAPINodeClass", Name: "default"}},
		Status:     karpv1.NodeClaimStatus{ProviderID: providerID},
	}
}

func TestController(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: "autoscaling.x-k8s.io", Version: "v1beta1"},
		&autoscalingv1beta1.CapacityBuffer{}, &autoscalingv1beta1.CapacityBufferList{})
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	one := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c"}}
	foreign := nodeClaim("foreign", "")
	foreign.Spec.NodeClassRef.Kind = "Another"
	for name, test := range map[string]struct {
		guest      []client.Object
		remembered []*karpv1.NodeClaim
		passes     passes
		counted    int
		again      bool
	}{
		"When the last capacity buffer has gone, it should have no node hold one": {},
		"When Karpenter has a node's provider ID, it should have it count again": {
			guest: []client.Object{one, nodeClaim("x", "cloud://x")}, remembered: []*karpv1.NodeClaim{nodeClaim("x", "cloud://x")},
			passes: 1, counted: 1,
		},
		"When Karpenter still has a node by its former provider ID, it should wait": {
			guest: []client.Object{one, nodeClaim("x", "cloud://x")}, remembered: []*karpv1.NodeClaim{nodeClaim("x", "capi://a/x")},
			counted: 1, again: true,
		},
		"When a NodeClaim hasn't been launched, it should wait: a pass would be lost": {
			guest: []client.Object{one, nodeClaim("x", "")}, remembered: []*karpv1.NodeClaim{nodeClaim("x", "")},
			counted: 1, again: true,
		},
		"When a NodeClaim is another Karpenter's, it should not wait for it": {
			guest:  []client.Object{one, foreign},
			passes: 1, counted: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := state.NewCluster(clock.RealClock{}, nil, nil)
			cluster.UpdateBufferPodCounts(map[string]int{"cloud://x": 1})
			for _, claim := range test.remembered {
				cluster.UpdateNodeClaim(claim)
			}
			guest := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.guest...).Build()
			var asked passes
			controller := capacitybuffer.New(capacitybuffer.Config{Guest: guest, CloudProvider: provider{}, Cluster: cluster, Provisioner: &asked})
			result, err := controller.Reconcile(t.Context(), reconcile.Request{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(asked).To(Equal(test.passes))
			g.Expect(cluster.BufferPodCount("cloud://x")).To(Equal(test.counted))
			g.Expect(result.RequeueAfter > 0).To(Equal(test.again))
		})
	}
}
