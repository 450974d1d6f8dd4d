// SPDX-License-Identifier: Apache-2.0

package vacancy_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

// fixture is a NodePool whose node "old" was terminated first.
type fixture struct {
	*WithT
	t           *testing.T
	guest       client.Client
	keeper      *vacancy.Keeper
	inventory   *inventory.Inventory
	unavailable *offering.Unavailable
	recorder    *environment.Recorder
	clock       *clocktesting.FakeClock
}

var key = offering.Key{InstanceType: "host", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}

func newFixture(t *testing.T, noSpareHost bool, change func(*karpv1.NodePool)) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakeClock(time.Now()), recorder: &environment.Recorder{}}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general", UID: "general"}}
	if change != nil {
		change(pool)
	}
	f.guest = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(pool).WithStatusSubresource(&karpv1.NodePool{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string { return []string{pod.(*corev1.Pod).Spec.NodeName} }).Build()
	f.inventory = inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: f.clock})
	f.unavailable = offering.NewUnavailable(f.clock)
	f.keeper = vacancy.New(vacancy.Config{
		Guest: f.guest, Clock: f.clock, Capacity: capacityprovider.Unlimited{}, Inventory: f.inventory, Unavailable: f.unavailable, Recorder: f.recorder,
	})
	f.inventory.ObserveMachine("old", inventory.Machine{Origin: inventory.Origin{Source: "source", Key: key}})
	f.keeper.Hold(nodeClaim("old"), full, noSpareHost)
	f.reconcile()
	return f
}

func nodeClaim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
}

func (f *fixture) reconcile() {
	f.t.Helper()
	_, err := f.keeper.Reconcile(f.t.Context())
	f.Expect(err).NotTo(HaveOccurred())
}

// gone removes the Machine.
func (f *fixture) gone() {
	f.t.Helper()
	f.inventory.ForgetMachine("old")
	f.keeper.Release("old")
	f.reconcile()
}

// pending creates a pod that waits for a node.
func (f *fixture) pending() {
	f.t.Helper()
	f.Expect(f.guest.Create(f.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Status: corev1.PodStatus{
		Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
	}})).To(Succeed())
}

// condition of the NodePool.
func (f *fixture) condition() string {
	f.t.Helper()
	pool := &karpv1.NodePool{}
	f.Expect(f.guest.Get(context.Background(), client.ObjectKey{Name: "general"}, pool)).To(Succeed())
	if is := pool.StatusConditions().Get(v1alpha1.TerminateFirstCondition); is != nil {
		return is.Message
	}
	return ""
}

const full = "the template source of its machine has its maximum size"

func TestController(t *testing.T) {
	t.Run("When the replacement is initialized, it should hold nothing, and say so until no node has to be replaced", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.Expect(f.condition()).To(Equal("nodes are terminated before their replacements are launched: the template source of its machine has its maximum size"))
		drifted := nodeClaim("drifted")
		drifted.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		f.Expect(f.guest.Create(t.Context(), drifted)).To(Succeed())
		f.gone()
		next := nodeClaim("next")
		f.Expect(f.guest.Create(t.Context(), next)).To(Succeed())
		f.Expect(f.keeper.Fill(next, "", "source", "")).To(Equal("old"))
		f.reconcile()
		f.Expect(f.keeper.All()).To(HaveLen(1))
		next.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		f.Expect(f.guest.Update(t.Context(), next)).To(Succeed())
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
		f.Expect(f.condition()).NotTo(BeEmpty())
		f.Expect(f.guest.Delete(t.Context(), drifted)).To(Succeed())
		f.reconcile()
		f.Expect(f.condition()).To(BeEmpty())
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})
	t.Run("When the replacement's NodeClaim goes, it should hold it for the next one", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.gone()
		f.Expect(f.keeper.Fill(nodeClaim("next"), "", "source", "")).To(Equal("old"))
		f.reconcile()
		f.Expect(f.keeper.All()).To(ConsistOf(And(HaveField("Filler", ""), HaveField("Empty", f.clock.Now()))))
	})
	t.Run("When the pods have gone, it should hold nothing after a minute", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.gone()
		f.Expect(f.keeper.All()).To(HaveLen(1))
		f.clock.Step(time.Minute)
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
	})
	t.Run("When pods wait and nothing is launched in time, it should hold nothing, and say so", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.pending()
		f.gone()
		f.clock.Step(vacancy.HoldTimeout - time.Second)
		f.reconcile()
		f.Expect(f.keeper.All()).To(HaveLen(1))
		f.clock.Step(time.Second)
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{vacancy.ReleasedReason}))
	})
	t.Run("When the drain takes long, it should wait for the Machine, then hold it for a bounded time however many replacements fail", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.clock.Step(vacancy.MaxAge)
		f.reconcile()
		f.Expect(f.keeper.All()).To(HaveLen(1))
		f.Expect(f.keeper.Count("general")).To(BeZero(), "Karpenter core counts the node")
		f.gone()
		f.Expect(f.keeper.Count("general")).To(Equal(1))
		next := nodeClaim("next")
		f.Expect(f.guest.Create(t.Context(), next)).To(Succeed())
		f.Expect(f.keeper.Fill(next, "", "source", "")).To(Equal("old"))
		f.clock.Step(vacancy.MaxAge - time.Second)
		f.reconcile()
		f.Expect(f.keeper.Count("general")).To(Equal(1))
		f.clock.Step(time.Second)
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{vacancy.ReleasedReason}))
	})
	t.Run("When a static NodePool has too few nodes, it should hold it, and not when it has enough", func(t *testing.T) {
		f := newFixture(t, false, func(pool *karpv1.NodePool) { pool.Spec.Replicas = ptr.To[int64](1) })
		f.gone()
		f.clock.Step(time.Minute)
		f.reconcile()
		f.Expect(f.keeper.All()).To(HaveLen(1))
		f.Expect(f.guest.Create(t.Context(), nodeClaim("elsewhere"))).To(Succeed())
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
	})
	t.Run("When the NodePool is deleted, it should hold nothing", func(t *testing.T) {
		f := newFixture(t, false, nil)
		f.Expect(f.guest.Delete(t.Context(), &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}})).To(Succeed())
		f.reconcile()
		f.Expect(f.keeper.All()).To(BeEmpty())
	})
	t.Run("When a host comes back, its offering should be tried again, and not that of a source at its maximum", func(t *testing.T) {
		for _, noSpareHost := range []bool{true, false} {
			f := newFixture(t, noSpareHost, nil)
			f.unavailable.MarkExhausted(key, "InsufficientCapacity")
			f.pending()
			f.gone()
			f.Expect(f.unavailable.Has(key)).To(Equal(!noSpareHost))
		}
	})
}
