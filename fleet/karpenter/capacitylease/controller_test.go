// SPDX-License-Identifier: Apache-2.0

package capacitylease_test

import (
	"context"
	"sync"
	"testing"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/capacitylease"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// fixture is a Karpenter that follows its lease in a real API server.
type fixture struct {
	*WithT
	*environment.Environment
	t           *testing.T
	capacity    *limit.Provider
	unavailable *offering.Unavailable
	// clock of the protocol.
	clock *clocktesting.FakePassiveClock

	mu      sync.Mutex
	patches int
}

// newFixture starts a Karpenter, of which no other is known to have run.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureAt(t, clock.RealClock{})
}

// newFixtureAt is newFixture with a clock by which the controller waits.
func newFixtureAt(t *testing.T, waits clock.Clock) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), Environment: environment.New(t), t: t, clock: clocktesting.NewFakePassiveClock(time.Now())}
	dynamicClient, err := dynamic.NewForConfig(f.Management.GetConfig())
	f.Expect(err).NotTo(HaveOccurred())
	leases := informer.New(informer.Config{Management: dynamicClient, Mapper: limit.Mapper(), Namespace: f.Namespace})
	machines := f.Machines(nil)
	f.capacity = limit.New(limit.Config{Clock: f.clock, Source: &limit.Cluster{
		Leases: leases, Reader: f.Management.GetAPIReader(), Namespace: f.Namespace, ClusterName: f.Cluster.Name, LeaseName: autonodev1alpha1.LeaseName, Owns: machines.Owns,
		Name: machines.InstanceName, IsFirst: func(context.Context) (bool, error) { return true, nil },
	}})
	f.Expect(f.capacity.Watch(t.Context(), f.Management.GetCache(), machines.Owns)).To(Succeed())
	leases.OnChange(func(schema.GroupKind) { f.capacity.Trigger() })
	f.unavailable = offering.NewUnavailable(clock.RealClock{})
	f.unavailable.OnChange(f.capacity.Trigger)
	admin, ok := f.Admin.(client.WithWatch)
	if !ok {
		admin, err = client.NewWithWatch(f.Management.GetConfig(), client.Options{Scheme: f.Admin.Scheme()})
		f.Expect(err).NotTo(HaveOccurred())
	}
	controller := capacitylease.New(capacitylease.Config{
		Management: interceptor.NewClient(admin, interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				f.mu.Lock()
				f.patches++
				f.mu.Unlock()
				return c.SubResource(name).Patch(ctx, object, patch, opts...)
			},
		}),
		Lease: types.NamespacedName{Namespace: f.Namespace, Name: autonodev1alpha1.LeaseName}, Capacity: f.capacity, Unavailable: f.unavailable, Clock: waits,
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, start := range []func(context.Context) error{leases.Start, controller.Start} {
		running.Go(func() { _ = start(ctx) })
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f
}

func (f *fixture) lease() *autonodev1alpha1.CapacityLease {
	f.t.Helper()
	lease := &autonodev1alpha1.CapacityLease{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: autonodev1alpha1.LeaseName}, lease)).To(Succeed())
	return lease
}

// change writes a change of the lease's spec, as the operator does.
func (f *fixture) change(change func(*autonodev1alpha1.CapacityLeaseSpec)) {
	f.t.Helper()
	f.Eventually(func() error {
		lease := f.lease()
		change(&lease.Spec)
		return f.Admin.Update(f.t.Context(), lease)
	}).Should(Succeed())
}

// grant plays the operator.
func (f *fixture) grant(sequence, machines, upTo int64) {
	f.t.Helper()
	lease := &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: autonodev1alpha1.LeaseName}}
	f.Expect(client.IgnoreAlreadyExists(f.Admin.Create(f.t.Context(), lease))).To(Succeed())
	f.change(func(spec *autonodev1alpha1.CapacityLeaseSpec) {
		*spec = autonodev1alpha1.CapacityLeaseSpec{
			Account: &autonodev1alpha1.CapacityAccountReference{Name: "shared", UID: "account-1"}, Sequence: sequence,
			Pools: []autonodev1alpha1.LeasedPool{{
				Name: "reservation/cr-1", Resource: autonodev1alpha1.PoolMachines, Reservation: "cr-1", Limit: machines, Granted: machines, Available: upTo,
			}},
		}
	})
}

// kstatus is what tools such as Flux say of the lease.
func (f *fixture) kstatus() kstatus.Status {
	f.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(f.lease())
	f.Expect(err).NotTo(HaveOccurred())
	result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	f.Expect(err).NotTo(HaveOccurred())
	return result.Status
}

// machine makes what Karpenter makes for a NodeClaim.
func (f *fixture) machine(name, uid string) *clusterv1.Machine {
	f.t.Helper()
	nodeClaim := f.NodeClaim(f.t.Context(), name)
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.MachineName(nodeClaim.Name), Labels: map[string]string{
		clusterv1.ClusterNameLabel: f.Cluster.Name, v1alpha1.NodeClaimLabel: nodeClaim.Name, v1alpha1.NodeClaimUIDLabel: uid,
		corev1.LabelInstanceTypeStable: "g5", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: "reserved", v1alpha1.ReservationIDLabel: "cr-1",
	}}}
	m.Spec.ClusterName = f.Cluster.Name
	m.Spec.Bootstrap.DataSecretName = &nodeClaim.Name
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: environment.TestMachine.Group, Kind: environment.TestMachine.Kind, Name: m.Name}
	f.Expect(f.Admin.Create(f.t.Context(), m)).To(Succeed())
	return m
}

var inReservation = capacity.Machine{Offering: capacity.Offering{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}}

// reserve returns nil if the lease leaves too little.
func (f *fixture) reserve(name string) func() {
	done, _ := f.capacity.Reserve(name, inReservation)
	return done
}

func TestReport(t *testing.T) {
	t.Run("When there is no lease, it should limit nothing and write nothing", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.capacity.Open(t.Context())).To(Succeed())
		f.Expect(f.reserve("a")).NotTo(BeNil())
		f.unavailable.MarkExhausted(offering.Key{InstanceType: "g5", Zone: "a", CapacityType: "spot"}, "InsufficientCapacity")
		f.Expect(f.capacity.Offer(inReservation, 1).Remaining).To(Equal(capacity.Unlimited))
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Expect(f.patches).To(BeZero())
	})
	t.Run("When it is granted something, it should acknowledge it, spend it, and ask for more", func(t *testing.T) {
		f := newFixture(t)
		f.grant(7, 1, 2)
		f.Eventually(func() int64 { return f.lease().Status.AcknowledgedSequence }).Should(Equal(int64(7)))
		f.Expect(f.lease().Status.Reserved).To(Equal([]autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 1}}))
		m := f.machine("first", "uid-first")
		f.Eventually(func() int { return f.capacity.Offer(inReservation, 1).Remaining }).Should(Equal(1))
		f.Expect(f.reserve("second")).To(BeNil())
		grant, _ := f.capacity.Request("second", inReservation)
		f.Expect(grant).To(Equal(capacityprovider.GrantAwaited))
		f.Eventually(func() []autonodev1alpha1.CapacityRequest { return f.lease().Status.Requests }).Should(Equal(
			[]autonodev1alpha1.CapacityRequest{{Charges: []autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 1}}, Count: 1}}))
		f.grant(8, 2, 2)
		f.Eventually(func() func() { return f.reserve("second") }).ShouldNot(BeNil())
		f.Eventually(func() autonodev1alpha1.CapacityLeaseStatus { return f.lease().Status }).Should(And(
			HaveField("AcknowledgedSequence", int64(8)), HaveField("Requests", BeEmpty()),
			HaveField("Reserved", Equal([]autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 2}}))))

		// The operator requests one back: it returns when the Machine is gone.
		f.grant(9, 0, 0)
		f.Eventually(func() int64 { return f.lease().Status.AcknowledgedSequence }).Should(Equal(int64(9)))
		f.Expect(f.lease().Status.Reserved).To(Equal([]autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 2}}))
		f.Expect(f.Admin.Delete(t.Context(), m)).To(Succeed())
		f.Eventually(func() []autonodev1alpha1.PoolAmount { return f.lease().Status.Reserved }).Should(
			Equal([]autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 1}}))
		f.Expect(f.reserve("third")).To(BeNil())
	})
	t.Run("When the infrastructure has no capacity, it should inform the account, and not of what others reported to it", func(t *testing.T) {
		f := newFixture(t)
		spot := offering.Key{InstanceType: "m5.large", Zone: "b", CapacityType: "spot"}
		until := f.unavailable.MarkExhausted(spot, "InsufficientCapacity")
		exceeded := offering.Quota{QuotaName: capacity.QuotaName{Name: "on-demand P vCPUs", Counts: capacity.VCPUs}, Amount: 96000}
		f.unavailable.MarkExceeded(offering.Key{InstanceType: "p4", Zone: "b", CapacityType: "on-demand"}, exceeded, -1, "QuotaExceeded")
		f.unavailable.Mark(offering.Key{InstanceType: "t3", Zone: "b", CapacityType: "on-demand"}, "MachineFailed")
		reserved := offering.Key{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}
		f.unavailable.MarkExhausted(reserved, "InsufficientCapacity")
		f.grant(1, 1, 1)
		f.Eventually(func() []autonodev1alpha1.UnavailableOffering { return f.lease().Status.Unavailable }).Should(ConsistOf(
			And(HaveField("InstanceType", "m5.large"), HaveField("Zone", "b"), HaveField("CapacityType", "spot"), HaveField("Reason", "Capacity"),
				HaveField("Until.Time.Time", BeTemporally("==", until.Truncate(time.Second)))),
			And(HaveField("InstanceType", ""), HaveField("Reason", "Quota"), HaveField("Quota", "on-demand P vCPUs"),
				HaveField("Counts", autonodev1alpha1.PoolVCPUs), HaveField("AtLeast", int64(96000))),
		))
		f.mu.Lock()
		patches := f.patches
		f.mu.Unlock()
		f.change(func(spec *autonodev1alpha1.CapacityLeaseSpec) {
			until := scalar.NewTime(time.Now().Add(time.Hour))
			spec.Unavailable = []autonodev1alpha1.UnavailableOffering{
				{InstanceType: "g5", Zone: "a", Until: until}, {Quota: "on-demand X vCPUs", Counts: autonodev1alpha1.PoolVCPUs, AtLeast: 64000, Until: until},
			}
		})
		f.Eventually(func() bool { return f.capacity.Offer(inReservation, 1).Available }).Should(BeFalse())
		needs := func(vCPUs int64) offering.Quota {
			return offering.Quota{QuotaName: capacity.QuotaName{Name: "on-demand X vCPUs", Counts: capacity.VCPUs}, Amount: 1000 * vCPUs}
		}
		large := offering.Key{InstanceType: "x1.16xlarge", Zone: "c", CapacityType: "on-demand"}
		f.Eventually(func() bool { return f.unavailable.Has(large, needs(64)) }).Should(BeTrue())
		f.Expect(f.unavailable.Has(large, needs(32))).To(BeFalse())
		f.Expect(f.lease().Status.Unavailable).To(HaveLen(2))
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Expect(f.patches).To(Equal(patches), "nothing has changed that others have to know")
	})
	t.Run("When Machines exist before the lease, it should hold what they take beyond it", func(t *testing.T) {
		f := newFixture(t)
		f.machine("one", "uid-one")
		f.machine("two", "uid-two")
		f.grant(1, 1, 1)
		// It may have succeeded another Karpenter.
		f.Eventually(func() error { return f.capacity.Open(t.Context()) }).Should(BeAssignableToTypeOf(&limit.SucceedingError{}))
		f.Expect(f.lease().Status.AcknowledgedSequence).To(BeZero())
		f.clock.SetTime(f.clock.Now().Add(division.InFlight))
		f.capacity.Trigger()
		f.Eventually(func() autonodev1alpha1.CapacityLeaseStatus { return f.lease().Status }).Should(And(HaveField("AcknowledgedSequence", int64(1)),
			HaveField("Reserved", Equal([]autonodev1alpha1.PoolAmount{{Pool: "reservation/cr-1", Amount: 2}}))))
	})
}

func TestReady(t *testing.T) {
	// The controller waits by this clock alone.
	clk := clocktesting.NewFakeClock(time.Now())
	f := newFixtureAt(t, clk)
	passes := func() bool { clk.Step(time.Second); return true }

	t.Run("When nothing is granted yet, it should be in progress", func(t *testing.T) {
		NewWithT(t).Expect(f.Admin.Create(t.Context(), &autonodev1alpha1.CapacityLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: autonodev1alpha1.LeaseName},
		})).To(Succeed())
		f.Expect(f.kstatus()).To(Equal(kstatus.InProgressStatus))
	})
	t.Run("When Karpenter keeps to the lease, it should be ready", func(t *testing.T) {
		f.grant(7, 1, 2)
		f.Eventually(func() kstatus.Status { passes(); return f.kstatus() }).Should(Equal(kstatus.CurrentStatus))
		f.Expect(f.lease().Status).To(And(HaveField("AcknowledgedSequence", int64(7)), HaveField("ObservedGeneration", f.lease().Generation)))
	})
	t.Run("When a grant changes, it should be ready again as soon as Karpenter acknowledges that", func(t *testing.T) {
		f.grant(8, 2, 2)
		f.Eventually(func() int64 { passes(); return f.lease().Status.AcknowledgedSequence }).Should(Equal(int64(8)))
		f.Expect(f.kstatus()).To(Equal(kstatus.CurrentStatus))
	})
	t.Run("When nothing but a hint changes, it should be ready again half a minute later", func(t *testing.T) {
		before := clk.Now()
		f.grant(8, 2, 4)
		f.Expect(f.kstatus()).To(Equal(kstatus.InProgressStatus))
		f.Eventually(func() kstatus.Status { passes(); return f.kstatus() }).Should(Equal(kstatus.CurrentStatus))
		f.Expect(clk.Since(before)).To(BeNumerically(">", 20*time.Second))
	})
}

func TestReturned(t *testing.T) {
	f := newFixture(t)
	f.machine("one", "uid-one")
	f.machine("two", "uid-two")
	f.grant(1, 2, 2)
	f.Eventually(func() error { return f.capacity.Open(t.Context()) }).Should(BeAssignableToTypeOf(&limit.SucceedingError{}))
	f.clock.SetTime(f.clock.Now().Add(division.InFlight))
	f.capacity.Trigger()
	reclaim := func(entries ...autonodev1alpha1.CapacityReclaim) {
		f.change(func(spec *autonodev1alpha1.CapacityLeaseSpec) { spec.Reclaim = entries })
	}
	returned := func() *metav1.Condition {
		return meta.FindStatusCondition(f.lease().Status.Conditions, autonodev1alpha1.CapacityReturned)
	}
	f.Eventually(func() int64 { return f.lease().Status.AcknowledgedSequence }).Should(Equal(int64(1)))
	f.Expect(returned()).To(BeNil())

	t.Run("When capacity is to be returned, it should say how much, by when and for whom", func(t *testing.T) {
		reclaim(autonodev1alpha1.CapacityReclaim{Pool: "reservation/cr-1", Limit: 1, For: []string{"clusters/blue"}})
		f.Eventually(returned).Should(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", autonodev1alpha1.DrainingReason),
			HaveField("Message", And(ContainSubstring("1 of reservation/cr-1 by "), ContainSubstring("clusters/blue"))))))
		f.Expect(f.lease().Status.Reclaim).To(ConsistOf(And(HaveField("Pool", "reservation/cr-1"), HaveField("Limit", int64(1)))))
		f.Expect(f.kstatus()).To(Equal(kstatus.CurrentStatus))
	})
	t.Run("When the deadline has passed, it should say so", func(t *testing.T) {
		f.clock.SetTime(f.clock.Now().Add(division.DefaultReclaimGracePeriod + time.Minute))
		f.capacity.Trigger()
		f.Eventually(returned).Should(HaveValue(HaveField("Reason", autonodev1alpha1.DeadlinePassedReason)))
	})
	t.Run("When the cluster keeps no more than it may, it should say so", func(t *testing.T) {
		reclaim(autonodev1alpha1.CapacityReclaim{Pool: "reservation/cr-1", Limit: 2, For: []string{"clusters/blue"}})
		f.Eventually(returned).Should(HaveValue(HaveField("Status", metav1.ConditionTrue)))
	})
	t.Run("When nothing is to be returned any more, it should say nothing of it", func(t *testing.T) {
		reclaim()
		f.Eventually(returned).Should(BeNil())
		f.Expect(f.lease().Status.Reclaim).To(BeEmpty())
	})
}
