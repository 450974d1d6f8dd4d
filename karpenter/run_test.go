// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	nodeclaimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	staticprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/provisioning"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
	"github.com/autonode-io/autonode/karpenter/operator"
)

// guestScheme knows what core's controllers read in these tests.
func guestScheme(g Gomega) *runtime.Scheme {
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{}, &karpv1.NodePool{})
	return scheme
}

// altered returns the reconciler that middleware makes of one of Karpenter core's.
func altered(core reconcile.Reconciler, with ...reconciler.Middleware) reconcile.Reconciler {
	for _, middleware := range with {
		core = middleware(reconciler.Registered{Inner: core})
	}
	return core
}

// noting returns a client whose patches a ledger notes.
func noting(guest client.Client, writes *reconciler.Ledger) client.Client {
	return guestclient.New(guest, guestclient.Config{
		Suspended: func() error { return nil }, AwaitsTaints: func(context.Context, *corev1.Node) bool { return true }, Written: writes.Note,
	})
}

// passes counts the reconciliations of a controller of NodeClaims.
type passes struct {
	count int
	// err ends each of them.
	err error
}

// Reconcile implements reconcile.Reconciler.
func (p *passes) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	p.count++
	return reconcile.Result{}, p.err
}

// hanging is a controller of NodeClaims whose reconciliations end with their context.
type hanging struct{ begun chan string }

// Reconcile implements reconcile.Reconciler.
func (h hanging) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	h.begun <- request.Name
	<-ctx.Done()
	return reconcile.Result{}, nil
}

func TestLifecycle(t *testing.T) {
	scheme := guestScheme(NewWithT(t))
	t.Run("When the cache has an older NodeClaim than core wrote, its next pass should wait until the cache has that", func(t *testing.T) {
		g := NewWithT(t)
		cached := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", UID: "one"}}
		build := func() client.WithWatch {
			return fake.NewClientBuilder().WithScheme(scheme).WithObjects(cached.DeepCopy()).Build()
		}
		server, cache, writes, core := build(), build(), reconciler.NewLedger(), &passes{}
		lifecycle := altered(core, lifecyclePasses(cache, writes, clocktesting.NewFakeClock(time.Unix(0, 0)))...)
		pass := func() reconcile.Result {
			result, err := lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cached)})
			g.Expect(err).NotTo(HaveOccurred())
			return result
		}
		pass()
		g.Expect(core.count).To(Equal(1))

		written := &karpv1.NodeClaim{}
		g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(cached), written)).To(Succeed())
		before := written.DeepCopy()
		written.Labels = map[string]string{"storage": "8131"}
		g.Expect(noting(server, writes).Patch(t.Context(), written, client.MergeFrom(before))).To(Succeed())
		g.Expect(pass().RequeueAfter).To(BeNumerically(">", 0))
		g.Expect(core.count).To(Equal(1))

		before.Labels = written.Labels
		g.Expect(cache.Update(t.Context(), before)).To(Succeed())
		g.Expect(pass().RequeueAfter).To(BeZero())
		g.Expect(core.count).To(Equal(2))
	})
	t.Run("When a pass has failed, the event of what it wrote should begin no other one, and a second later any should", func(t *testing.T) {
		g := NewWithT(t)
		cache, core, now := fake.NewClientBuilder().WithScheme(scheme).Build(), &passes{err: errors.New("no machines")}, clocktesting.NewFakeClock(time.Unix(0, 0))
		lifecycle := altered(core, lifecyclePasses(cache, reconciler.NewLedger(), now)...)
		pass := func(name string) error {
			_, err := lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
			return err
		}
		g.Expect(pass("general-1")).To(MatchError(core.err))
		g.Expect(pass("general-1")).To(Succeed())
		g.Expect(core.count).To(Equal(1))
		g.Expect(pass("general-2")).To(MatchError(core.err), "it waits for another NodeClaim")
		now.Step(time.Second)
		g.Expect(pass("general-1")).To(MatchError(core.err))
		g.Expect(core.count).To(Equal(3))
	})
	t.Run("When a hundred NodeClaims are to be launched, the last ones should wait for the first", func(t *testing.T) {
		g := NewWithT(t)
		var nodeClaims []client.Object
		for i := range 100 {
			nodeClaims = append(nodeClaims, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("general-", i)}})
		}
		cache, core := fake.NewClientBuilder().WithScheme(scheme).WithObjects(nodeClaims...).Build(), hanging{begun: make(chan string, 2*len(nodeClaims))}
		lifecycle := altered(core, lifecyclePasses(cache, reconciler.NewLedger(), clocktesting.NewFakeClock(time.Unix(0, 0)))...)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		waited := slices.ContainsFunc(nodeClaims, func(nodeClaim client.Object) bool {
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)}
			if _, err := lifecycle.Reconcile(over, request); err != nil {
				g.Expect(err).To(MatchError(context.Canceled))
				return true
			}
			g.Expect(core.begun).To(Receive(Equal(nodeClaim.GetName())))
			go func() { _, _ = lifecycle.Reconcile(t.Context(), request) }()
			g.Eventually(core.begun).Should(Receive())
			return false
		})
		g.Expect(waited).To(BeTrue(), "all were launched at once")
	})
	t.Run("When the NodeClaim has gone, it should have its pass", func(t *testing.T) {
		g := NewWithT(t)
		cache, core := fake.NewClientBuilder().WithScheme(scheme).Build(), &passes{}
		lifecycle := altered(core, lifecyclePasses(cache, reconciler.NewLedger(), clocktesting.NewFakeClock(time.Unix(0, 0)))...)
		_, err := lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "general-1"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(core.count).To(Equal(1))
	})
}

func TestTermination(t *testing.T) {
	taint := func(g Gomega, guest client.Client) {
		node := &corev1.Node{}
		g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "one"}, node)).To(Succeed())
		before := node.DeepCopy()
		node.Spec.Taints = []corev1.Taint{karpv1.DisruptedNoScheduleTaint}
		g.Expect(guest.Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
	}
	mark := func(g Gomega, guest client.Client) {
		nodeClaim := &karpv1.NodeClaim{}
		g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "general-1"}, nodeClaim)).To(Succeed())
		before := nodeClaim.DeepCopy()
		nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInstanceTerminating)
		g.Expect(guest.Status().Patch(t.Context(), nodeClaim, client.MergeFrom(before))).To(Succeed())
	}
	setUp := func(g Gomega, t *testing.T, deleted bool) (server, cache client.Client, core *passes, now *clocktesting.FakeClock, pass func() time.Duration) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Finalizers: []string{karpv1.TerminationFinalizer}}}
		node.Spec.ProviderID = "example://one"
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", UID: "general-1"}}
		nodeClaim.Status.ProviderID = node.Spec.ProviderID
		build := func() client.Client {
			guest := fake.NewClientBuilder().WithScheme(guestScheme(g)).WithObjects(node.DeepCopy(), nodeClaim.DeepCopy()).WithStatusSubresource(nodeClaim).
				WithIndex(nodeClaim, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).Build()
			if deleted {
				g.Expect(guest.Delete(t.Context(), node.DeepCopy())).To(Succeed())
			}
			return guest
		}
		writes := reconciler.NewLedger()
		server, cache, core, now = noting(build(), writes), build(), &passes{}, clocktesting.NewFakeClock(time.Unix(0, 0))
		termination := altered(core, terminationPasses(cache, writes, now)...)
		return server, cache, core, now, func() time.Duration {
			result, err := termination.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(node)})
			g.Expect(err).NotTo(HaveOccurred())
			return result.RequeueAfter
		}
	}
	for of, write := range map[string]func(Gomega, client.Client){"a Node": taint, "a Node's NodeClaim": mark} {
		t.Run("When the cache has an older version of "+of+" than core wrote, its next pass should wait until the cache has that", func(t *testing.T) {
			g := NewWithT(t)
			server, cache, core, _, pass := setUp(g, t, true)
			g.Expect(pass()).To(BeZero())
			g.Expect(core.count).To(Equal(1))
			write(g, server)
			g.Expect(pass()).To(BeNumerically(">", 0))
			g.Expect(core.count).To(Equal(1))
			write(g, cache)
			g.Expect(pass()).To(BeZero())
			g.Expect(core.count).To(Equal(2))
		})
	}
	t.Run("When the cache lags, the Node should be drained nonetheless", func(t *testing.T) {
		g := NewWithT(t)
		server, _, core, now, pass := setUp(g, t, true)
		taint(g, server)
		g.Expect(pass()).To(BeNumerically(">", 0))
		now.Step(4 * time.Second)
		g.Expect(pass()).To(BeNumerically(">", 0))
		g.Expect(core.count).To(BeZero())
		now.Step(time.Second)
		g.Expect(pass()).To(BeZero())
		g.Expect(core.count).To(Equal(1))
	})
	t.Run("When a Node isn't being deleted, it should wait for nothing", func(t *testing.T) {
		g := NewWithT(t)
		server, _, core, _, pass := setUp(g, t, false)
		taint(g, server)
		g.Expect(pass()).To(BeZero())
		g.Expect(core.count).To(Equal(1))
	})
}

// powerless is a cloud provider that can't launch anything.
type powerless struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (powerless) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// RepairPolicies implements cloudprovider.CloudProvider.
func (powerless) RepairPolicies() []karpcloudprovider.RepairPolicy {
	return []karpcloudprovider.RepairPolicy{{
		ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: time.Hour, Action: karpcloudprovider.ReplaceNode,
	}}
}

// Create implements cloudprovider.CloudProvider.
func (powerless) Create(context.Context, *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nil, errors.New("no machines")
}

// idle is a manager that starts nothing.
type idle struct {
	manager.Manager
	guest client.Client
}

// GetClient implements manager.Manager.
func (m idle) GetClient() client.Client { return m.guest }

// GetEventRecorderFor implements manager.Manager.
func (idle) GetEventRecorderFor(string) record.EventRecorder { return nil }

func unstarted(t *testing.T, guest client.Client, now clock.Clock) *karpenterCore {
	t.Helper()
	repairs, err := health.NewRepairPolicyMatcher(options.ToContext(t.Context(), &options.Options{FeatureGates: options.FeatureGates{NodeRepair: true}}), powerless{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return &karpenterCore{
		guest:  &coreoperator.Operator{Manager: idle{guest: guest}, Clock: now, EventRecorder: &published{}},
		client: guest, cloudProvider: powerless{}, undecorated: powerless{}, providers: &operator.Providers{}, static: staticbackoff.New(staticbackoff.Config{Guest: guest}),
		state: state.NewCluster(now, guest, powerless{}, state.WithRepairPolicyMatcher(repairs)),
	}
}

// The list of Karpenter core's controllers is ours, so that a new version's has to be compared.
func TestControllers(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	for name, opts := range map[string]options.Options{
		"no gate": {}, "observability off": {DisableClusterStateObservability: true}, "DRA ignored": {IgnoreDRARequests: true},
		"NodeRepair": {FeatureGates: options.FeatureGates{NodeRepair: true}}, "legacy repair": {LegacyNodeRepair: true, FeatureGates: options.FeatureGates{NodeRepair: true}},
		"StaticCapacity": {FeatureGates: options.FeatureGates{StaticCapacity: true}}, "NodeOverlay": {FeatureGates: options.FeatureGates{NodeOverlay: true}},
		"CapacityBuffer":            {FeatureGates: options.FeatureGates{CapacityBuffer: true}},
		"PodDeletionCostManagement": {FeatureGates: options.FeatureGates{PodDeletionCostManagement: true}},
	} {
		t.Run("When Karpenter core runs with "+name+", the list should have the controllers of this version of core", func(t *testing.T) {
			ctx, now := options.ToContext(t.Context(), &opts), clocktesting.NewFakeClock(time.Unix(0, 0))
			types := func(all []controller.Controller) []string {
				var names []string
				for _, c := range all {
					if w, ok := c.(reconciler.Wrapped); ok {
						c = w.Controller
					}
					names = append(names, fmt.Sprintf("%T", c))
				}
				slices.Sort(names)
				return names
			}
			registry := crmetrics.Registry
			t.Cleanup(func() { crmetrics.Registry = registry })
			crmetrics.Registry = prometheus.NewRegistry() // core registers metrics as it makes controllers
			k := unstarted(t, nil, now)
			ours := types(k.controllers(ctx))
			crmetrics.Registry = prometheus.NewRegistry()
			core := types(controllers.NewControllers(ctx, k.guest.Manager, now, nil, &published{}, powerless{}, powerless{}, k.state, nil, nil, controllers.WithoutVPAPrediction()))
			if diff := cmp.Diff(core, ours); diff != "" {
				t.Errorf("the lists differ (-core +ours):\n%s", diff)
			}
		})
	}
}

// find returns core's controller of a type, and the middleware around its passes.
func find[T controller.Controller](g Gomega, all []controller.Controller) (core T, with []reconciler.Middleware) {
	for _, c := range all {
		w, wrapped := c.(reconciler.Wrapped)
		if wrapped {
			c = w.Controller
		}
		if found, ok := c.(T); ok {
			return found, w.With
		}
	}
	g.Expect(all).To(BeEmpty(), "there is no %T", core)
	return core, nil
}

func TestCoreControllers(t *testing.T) {
	setUp := func(t *testing.T) (context.Context, client.Client, []controller.Controller, *clocktesting.FakeClock, *karpv1.NodeClaim) {
		g := NewWithT(t)
		g.Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
		now := clocktesting.NewFakeClock(time.Unix(0, 0))
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}, CreationTimestamp: metav1.NewTime(now.Now().Add(-time.Hour))}}
		nodeClaim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.GroupVersion.Group, Kind: "ClusterAPINodeClass", Name: "default"}
		nodeClaim.Spec.ExpireAfter = karpv1.MustParseNillableDuration("1h")
		nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
		guest := fake.NewClientBuilder().WithScheme(guestScheme(g)).WithObjects(nodeClaim, nodePool).WithStatusSubresource(nodeClaim).Build()
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		ctx := options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true, IgnoreDRARequests: true})
		return ctx, guest, unstarted(t, guest, now).controllers(ctx), now, nodeClaim
	}
	t.Run("When a pass over a NodeClaim has written something, the next one may begin at once", func(t *testing.T) {
		g := NewWithT(t)
		ctx, guest, all, now, nodeClaim := setUp(t)
		core, _ := find[*karplifecycle.Controller](g, all)
		_, err := core.Reconcile(ctx, nodeClaim)
		g.Expect(err).To(MatchError(ContainSubstring("no machines")))
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched).Reason).To(Equal("LaunchFailed"), "the pass has written nothing")
		g.Expect(now.Now()).To(Equal(time.Unix(0, 0)), "it has slept")
	})
	t.Run("When a NodeClaim isn't launched, Karpenter should write nothing about what it may be disrupted for", func(t *testing.T) {
		g := NewWithT(t)
		ctx, guest, all, _, nodeClaim := setUp(t)
		core, with := find[*nodeclaimdisruption.Controller](g, all)
		_, err := altered(reconcile.AsReconciler(guest, core), with...).Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Status.Conditions).To(BeEmpty())
	})
	t.Run("When a NodeClaim has expired, Karpenter should wait until the cache has its deletion", func(t *testing.T) {
		g := NewWithT(t)
		ctx, _, all, now, nodeClaim := setUp(t)
		core, _ := find[*expiration.Controller](g, all)
		_, err := core.Reconcile(ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Since(time.Unix(0, 0))).To(Equal(time.Second), "it would count it twice")
	})
}

func TestDeparture(t *testing.T) {
	g := NewWithT(t)
	ctx := options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true})
	k := unstarted(t, fake.NewClientBuilder().WithScheme(guestScheme(g)).Build(), clocktesting.NewFakeClock(time.Unix(0, 0)))
	all := k.controllers(ctx)
	_, ofLifecycle := find[*karplifecycle.Controller](g, all)
	_, ofTermination := find[*termination.Controller](g, all)
	for name, tc := range map[string]struct {
		with []reconciler.Middleware
		wake func(string)
	}{
		"lifecycle": {ofLifecycle, k.nodeClaims.WakeNodeClaim}, "termination": {ofTermination, k.nodeClaims.WakeNode},
	} {
		t.Run("When a machine is gone that core's "+name+" waits for, it should begin a pass at once", func(t *testing.T) {
			var woken []string
			for _, middleware := range tc.with {
				middleware(reconciler.Registered{Enqueue: func(request reconcile.Request) bool {
					woken = append(woken, request.Name)
					return true
				}})
			}
			tc.wake("general-1")
			NewWithT(t).Expect(woken).To(Equal([]string{"general-1"}))
		})
	}
}

func TestNodeLimit(t *testing.T) {
	t.Run("When a static NodePool may have fewer nodes than replicas, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		ctx := options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true, FeatureGates: options.FeatureGates{StaticCapacity: true}})
		nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}, Spec: karpv1.NodePoolSpec{Replicas: ptr.To(int64(3)), Limits: karpv1.Limits{"nodes": resource.MustParse("2")}}}
		k := unstarted(t, fake.NewClientBuilder().WithScheme(guestScheme(g)).WithObjects(nodePool).Build(), clocktesting.NewFakeClock(time.Unix(0, 0)))
		_, with := find[*staticprovisioning.Controller](g, k.controllers(ctx))
		_, err := altered(&passes{}, with...).Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodePool)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*k.guest.EventRecorder.(*published)).To(ContainElement(HaveField("Reason", reconciler.NodeLimitReachedReason)))
	})
}

func TestRecount(t *testing.T) {
	t.Run("When a static NodePool counts a NodeClaim that is gone, it shouldn't for ever", func(t *testing.T) {
		g := NewWithT(t)
		ctx, now := options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true}), clocktesting.NewFakeClock(time.Unix(0, 0))
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "fixed-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "fixed"}}}
		k := unstarted(t, fake.NewClientBuilder().WithScheme(guestScheme(g)).WithObjects(nodeClaim).Build(), now)
		_, with := find[*informer.NodeClaimController](g, k.controllers(ctx))
		states := altered(&passes{}, with...)
		pass := func() {
			_, err := states.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
			g.Expect(err).NotTo(HaveOccurred())
		}
		pass()
		g.Expect(k.client.Delete(ctx, nodeClaim)).To(Succeed())
		pass()
		k.state.NodePoolState.MarkNodeClaimDeleting("fixed", nodeClaim.Name)
		now.Step(time.Minute)
		pass()
		_, deleting, _ := k.state.NodePoolState.GetNodeCount("fixed")
		g.Expect(deleting).To(BeZero())
	})
}

func TestRecountBuffers(t *testing.T) {
	t.Run("When a node is launched for a capacity buffer, Karpenter should count it once all NodeClaims are launched", func(t *testing.T) {
		g := NewWithT(t)
		ctx := options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true, FeatureGates: options.FeatureGates{CapacityBuffer: true}})
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1"}, Status: karpv1.NodeClaimStatus{ProviderID: "cloud://1"}}
		buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
		scheme := guestScheme(g)
		scheme.AddKnownTypes(schema.GroupVersion{Group: autoscalingv1beta1.Group, Version: "v1beta1"}, buffer, &autoscalingv1beta1.CapacityBufferList{})
		k := unstarted(t, fake.NewClientBuilder().WithScheme(scheme).WithObjects(nodeClaim, buffer).Build(), clocktesting.NewFakeClock(time.Unix(0, 0)))
		_, with := find[*informer.NodeClaimController](g, k.controllers(ctx))
		k.state.SetSynced(true)
		k.state.UpdateNodeClaim(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-2"}})
		result, err := altered(&passes{}, with...).Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
		g.Expect(result.RequeueAfter, err).NotTo(BeZero())
	})
}

func TestSavings(t *testing.T) {
	t.Run("When the disruption queue has deleted nodes to save costs, it should count what that saves", func(t *testing.T) {
		g := NewWithT(t)
		k := unstarted(t, fake.NewClientBuilder().WithScheme(guestScheme(g)).Build(), clocktesting.NewFakeClock(time.Unix(0, 0)))
		_, with := find[*disruption.Queue](g, k.controllers(options.ToContext(t.Context(), &options.Options{DisableClusterStateObservability: true})))
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
		command := &disruption.Command{Method: &disruption.Emptiness{}, Candidates: []*disruption.Candidate{{StateNode: &state.StateNode{NodeClaim: nodeClaim}, Price: 0.25}}}
		k.queue.ProviderIDToCommand[""] = command
		core := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			command.Succeeded = true
			return reconcile.Result{}, nil
		})
		_, err := altered(core, with...).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
		g.Expect(err).NotTo(HaveOccurred())
		count, err := testutil.GatherAndCount(crmetrics.Registry, "karpenter_clusterapi_consolidation_saved_dollars_per_hour_total")
		g.Expect(count, err).To(Equal(1))
	})
}

func TestDisruptionMethods(t *testing.T) {
	t.Run("When nodes drift, methods that can terminate them first should replace them", func(t *testing.T) {
		g := NewWithT(t)
		ctx := options.ToContext(t.Context(), &options.Options{FeatureGates: options.FeatureGates{StaticCapacity: true, NodeRepair: true}})
		all := unstarted(t, nil, clocktesting.NewFakeClock(time.Unix(0, 0))).methods(ctx)
		g.Expect(all).NotTo(BeEmpty())
		for _, method := range all {
			switch method.(type) {
			case *disruption.Drift, *disruption.StaticDrift, *disruption.Repair:
				t.Errorf("%T is Karpenter core's own, which waits for ever where there is no room", method)
			case *disruption.SingleNodeConsolidation, *disruption.MultiNodeConsolidation:
				t.Errorf("%T is Karpenter core's own, which takes spot for cheaper than on demand", method)
			}
			if name := fmt.Sprintf("%T", method); method.Reason() == karpv1.DisruptionReasonDrifted && name != "methods.limited" {
				t.Errorf("%s replaces nodes for a release that hasn't proved itself", name)
			}
		}
	})
	t.Run("When an extension has a method, it should disrupt nodes before they are disrupted for anything else", func(t *testing.T) {
		g := NewWithT(t)
		k, first := unstarted(t, nil, clocktesting.NewFakeClock(time.Unix(0, 0))), &because{}
		k.providers.Methods = append(k.providers.Methods, func(core methods.Core) disruption.Method {
			g.Expect(core.Cluster).To(BeIdenticalTo(k.state))
			return first
		})
		all := k.methods(options.ToContext(t.Context(), &options.Options{}))
		g.Expect(all[0]).To(BeIdenticalTo(first))
		g.Expect(len(all)).To(BeNumerically(">", 1))
	})
}
