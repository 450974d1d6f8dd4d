// SPDX-License-Identifier: Apache-2.0

package nodepoolgone_test

import (
	"net/http"
	"testing"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	guestscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/nodepoolgone"
)

// provider is one of which only constant answers are used.
type provider struct{ cloudprovider.CloudProvider }

func (provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// capturing is a manager that starts nothing.
type capturing struct {
	manager.Manager
	added reconcile.Reconciler
}

// Add implements manager.Manager.
func (c *capturing) Add(runnable manager.Runnable) error {
	c.added, _ = runnable.(reconcile.Reconciler)
	return nil
}

func TestIgnore(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(guestscheme.Scheme)).To(Succeed())
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{
		karpv1.NodePoolLabelKey: "general", karpv1.CapacityTypeLabelKey: "spot", corev1.LabelTopologyZone: "a", corev1.LabelInstanceTypeStable: "c2-small",
	}}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	claim.Status.ProviderID = "cloud://1"
	notFound := WithTransform(apierrors.IsNotFound, BeTrue())
	for name, tc := range map[string]struct {
		wrap   func(controller.Controller) controller.Controller
		expect gomegatypes.GomegaMatcher
	}{
		"When a NodeClaim's NodePool is gone, Karpenter core alone should fail": {func(core controller.Controller) controller.Controller { return core }, notFound},
		"When a NodeClaim's NodePool is gone, it should count as done":          {nodepoolgone.Ignore, Not(HaveOccurred())},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			guest := fake.NewClientBuilder().WithScheme(guestscheme.Scheme).WithObjects(claim.DeepCopy()).WithStatusSubresource(claim).Build()
			mgr, err := ctrl.NewManager(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{
				Scheme: guestscheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
				MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return guest.RESTMapper(), nil },
			})
			g.Expect(err).NotTo(HaveOccurred())
			cluster := state.NewCluster(clock.RealClock{}, guest, provider{})
			core := informer.NewNodeClaimController(guest, provider{}, cluster, cost.NewClusterCost(t.Context(), provider{}, guest))
			m := &capturing{Manager: mgr}
			g.Expect(tc.wrap(core).Register(options.ToContext(t.Context(), &options.Options{CPURequests: 1000}), m)).To(Succeed())
			_, err = m.added.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
			g.Expect(err).To(tc.expect)
			g.Expect(cluster.NodeClaimExists(claim.Name)).To(BeTrue(), "the state knows it")
		})
	}
}
