// SPDX-License-Identifier: Apache-2.0

package staticbackoff_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	staticprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/provisioning"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// provider is one whose launches end with an error.
type provider struct {
	karpcloudprovider.CloudProvider
	err error
}

// Create implements cloudprovider.CloudProvider.
func (p *provider) Create(_ context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nodeClaim, p.err
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (*provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (p *provider) GetInstanceTypes(context.Context, *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	return []*karpcloudprovider.InstanceType{{Name: "c2-small", Offerings: karpcloudprovider.Offerings{{Available: true}}}}, nil
}

const replicas = 5

// fixture is a static NodePool, and Karpenter core's controller that makes its NodeClaims.
type fixture struct {
	*WithT
	t        *testing.T
	ctx      context.Context
	guest    client.Client
	cluster  *state.Cluster
	clock    *clocktesting.FakeClock
	recorder *environment.Recorder
	launches *provider
	provider karpcloudprovider.CloudProvider
	backoff  *staticbackoff.Backoff
	nodePool *karpv1.NodePool
	core     reconcile.Reconciler
	// missing is why no node can be launched.
	missing string
}

func newFixture(t *testing.T, wrapped bool) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakeClock(time.Now()), recorder: &environment.Recorder{}, launches: &provider{}}
	f.ctx = options.ToContext(t.Context(), &options.Options{CPURequests: 1000})
	f.Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	f.nodePool = &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "fixed", UID: "1", Generation: 1}}
	f.nodePool.Spec.Replicas = ptr.To(int64(replicas))
	f.nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady} {
		f.nodePool.StatusConditions().SetTrue(condition)
	}
	f.guest = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(f.nodePool).Build()
	f.backoff = staticbackoff.New(staticbackoff.Config{
		Guest: f.guest, Recorder: f.recorder, Clock: f.clock, Rejected: reconciler.IsRefusal, Closed: offering.Closed,
		Missing: func(context.Context, *karpv1.NodePool) string { return f.missing },
	})
	f.provider = f.backoff.Launches(f.launches)
	f.cluster = state.NewCluster(f.clock, f.guest, f.provider)
	f.backoff.Cluster = f.cluster
	f.cluster.SetSynced(true)
	f.core = reconcile.AsReconciler(f.guest, staticprovisioning.NewController(f.guest, f.cluster, f.recorder, f.provider, nil, f.clock, nil, nil))
	if wrapped {
		f.core = f.backoff.Provisioning()(reconciler.Registered{Inner: f.core})
	}
	return f
}

// reconcile returns how many NodeClaims core has made.
func (f *fixture) reconcile() (made int, result reconcile.Result) {
	f.t.Helper()
	before := len(f.claims())
	result, err := f.core.Reconcile(f.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f.nodePool)})
	f.Expect(err).NotTo(HaveOccurred())
	return len(f.claims()) - before, result
}

func (f *fixture) claims() []karpv1.NodeClaim {
	f.t.Helper()
	list := &karpv1.NodeClaimList{}
	f.Expect(f.guest.List(f.ctx, list)).To(Succeed())
	return list.Items
}

// launch launches all NodeClaims as core does: it deletes those without capacity.
func (f *fixture) launch() {
	f.t.Helper()
	for _, claim := range f.claims() {
		if _, err := f.provider.Create(f.ctx, &claim); karpcloudprovider.IsInsufficientCapacityError(err) {
			f.Expect(f.guest.Delete(f.ctx, &claim)).To(Succeed())
			f.cluster.DeleteNodeClaim(claim.Name)
		}
	}
}

// TestProvisioning: Azure/karpenter-provider-azure#1854, kubernetes-sigs/karpenter#3198.
func TestProvisioning(t *testing.T) {
	none := karpcloudprovider.NewInsufficientCapacityError(errors.New("no capacity for on-demand c8-xlarge"))

	t.Run("When there is no capacity for a static NodePool, Karpenter core alone should make NodeClaims without end", func(t *testing.T) {
		f := newFixture(t, false)
		f.launches.err, f.missing = none, "no capacity"
		for range 3 {
			made, _ := f.reconcile()
			f.Expect(made).To(Equal(replicas))
			f.launch()
		}
	})

	t.Run("When no offering is available, it should make no NodeClaim, say what is missing, and look again as often as for pods", func(t *testing.T) {
		f := newFixture(t, true)
		f.missing = "on-demand c8-xlarge has no capacity"
		for range 3 {
			made, result := f.reconcile()
			f.Expect(made).To(BeZero())
			f.Expect(result.RequeueAfter).To(Equal(staticbackoff.Interval))
		}
		f.Expect(f.recorder.Reasons()).To(HaveEach(staticbackoff.ReplicasUnavailableReason))
		f.Expect(f.recorder.Messages()).To(HaveEach("0 of 5 replicas have a NodeClaim, and no other can be launched: on-demand c8-xlarge has no capacity"))
		f.missing = ""
		made, _ := f.reconcile()
		f.Expect(made).To(Equal(replicas))
	})

	t.Run("When launches fail though an offering is available, it should retry with back-off, and start again after a success", func(t *testing.T) {
		f := newFixture(t, true)
		f.launches.err = none
		for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 160 * time.Second} {
			made, _ := f.reconcile()
			f.Expect(made).To(Equal(replicas), "before %s", wait)
			f.launch()
			f.clock.Step(wait - time.Millisecond)
			made, result := f.reconcile()
			f.Expect(made).To(BeZero(), "within %s", wait)
			f.Expect(result.RequeueAfter).To(Equal(time.Millisecond))
			f.clock.Step(time.Millisecond)
		}
		f.Expect(f.recorder.Messages()).To(ContainElement(ContainSubstring("no capacity for on-demand c8-xlarge")))
		f.launches.err = nil
		_, _ = f.reconcile()
		f.launch()
		f.Expect(f.guest.Delete(f.ctx, &f.claims()[0])).To(Succeed())
		f.cluster.Reset()
		f.cluster.SetSynced(true)
		f.launches.err = none
		made, _ := f.reconcile()
		f.Expect(made).To(Equal(replicas))
		f.launch()
		f.clock.Step(staticbackoff.Interval)
		made, _ = f.reconcile()
		f.Expect(made).To(Equal(replicas), "the first back-off again")
	})

	t.Run("When the NodePool is edited, or what its launches wait for may be there, it should retry at once", func(t *testing.T) {
		f := newFixture(t, true)
		f.launches.err = none
		for _, change := range []func(){
			func() {
				f.nodePool.Generation++
				f.Expect(f.guest.Update(f.ctx, f.nodePool)).To(Succeed())
			},
			f.backoff.Retry,
		} {
			made, _ := f.reconcile()
			f.Expect(made).To(Equal(replicas))
			f.launch()
			made, _ = f.reconcile()
			f.Expect(made).To(BeZero())
			change()
			made, _ = f.reconcile()
			f.Expect(made).To(Equal(replicas))
			f.launch()
			f.backoff.Retry()
		}
	})

	t.Run("When a launch is retried by Karpenter itself, it should not count as failed", func(t *testing.T) {
		f := newFixture(t, true)
		f.launches.err = karpcloudprovider.NewCreateError(errors.New("no answer"), "ManagementUnreachable", "no answer")
		_, _ = f.reconcile()
		f.launch()
		f.Expect(f.claims()).To(HaveLen(replicas))
		f.cluster.NodePoolState.Reset()
		made, _ := f.reconcile()
		f.Expect(made).To(Equal(replicas))
	})

	t.Run("When a NodePool has its nodes, it should say nothing, whatever is missing", func(t *testing.T) {
		f := newFixture(t, true)
		_, _ = f.reconcile()
		f.missing = "no capacity"
		made, result := f.reconcile()
		f.Expect(made).To(BeZero())
		f.Expect(result.RequeueAfter).To(Equal(time.Minute), "core's own")
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})

	t.Run("When a NodePool is gone, it should leave that to Karpenter core", func(t *testing.T) {
		f := newFixture(t, true)
		f.missing = "no capacity"
		f.Expect(f.guest.Delete(f.ctx, f.nodePool)).To(Succeed())
		made, _ := f.reconcile()
		f.Expect(made).To(BeZero())
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})
}

// offered reports whether a NodePool has an available offering.
func (f *fixture) offered(nodePool *karpv1.NodePool) bool {
	f.t.Helper()
	instanceTypes, err := f.provider.GetInstanceTypes(f.ctx, nodePool)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(instanceTypes).To(HaveLen(1), "nodes that exist need their instance type")
	f.Expect(instanceTypes[0].Offerings).To(HaveLen(1))
	return instanceTypes[0].Offerings[0].Available
}

func TestRejectedNodeClaims(t *testing.T) {
	const words = "pool z has no cost centre"
	denied := apierrors.NewInvalid(schema.GroupKind{Group: "karpenter.sh", Kind: "NodeClaim"}, "fixed-1", field.ErrorList{field.Forbidden(field.NewPath("metadata"), words)})
	setup := func(t *testing.T) (f *fixture, create func(err error)) {
		f = newFixture(t, true)
		return f, func(err error) {
			nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "fixed-1", Labels: map[string]string{karpv1.NodePoolLabelKey: f.nodePool.Name}}}
			f.backoff.Created(f.ctx, nodeClaim, err)
		}
	}

	t.Run("When the API server rejects three NodeClaims of a NodePool, it should say why and leave it out, longer each time", func(t *testing.T) {
		f, create := setup(t)
		other := f.nodePool.DeepCopy()
		other.Name = "other"
		for range 2 {
			create(denied)
			f.Expect(f.offered(f.nodePool)).To(BeTrue())
		}
		for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 160 * time.Second} {
			create(denied)
			f.clock.Step(wait - time.Millisecond)
			f.Expect(f.offered(f.nodePool)).To(BeFalse(), "within %s", wait)
			f.Expect(f.offered(other)).To(BeTrue())
			f.clock.Step(time.Millisecond)
			f.Expect(f.offered(f.nodePool)).To(BeTrue(), "after %s", wait)
		}
		f.Expect(f.recorder.Reasons()).To(HaveEach(staticbackoff.NodeClaimRejectedReason))
		f.Expect(f.recorder.Messages()).To(HaveEach(ContainSubstring(words)))
		create(nil)
		create(denied)
		f.Expect(f.offered(f.nodePool)).To(BeTrue(), "a success ends it")
	})

	t.Run("When a static NodePool's NodeClaims are rejected, it should wait with the API server's words", func(t *testing.T) {
		f, create := setup(t)
		for range 3 {
			create(denied)
		}
		made, _ := f.reconcile()
		f.Expect(made).To(BeZero())
		f.Expect(f.recorder.Messages()).To(ContainElement(And(HavePrefix("0 of 5 replicas"), ContainSubstring(words))))
	})

	t.Run("When the NodePool is edited, it should be tried again at once", func(t *testing.T) {
		f, create := setup(t)
		for range 3 {
			create(denied)
		}
		f.Expect(f.offered(f.nodePool)).To(BeFalse())
		f.nodePool.Generation++
		f.Expect(f.offered(f.nodePool)).To(BeTrue())
	})

	t.Run("When the API server has a conflict or an outage, it should not count", func(t *testing.T) {
		f, create := setup(t)
		for range 3 {
			create(apierrors.NewAlreadyExists(schema.GroupResource{Resource: "nodeclaims"}, "fixed-1"))
			create(apierrors.NewInternalError(errors.New("failed calling webhook")))
			create(apierrors.NewTooManyRequests("later", 1))
		}
		f.Expect(f.offered(f.nodePool)).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})

	t.Run("When the API server's words are longer than an event may be, it should cut them", func(t *testing.T) {
		f, create := setup(t)
		create(apierrors.NewForbidden(schema.GroupResource{Resource: "nodeclaims"}, "fixed-1", errors.New(strings.Repeat("ü", 3000))))
		f.Expect(f.recorder.Messages()).To(HaveExactElements(WithTransform(func(text string) int { return len(text) }, BeNumerically("<=", 1024))))
	})
}
