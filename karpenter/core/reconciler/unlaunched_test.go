// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/state/cost"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// provider is a cloud provider with AutoNode's node class.
type provider struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// followed is Karpenter core's state, and its controller that follows NodeClaims.
type followed struct {
	g       *WithT
	t       *testing.T
	guest   client.Client
	cluster *state.Cluster
	added   reconcile.Reconciler
}

func follow(t *testing.T, settled bool, nodeClaims ...client.Object) *followed {
	t.Helper()
	f := &followed{g: NewWithT(t), t: t}
	f.g.Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	f.guest = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(nodeClaims...).WithStatusSubresource(&karpv1.NodeClaim{}).Build()
	f.cluster = state.NewCluster(clock.RealClock{}, f.guest, provider{})
	var core reconcile.Reconciler = informer.NewNodeClaimController(f.guest, provider{}, f.cluster, cost.NewClusterCost(t.Context(), provider{}, f.guest))
	if settled {
		core = Settle(f.guest, provider{}, f.cluster)(Registered{Inner: core})
	}
	f.added = core
	return f
}

func (f *followed) reconcile(nodeClaim *karpv1.NodeClaim) {
	f.t.Helper()
	_, err := f.added.Reconcile(f.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
	f.g.Expect(err).NotTo(HaveOccurred())
}

func (f *followed) isSynced() bool { return f.cluster.Synced(f.t.Context()) }

// leaving is a NodeClaim that was never launched, and that another controller's finalizer keeps.
func leaving() *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "fixed-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "fixed"}, Finalizers: []string{"example.com/audited"},
		DeletionTimestamp: ptr.To(metav1.Now()),
	}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	return claim
}

// TestSettle: core's state has to be synced for core to schedule any pod (kubernetes-sigs/karpenter#3198).
func TestSettle(t *testing.T) {
	t.Run("When a NodeClaim goes that was never launched, Karpenter core alone should wait for it", func(t *testing.T) {
		claim := leaving()
		f := follow(t, false, claim)
		f.reconcile(claim)
		f.g.Expect(f.isSynced()).To(BeFalse())
	})

	for name, before := range map[string]bool{"has begun": true, "hasn't begun": false} {
		t.Run("When a NodeClaim goes that was never launched, and Karpenter "+name+" to schedule, it should go on", func(t *testing.T) {
			claim := leaving()
			f := follow(t, true, claim)
			f.cluster.SetSynced(before)
			f.reconcile(claim)
			f.g.Expect(f.isSynced()).To(BeTrue())
			running, deleting, _ := f.cluster.NodePoolState.GetNodeCount("fixed")
			f.g.Expect([]int{running, deleting}).To(Equal([]int{0, 1}), "running, deleting")
			f.g.Expect(f.cluster.DeepCopyNodes().Active()).To(BeEmpty(), "no pod is planned on it")

			claim.Finalizers = nil
			f.g.Expect(f.guest.Update(t.Context(), claim)).To(Succeed())
			f.reconcile(claim)
			f.g.Expect(f.isSynced()).To(BeTrue())
			f.g.Expect(f.cluster.NodeClaimExists(claim.Name)).To(BeFalse())
			f.g.Expect(f.cluster.DeepCopyNodes()).To(BeEmpty())
		})
	}

	t.Run("When its launch succeeds meanwhile, it should have the provider ID of that", func(t *testing.T) {
		claim := leaving()
		f := follow(t, true, claim)
		f.reconcile(claim)
		claim.Status.ProviderID = "capi://clusters/fixed-1"
		f.g.Expect(f.guest.Status().Update(t.Context(), claim)).To(Succeed())
		f.reconcile(claim)
		f.g.Expect(f.isSynced()).To(BeTrue())
		nodes := f.cluster.DeepCopyNodes()
		f.g.Expect(nodes).To(HaveLen(1))
		f.g.Expect(nodes[0].ProviderID()).To(Equal("capi://clusters/fixed-1"))
	})

	t.Run("When a NodeClaim's launch is under way, Karpenter core should wait for it as before", func(t *testing.T) {
		claim := leaving()
		claim.DeletionTimestamp = nil
		f := follow(t, true, claim)
		f.reconcile(claim)
		f.g.Expect(f.isSynced()).To(BeFalse())
	})
}
