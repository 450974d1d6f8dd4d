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
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	nodeclaimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core"
	"github.com/autonode-io/autonode/karpenter/core/deadlines"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/ownwrites"
	"github.com/autonode-io/autonode/karpenter/core/reclaim"
	"github.com/autonode-io/autonode/karpenter/core/reconciler/reconcilertest"
	"github.com/autonode-io/autonode/karpenter/core/terminatefirst"
	"github.com/autonode-io/autonode/karpenter/operator"
)

// guestScheme knows what core's controllers read in these tests.
func guestScheme(g Gomega) *runtime.Scheme {
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{}, &karpv1.NodePool{})
	return scheme
}

// What package core keeps Karpenter core from, it is kept from by the client that it gets.
func TestGuestClient(t *testing.T) {
	first, writes := terminatefirst.NewFollower(&published{}), ownwrites.New()
	var sent []types.PatchType
	setUp := func(g Gomega, suspended bool) client.Client {
		guest := fake.NewClientBuilder().WithScheme(guestScheme(g)).WithObjects(
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Labels: map[string]string{corev1.LabelTopologyZone: "eu-1a"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{clusterv1.NodeUninitializedTaint}},
			},
		).WithStatusSubresource(&karpv1.NodeClaim{}).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, guest client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
				sent = append(sent, patch.Type())
				return guest.Patch(ctx, object, patch, opts...)
			},
		}).Build()
		return guestClient(guest, func() bool { return suspended }, func(_, key string) bool { return key == "storage" },
			func(context.Context, *corev1.Node) bool { return false }, first, writes)
	}
	node := func(g Gomega, guest client.Client) (read, before *corev1.Node) {
		read = &corev1.Node{}
		g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "one"}, read)).To(Succeed())
		return read, read.DeepCopy()
	}
	claim := func() *karpv1.NodeClaim {
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{"storage": "8131"}}}
		nodeClaim.Spec.NodeClassRef = &karpv1.NodeClassReference{Name: "default"}
		nodeClaim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: "storage", Operator: corev1.NodeSelectorOpExists}}
		return nodeClaim
	}
	t.Run("When it creates a NodeClaim with a value of its own for a template's label, the NodeClaim should not have it", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := claim()
		guest := setUp(g, true)
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Labels).NotTo(HaveKey("storage"))
	})
	t.Run("When it registers a node whose zone is known, as of none, the node should keep its zone", func(t *testing.T) {
		g := NewWithT(t)
		guest := setUp(g, true)
		node, before := node(g, guest)
		node.Labels[corev1.LabelTopologyZone] = "default"
		g.Expect(guest.Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
		g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, "eu-1a"))
	})
	t.Run("When it registers a node, pods should not have to wait until Cluster API has set the node's labels again", func(t *testing.T) {
		g := NewWithT(t)
		guest := setUp(g, false)
		node, before := node(g, guest)
		node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
		g.Expect(guest.Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
		g.Expect(node.Spec.Taints).To(BeEmpty())
	})
	t.Run("When it registers a node with a lock, the lock should be of what it changes", func(t *testing.T) {
		g := NewWithT(t)
		guest := setUp(g, false)
		node, before := node(g, guest)
		node.Labels[karpv1.NodeRegisteredLabelKey], sent = "true", nil
		g.Expect(guest.Patch(t.Context(), node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
		g.Expect(sent).To(ConsistOf(types.JSONPatchType))
	})
	t.Run("When it deletes a NodeClaim while the management cluster is away, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := claim()
		guest := setUp(g, true)
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(errors.Is(guest.Delete(t.Context(), nodeClaim), leadership.ErrSuspended)).To(BeTrue())
	})
	t.Run("When a launch ends after another client has written a provider ID, that one should stay", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := claim()
		guest := setUp(g, true)
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		launched := nodeClaim.DeepCopy()
		nodeClaim.Status.ProviderID = "example://another"
		g.Expect(guest.Status().Update(t.Context(), nodeClaim)).To(Succeed())
		before := launched.DeepCopy()
		launched.Status.ProviderID = "capi://clusters-blue/general-1"
		g.Expect(apierrors.IsConflict(guest.Status().Patch(t.Context(), launched, client.MergeFrom(before)))).To(BeTrue())
	})
	t.Run("When a pass has changed only a NodeClaim's status, the NodeClaim should be written once, and those of the cache be older", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := claim()
		nodeClaim.UID = "general-1"
		guest := setUp(g, false)
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		cached, created := nodeClaim.DeepCopy(), nodeClaim.ResourceVersion
		nodeClaim.Status.NodeName = "one"
		written := nodeClaim.DeepCopy()
		g.Expect(guest.Patch(t.Context(), nodeClaim, client.MergeFrom(cached))).To(Succeed())
		g.Expect(nodeClaim.ResourceVersion).To(Equal(created), "it was sent")
		g.Expect(writes.Lacks(cached)).To(BeFalse())
		g.Expect(guest.Status().Patch(t.Context(), written, client.MergeFrom(cached))).To(Succeed())
		g.Expect(writes.Lacks(cached)).To(BeTrue())
	})
	t.Run("When it deletes a NodeClaim that is to be terminated before its replacement is launched, the NodeClaim should say so", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := claim()
		nodeClaim.Finalizers = []string{karpv1.TerminationFinalizer}
		nodeClaim.Labels[v1alpha1.ReservationIDLabel] = "cr-1"
		guest := setUp(g, false)
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		queue := disruption.NewQueue(nil, nil, nil, clocktesting.NewFakeClock(time.Unix(0, 0)), nil)
		queue.ProviderIDToCommand[nodeClaim.Status.ProviderID] = &disruption.Command{
			Candidates:           []*disruption.Candidate{{StateNode: &state.StateNode{NodeClaim: nodeClaim}}},
			TerminateFirstReason: disruption.TerminateFirstNoReservedCapacity,
		}
		first.Follow(queue)
		g.Expect(guest.Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Annotations).To(HaveKeyWithValue(v1alpha1.TerminateFirstAnnotation, HaveSuffix("reservation cr-1 is full")))
	})
}

// passes counts the reconciliations of a controller of NodeClaims.
type passes struct {
	count int
	// err ends each of them.
	err error
}

// Register adds the controller.
func (p *passes) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("nodeclaim.lifecycle").For(&karpv1.NodeClaim{}).Complete(p)
}

// Reconcile implements reconcile.Reconciler.
func (p *passes) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	p.count++
	return reconcile.Result{}, p.err
}

// hanging is a controller of NodeClaims whose reconciliations end with their context.
type hanging struct{ begun chan string }

// Register adds the controller.
func (h hanging) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("nodeclaim.lifecycle").For(&karpv1.NodeClaim{}).Complete(h)
}

// Reconcile implements reconcile.Reconciler.
func (h hanging) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	h.begun <- request.Name
	<-ctx.Done()
	return reconcile.Result{}, nil
}

// lifecycle registers what lifecycleOf makes of core's controller.
func lifecycle(t *testing.T, core controller.Controller, guest client.Client, writes *ownwrites.Ledger, now clock.WithDelayedExecution) reconcile.Reconciler {
	t.Helper()
	made, _ := lifecycleOf(core, guest, writes, now, deadlines.Config{})
	return reconcilertest.Register(t, made, guest)
}

func TestLifecycle(t *testing.T) {
	scheme := guestScheme(NewWithT(t))
	t.Run("When the cache has an older NodeClaim than core wrote, its next pass should wait until the cache has that", func(t *testing.T) {
		g := NewWithT(t)
		cached := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", UID: "one"}}
		build := func() client.WithWatch {
			return fake.NewClientBuilder().WithScheme(scheme).WithObjects(cached.DeepCopy()).Build()
		}
		server, cache, writes, core := build(), build(), ownwrites.New(), &passes{}
		lifecycle := lifecycle(t, core, cache, writes, clocktesting.NewFakeClock(time.Unix(0, 0)))
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
		g.Expect(ownwrites.Guest(server, writes).Patch(t.Context(), written, client.MergeFrom(before))).To(Succeed())
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
		lifecycle := lifecycle(t, core, cache, ownwrites.New(), now)
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
		lifecycle := lifecycle(t, core, cache, ownwrites.New(), clocktesting.NewFakeClock(time.Unix(0, 0)))
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
		lifecycle := lifecycle(t, core, cache, ownwrites.New(), clocktesting.NewFakeClock(time.Unix(0, 0)))
		_, err := lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "general-1"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(core.count).To(Equal(1))
	})
}

// woken is a controller that has no watches, but its queue.
type woken struct {
	queue chan workqueue.TypedRateLimitingInterface[reconcile.Request]
	begun chan string
}

// Register adds the controller.
func (w woken) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("woken").WatchesRawSource(source.Func(
		func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			w.queue <- queue
			return nil
		})).Complete(w)
}

// Reconcile implements reconcile.Reconciler.
func (w woken) Reconcile(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
	w.begun <- request.Name
	return reconcile.Result{}, nil
}

func TestDeparture(t *testing.T) {
	for name, of := range map[string]func(controller.Controller, client.Client) (controller.Controller, func(string)){
		"lifecycle": func(core controller.Controller, guest client.Client) (controller.Controller, func(string)) {
			return lifecycleOf(core, guest, ownwrites.New(), clocktesting.NewFakeClock(time.Unix(0, 0)), deadlines.Config{})
		},
		"termination": func(core controller.Controller, guest client.Client) (controller.Controller, func(string)) {
			return terminationOf(core, guest, ownwrites.New(), clocktesting.NewFakeClock(time.Unix(0, 0)))
		},
	} {
		t.Run("When a machine is gone that core's "+name+" waits for, it should begin a pass at once", func(t *testing.T) {
			g := NewWithT(t)
			guest := fake.NewClientBuilder().WithScheme(guestScheme(g)).Build()
			core := woken{queue: make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1), begun: make(chan string, 3)}
			made, wake := of(core, guest)
			registered := reconcilertest.Register(t, made, guest)
			wake("before-the-start")
			go func() { _ = registered.(manager.Runnable).Start(t.Context()) }()
			var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
			g.Eventually(core.queue).Should(Receive(&queue))
			pass := func() (of string) {
				g.Eventually(core.begun).Should(Receive(&of))
				return of
			}
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: "first"}})
			g.Expect(pass()).To(Equal("first"))
			wake("general-1")
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: "last"}})
			g.Expect(pass()).To(Equal("general-1"))
		})
	}
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
		writes := ownwrites.New()
		server, cache, core, now = ownwrites.Guest(build(), writes), build(), &passes{}, clocktesting.NewFakeClock(time.Unix(0, 0))
		made, _ := terminationOf(core, cache, writes, now)
		termination := reconcilertest.Register(t, made, cache)
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
type powerless struct{ reconcilertest.Provider }

// RepairPolicies implements cloudprovider.CloudProvider.
func (powerless) RepairPolicies() []karpcloudprovider.RepairPolicy { return nil }

// Create implements cloudprovider.CloudProvider.
func (powerless) Create(context.Context, *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nil, errors.New("no machines")
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
		all, err := coreControllers(ctx, &coreoperator.Operator{Clock: now, EventRecorder: &published{}}, guest, powerless{}, powerless{}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return ctx, guest, all, now, nodeClaim
	}
	t.Run("When a pass over a NodeClaim has written something, the next one may begin at once", func(t *testing.T) {
		g := NewWithT(t)
		ctx, guest, all, now, nodeClaim := setUp(t)
		lifecycle, _, err := core.Find[*karplifecycle.Controller](all)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = lifecycle.Reconcile(ctx, nodeClaim)
		g.Expect(err).To(MatchError(ContainSubstring("no machines")))
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched).Reason).To(Equal("LaunchFailed"), "the pass has written nothing")
		g.Expect(now.Now()).To(Equal(time.Unix(0, 0)), "it has slept")
	})
	t.Run("When a NodeClaim isn't launched, Karpenter should write nothing about what it may be disrupted for", func(t *testing.T) {
		g := NewWithT(t)
		ctx, guest, all, now, nodeClaim := setUp(t)
		unaltered := controllers.NewControllers(ctx, nil, now, guest, &published{}, powerless{}, powerless{}, nil, nil, nil, controllers.WithoutVPAPrediction())
		_, at, err := core.Find[*nodeclaimdisruption.Controller](unaltered)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = reconcilertest.Register(t, all[at], guest).Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Status.Conditions).To(BeEmpty())
	})
	t.Run("When a NodeClaim has expired, Karpenter should wait until the cache has its deletion", func(t *testing.T) {
		g := NewWithT(t)
		ctx, _, all, now, nodeClaim := setUp(t)
		expirations, _, err := core.Find[*expiration.Controller](all)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = expirations.Reconcile(ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Since(time.Unix(0, 0))).To(Equal(time.Second), "it would count it twice")
	})
}

func TestDisruptionMethods(t *testing.T) {
	t.Run("When nodes drift, methods that can terminate them first should replace them", func(t *testing.T) {
		g := NewWithT(t)
		guest := &coreoperator.Operator{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), EventRecorder: &published{}}
		ctx := options.ToContext(t.Context(), &options.Options{FeatureGates: options.FeatureGates{StaticCapacity: true}})
		methods := disruptionMethods(ctx, guest, nil, nil, &karpenterCore{}, &operator.Providers{})
		g.Expect(methods).NotTo(BeEmpty())
		for _, method := range methods {
			switch method.(type) {
			case *disruption.Drift, *disruption.StaticDrift, *disruption.Repair:
				t.Errorf("%T is Karpenter core's own, which waits for ever where there is no room", method)
			case *disruption.SingleNodeConsolidation, *disruption.MultiNodeConsolidation:
				t.Errorf("%T is Karpenter core's own, which takes spot for cheaper than on demand", method)
			}
		}
	})
	t.Run("When the lease asks for capacity, a method should return it before nodes are disrupted for anything else", func(t *testing.T) {
		g := NewWithT(t)
		guest := &coreoperator.Operator{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), EventRecorder: &published{}}
		ctx := options.ToContext(t.Context(), &options.Options{})
		methods := disruptionMethods(ctx, guest, nil, nil, &karpenterCore{}, &operator.Providers{})
		g.Expect(methods[0].Reason()).To(Equal(reclaim.Reason))
	})
}
