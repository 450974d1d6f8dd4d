// SPDX-License-Identifier: Apache-2.0

package noderecord

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// classless is a cloud provider without node classes.
type classless struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (classless) GetSupportedNodeClasses() []status.Object { return nil }

// method is one of Karpenter core's, of which only the reason matters.
type method struct {
	disruption.Method
	reason string
}

// Reason implements disruption.Method.
func (m method) Reason() karpv1.DisruptionReason { return karpv1.DisruptionReason(m.reason) }

// ConsolidationType implements disruption.Method.
func (m method) ConsolidationType() string {
	return map[string]string{"Underutilized": "multi"}[m.reason]
}

// fixture is a NodeClaim whose machine was launched at the start, four seconds after its creation.
type fixture struct {
	*environment.Environment
	*WithT
	t     *testing.T
	claim *karpv1.NodeClaim
	start time.Time
	// expireAfter is the NodeClaim's, which the API server wouldn't change.
	expireAfter karpv1.NillableDuration
	clock       *clocktesting.FakeClock
	faults      *environment.Faults
	queue       *disruption.Queue
	*Controller
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Environment: environment.New(t), WithT: NewWithT(t), t: t}
	t.Cleanup(func() {
		f.Expect(f.Admin.DeleteAllOf(context.WithoutCancel(t.Context()), &v1alpha1.NodeRecord{})).To(Succeed())
	})
	f.claim = f.NodeClaim(t.Context(), "general")
	f.clock = clocktesting.NewFakeClock(f.claim.CreationTimestamp.Time)
	f.start = f.clock.Now().Add(4 * time.Second)
	f.queue = disruption.NewQueue(nil, nil, nil, f.clock, nil)
	f.restart()
	status := f.claim.Status.DeepCopy()
	f.claim.Finalizers = []string{karpv1.TerminationFinalizer}
	f.claim.Annotations = map[string]string{v1alpha1.MachineAnnotation: f.Namespace + "/blue-general"}
	for key, value := range map[string]string{
		corev1.LabelInstanceTypeStable: "c8-xlarge", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: "spot", v1alpha1.NodePriceLabel: "0.083",
	} {
		f.claim.Labels[key] = value
	}
	f.Expect(f.Admin.Update(t.Context(), f.claim)).To(Succeed())
	f.claim.Status = *status
	f.say(karpv1.ConditionTypeLaunched, "Launched", f.start)
	return f
}

// restart loses the controller's memory.
func (f *fixture) restart() {
	f.faults = &environment.Faults{Client: f.Admin}
	f.Controller = New(Config{
		Guest: f.faults, Cluster: state.NewCluster(f.clock, f.Admin, classless{}), Queue: func() *disruption.Queue { return f.queue },
		Unavailable: offering.NewUnavailable(f.clock), Clock: f.clock, Days: 7, Limit: 1000,
	})
}

// say sets a condition of the NodeClaim.
func (f *fixture) say(condition, reason string, at time.Time) {
	f.t.Helper()
	f.claim.StatusConditions().SetTrueWithReason(condition, reason, reason)
	for i := range f.claim.Status.Conditions {
		if f.claim.Status.Conditions[i].Type == condition {
			f.claim.Status.Conditions[i].LastTransitionTime = metav1.NewTime(at)
		}
	}
	f.Expect(f.Admin.Status().Update(f.t.Context(), f.claim)).To(Succeed())
}

// pass reconciles the NodeClaim as it is.
func (f *fixture) pass() error {
	f.t.Helper()
	claim := f.claim.DeepCopy()
	claim.Spec.ExpireAfter = f.expireAfter
	requests := f.observe(f.t.Context(), claim)
	f.Expect(requests).To(HaveLen(1))
	_, err := f.Reconcile(f.t.Context(), requests[0])
	return err
}

func (f *fixture) sweepOnce() {
	f.t.Helper()
	f.Expect(f.Reconcile(f.t.Context(), reconcile.Request{})).To(Equal(reconcile.Result{RequeueAfter: time.Hour}))
}

// delete deletes the NodeClaim, whose finalizer holds it.
func (f *fixture) delete() {
	f.t.Helper()
	f.Expect(f.Admin.Delete(f.t.Context(), f.claim)).To(Succeed())
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.claim), f.claim)).To(Succeed())
}

// terminate deletes the NodeClaim's machine after 3h12m, and reconciles.
func (f *fixture) terminate() *v1alpha1.NodeRecord {
	f.t.Helper()
	if f.claim.DeletionTimestamp == nil {
		f.delete()
	}
	f.say(karpv1.ConditionTypeInstanceTerminating, "Terminating", f.start.Add(192*time.Minute))
	f.Expect(f.pass()).To(Succeed())
	return f.record()
}

func (f *fixture) record() *v1alpha1.NodeRecord {
	f.t.Helper()
	record := &v1alpha1.NodeRecord{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKey{Name: f.claim.Name + "-" + string(f.claim.UID[:8])}, record)).To(Succeed())
	return record
}

// plan plans a pod on the NodeClaim, of a Deployment unless hash is empty.
func (f *fixture) plan(name, owner, hash string) {
	f.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if owner != "" {
		pod.Labels = map[string]string{"pod-template-hash": hash}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner + "-" + hash, UID: "u", Controller: new(true)}}
	}
	f.Expect(f.Admin.Create(f.t.Context(), pod)).To(Succeed())
	f.Config.Cluster.UpdatePodToNodeClaimMapping(map[string][]*corev1.Pod{f.claim.Name: {pod}})
}

// decide deletes the NodeClaim by a command of Karpenter core's.
func (f *fixture) decide(reason string, price float64) {
	candidate := func(claim *karpv1.NodeClaim) *disruption.Candidate {
		return &disruption.Candidate{StateNode: &state.StateNode{NodeClaim: claim}, Price: price}
	}
	f.queue.ProviderIDToCommand["example://1"] = &disruption.Command{
		Method: method{reason: reason}, Candidates: []*disruption.Candidate{candidate(f.claim.DeepCopy()), candidate(&karpv1.NodeClaim{})},
		Replacements: []*disruption.Replacement{{Name: "new"}},
	}
	f.Deleted(f.claim)
	clear(f.queue.ProviderIDToCommand)
}

func TestLaunch(t *testing.T) {
	t.Run("When a machine is launched, it should record once what for, at which price, and what was refused", func(t *testing.T) {
		f := newFixture(t)
		f.claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "b"}}}
		f.Unavailable.Mark(offering.Key{InstanceType: "c4", Zone: "b", CapacityType: "spot"}, "InsufficientCapacity")
		f.Unavailable.Mark(offering.Key{InstanceType: "c4", Zone: "c", CapacityType: "spot"}, "InsufficientCapacity")
		for _, pod := range []string{"api-1", "api-2", "api-3"} {
			f.plan(pod, "api", "5d4c")
		}
		f.plan("cart-1", "cart", "77b")
		f.plan("bare", "", "")
		for range 2 {
			f.Expect(f.pass()).To(Succeed())
		}
		want := v1alpha1.NodeLaunch{
			Time: timeOf(f.start), Node: "blue-general", NodePool: "general", NodeClass: v1alpha1.RecordText(f.Namespace), InstanceType: "c8-xlarge", Zone: "a",
			CapacityType: "spot", PricePerHour: "$0.083", For: v1alpha1.RecordText(fmt.Sprintf("5 pods, %[1]s/api, %[1]s/bare and 1 more owner", f.Namespace)),
			Refused: []v1alpha1.RecordText{"spot c4 in zone b: InsufficientCapacity"},
		}
		if diff := cmp.Diff(want, f.record().Launch); diff != "" {
			t.Error(diff)
		}
		f.Expect(f.record().Labels).To(Equal(map[string]string{karpv1.NodePoolLabelKey: "general", v1alpha1.RecordedDayLabel: day(f.clock.Now())}))
		f.Expect(f.faults.Writes()).To(Equal(int64(1)))
	})

	t.Run("When a machine isn't launched yet, or is another provider's, it should write nothing", func(t *testing.T) {
		f := newFixture(t)
		f.claim.StatusConditions().SetUnknown(karpv1.ConditionTypeLaunched)
		f.Expect(f.pass()).To(Succeed())
		f.claim.Spec.NodeClassRef.Group = "karpenter.k8s.aws"
		f.Expect(f.observe(t.Context(), f.claim)).To(BeEmpty())
		f.Expect(f.faults.Writes()).To(BeZero())
	})

	for name, tc := range map[string]struct {
		prepare func(*fixture)
		want    v1alpha1.RecordText
	}{
		"When its NodePool is static, it should say so": {func(f *fixture) {
			pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
			pool.Spec.Replicas = new(int64(1))
			pool.Spec.Template.Spec.NodeClassRef = f.claim.Spec.NodeClassRef
			pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
			f.Expect(f.Admin.Create(f.t.Context(), pool)).To(Succeed())
			f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.t.Context()), pool) })
			f.claim.Labels[karpv1.NodePoolLabelKey] = pool.Name
		}, "static"},
		"When only virtual pods wait for it, it should name the capacity buffer": {func(f *fixture) {
			f.Config.Cluster.UpdatePodToNodeClaimMapping(map[string][]*corev1.Pod{f.claim.Name: {{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "virtual"}}}})
		}, "capacity buffer"},
		"When nothing is known, it should be adopted": {func(*fixture) {}, "adopted"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			tc.prepare(f)
			f.Expect(f.pass()).To(Succeed())
			f.Expect(f.record().Launch.For).To(Equal(tc.want))
		})
	}

	t.Run("When names are as long as they can be, a full record should have at most 8 KiB", func(t *testing.T) {
		f := newFixture(t)
		f.claim.Name = strings.Repeat("n", 253) // which no write needs
		for i := range 12 {
			f.Unavailable.Mark(offering.Key{InstanceType: fmt.Sprint(i, strings.Repeat("é", 200)), Zone: strings.Repeat("z", 200), CapacityType: "spot"}, strings.Repeat("r", 200))
			f.plan(fmt.Sprint(i, strings.Repeat("p", 200)), "", "")
		}
		f.Note(f.claim, "LaunchFailed", strings.Repeat("é\x1b", 2000))
		f.Expect(f.pass()).To(Succeed(), "the API server should accept it")
		records := &v1alpha1.NodeRecordList{}
		f.Expect(f.Admin.List(t.Context(), records)).To(Succeed())
		data, err := json.Marshal(records.Items[0])
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(len(data)).To(And(BeNumerically(">", 3000), BeNumerically("<=", 8192)))
		f.Expect(string(data)).To(And(ContainSubstring("10 more owners"), ContainSubstring(`"reason":"LaunchFailed"`)))
		f.Expect(records.Items[0].End.Because).NotTo(ContainSubstring("\x1b"))
	})
}

func TestEnd(t *testing.T) {
	t.Run("When Karpenter core has decided, it should record the decision, the cost and the drain, in one patch", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.say(karpv1.ConditionTypeRegistered, "Registered", f.start.Add(36*time.Second))
		f.claim.Status.NodeName = f.Namespace
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
		f.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
		t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), node) })
		f.plan("moves", "", "")
		f.Expect(f.Admin.SubResource("binding").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "moves"}},
			&corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}})).To(Succeed())
		f.decide("Underutilized", 0.06)
		f.delete()
		f.claim.Status.NodeName = f.Namespace
		f.say(karpv1.ConditionTypeDrained, "Drained", f.claim.DeletionTimestamp.Add(40*time.Second))
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.record().End).To(BeNil())
		before := testutil.ToFloat64(ends.WithLabelValues("Underutilized", "general"))
		record := f.terminate()
		f.Expect(f.pass()).To(Succeed())
		want := &v1alpha1.NodeEnd{
			Time: timeOf(f.start.Add(192 * time.Minute)), Lived: "3h12m", Cost: "$0.27", Reason: "Underutilized",
			Because:       "Underutilized: 2 nodes became 1, saves $0.120/h; 1 pod moved in 40s",
			LaunchedAfter: "4s", RegisteredAfter: "40s", Drain: "1 pod moved in 40s",
		}
		if diff := cmp.Diff(want, record.End); diff != "" {
			t.Error(diff)
		}
		f.Expect(string(record.Launch.Node)).To(Equal(f.Namespace))
		f.Expect(f.faults.Writes()).To(Equal(int64(2)))
		f.Expect(testutil.ToFloat64(ends.WithLabelValues("Underutilized", "general")) - before).To(Equal(1.0))
	})

	for name, tc := range map[string]struct {
		prepare func(*fixture)
		want    string
	}{
		"When no controller gave a reason, it should point to the audit log": {func(*fixture) {}, "Deleted: by a request; see the API server's audit log"},
		"When it has expired, it should say so": {
			func(f *fixture) { f.expireAfter = karpv1.MustParseNillableDuration("0s") }, "Expired: expireAfter 0s passed",
		},
		"When its release has gone, it should be an upgrade": {func(f *fixture) {
			f.say(karpv1.ConditionTypeDrifted, "VersionDrifted", f.start)
			f.decide("Drifted", 1)
		}, "Upgrade: VersionDrifted, 2 nodes became 1"},
		"When it has drifted otherwise, it should name the drift": {func(f *fixture) {
			f.say(karpv1.ConditionTypeDrifted, "TemplateDrifted", f.start)
			f.decide("Drifted", 1)
		}, "Drifted: TemplateDrifted, 2 nodes became 1"},
		"When its capacity is reclaimed, it should say so": {func(f *fixture) { f.decide("CapacityReclaimed", 1) }, "Reclaimed: 2 nodes became 1"},
		"When core is the one that deletes it without a command, it should say so": {func(f *fixture) {
			f.claim.Status.NodeName = "nowhere"
			f.Deleted(f.claim)
		}, "Interrupted: Karpenter found no machine, or no healthy node of it"},
		"When core deletes it for a deadline that has passed, it should repeat the event": {func(f *fixture) {
			f.claim.Status.NodeName = "nowhere"
			f.Note(f.claim, "LaunchFailed", "no registered node within 1m0s")
			f.Deleted(f.claim)
		}, "LaunchFailed: no registered node within 1m0s"},
		"When one of our controllers deletes it, it should repeat the event": {func(f *fixture) { f.Note(f.claim, "LaunchFailed", "no capacity for c4") }, "LaunchFailed: no capacity for c4"},
		"When a slow launch joined and was deleted later, it shouldn't count as failed": {func(f *fixture) {
			f.Note(f.claim, "LaunchFailed", "no provider ID yet")
			f.say(karpv1.ConditionTypeRegistered, "Registered", f.start)
		}, "Deleted: by a request; see the API server's audit log"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Expect(f.pass()).To(Succeed())
			tc.prepare(f)
			end := f.terminate().End
			f.Expect(end.Because).To(Equal(tc.want))
			f.Expect(tc.want).To(HavePrefix(end.Reason + ": "))
		})
	}

	t.Run("When a NodeClaim goes without its machine's deletion, it should end when it was seen to be gone, and be forgotten", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.claim.Finalizers = nil
		f.Expect(f.Admin.Update(t.Context(), f.claim)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), f.claim)).To(Succeed())
		f.clock.SetTime(f.start.Add(time.Minute))
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.record().End.Lived).To(Equal(v1alpha1.RecordText("60s")))
		f.Expect(f.written).To(BeEmpty())
		_, known := f.claims.Load(f.claim.UID)
		f.Expect(known).To(BeFalse())
	})
}

func TestHostileEdits(t *testing.T) {
	forged := func(r *v1alpha1.NodeRecord) *v1alpha1.NodeRecord {
		r.Launch.PricePerHour, r.End = "$9.000", &v1alpha1.NodeEnd{Reason: "Expired", Because: "forged", Cost: "$99.00", Time: timeOf(time.Unix(0, 0))}
		r.Labels = map[string]string{v1alpha1.RecordedDayLabel: "2000-01-01"}
		return r
	}
	t.Run("When an admin has edited a record, its end should come from the NodeClaim, and the living node's record stay", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.Admin.Update(t.Context(), forged(f.record()))).To(Succeed())
		f.sweepOnce()
		f.Expect(f.faults.Writes()).To(Equal(int64(1)))
		record := f.terminate()
		f.Expect(record.End.Because).To(HavePrefix("Deleted: "))
		f.Expect(string(record.End.Cost + " " + record.Launch.PricePerHour)).To(Equal("$0.27 $0.083"))
		f.Expect(record.Labels).To(HaveKeyWithValue(v1alpha1.RecordedDayLabel, day(f.clock.Now())))
	})

	t.Run("When an admin has deleted a record, the end should be written nevertheless", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), f.record())).To(Succeed())
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.terminate().End.Cost).To(Equal(v1alpha1.RecordText("$0.27")))
	})
}

func TestRestart(t *testing.T) {
	t.Run("When Karpenter restarts during a disruption, the end should have what the NodeClaim and the record say", func(t *testing.T) {
		f := newFixture(t)
		f.plan("bare", "", "")
		f.Expect(f.pass()).To(Succeed())
		f.decide("Empty", 1)
		f.say(karpv1.ConditionTypeDisruptionReason, "Empty", f.start)
		f.delete()
		f.clock.Step(time.Hour)
		f.restart()
		record := f.terminate()
		f.Expect(record.End.Because).To(Equal("Empty: details lost in a restart"))
		f.Expect(string(record.Launch.For)).To(Equal("1 pod, " + f.Namespace + "/bare"))
		f.Expect(f.faults.Writes()).To(Equal(int64(1)))
	})

	t.Run("When Karpenter restarts and the NodeClaim doesn't say why, it should be unknown", func(t *testing.T) {
		f := newFixture(t)
		f.delete()
		f.clock.Step(time.Hour)
		f.Expect(f.terminate().End.Because).To(Equal("Unknown: details lost in a restart"))
	})

	t.Run("When the end is written already, a restart should keep it", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.decide("Underutilized", 1)
		f.terminate()
		f.clock.Step(time.Hour)
		f.restart()
		f.Expect(f.pass()).To(Succeed())
		f.Expect(f.faults.Writes()).To(BeZero())
		f.Expect(f.record().End.Because).To(HavePrefix("Underutilized: "))
	})

	t.Run("When a node went while no Karpenter ran, the first sweep should close its record, and a later one none", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.pass()).To(Succeed())
		f.restart()
		left := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: "left-12345678", Labels: map[string]string{"kept": "yes"}}}
		f.Expect(f.Admin.Create(t.Context(), left)).To(Succeed())
		f.sweepOnce()
		f.Expect(f.record().End).To(BeNil())
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(left), left)).To(Succeed())
		f.Expect(left.End.Because).To(Equal("Unknown: Karpenter wasn't running then"))
		f.Expect(left.Labels).To(Equal(map[string]string{"kept": "yes", v1alpha1.RecordedDayLabel: day(f.clock.Now())}))
		later := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: "later-12345678"}}
		f.Expect(f.Admin.Create(t.Context(), later)).To(Succeed())
		f.clock.Step(time.Hour)
		f.sweepOnce()
		f.Expect(f.faults.Writes()).To(Equal(int64(1)))
	})
}

func TestRetention(t *testing.T) {
	f := newFixture(t)
	record := func(name string, age int) *v1alpha1.NodeRecord {
		r := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.RecordedDayLabel: day(f.clock.Now().AddDate(0, 0, -age))}}}
		r.End = &v1alpha1.NodeEnd{Reason: "Empty", Time: timeOf(f.clock.Now())}
		f.Expect(f.Admin.Create(t.Context(), r)).To(Succeed())
		return r
	}
	gone := func(r *v1alpha1.NodeRecord) bool {
		err := f.Admin.Get(t.Context(), client.ObjectKeyFromObject(r), r)
		f.Expect(client.IgnoreNotFound(err)).To(Succeed())
		return apierrors.IsNotFound(err)
	}
	f.Expect(f.pass()).To(Succeed())
	alive := f.record()
	alive.Labels[v1alpha1.RecordedDayLabel] = day(f.clock.Now().AddDate(0, 0, -30))
	f.Expect(f.Admin.Update(t.Context(), alive)).To(Succeed())
	f.Days, f.Limit = 3, 20
	last, old := record("last", 3), record("old", 4)
	t.Run("When records are older than the platform's days, it should delete them, but none of a node that exists", func(t *testing.T) {
		f.sweepOnce()
		f.Expect(gone(old)).To(BeTrue())
		f.Expect(gone(last)).To(BeFalse())
		f.record()
	})
	t.Run("When there are more than the platform's limit, it should delete the oldest", func(t *testing.T) {
		for i := range 20 {
			record(fmt.Sprintf("new-%d", i), 1)
		}
		f.sweepOnce()
		f.Expect(gone(last)).To(BeTrue())
		records := &v1alpha1.NodeRecordList{}
		f.Expect(f.Admin.List(t.Context(), records)).To(Succeed())
		f.Expect(records.Items).To(HaveLen(21))
		f.record()
	})
}

// TestLeader runs the controller in a manager, as Karpenter does.
func TestLeader(t *testing.T) {
	f := newFixture(t)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "karpenter"}}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("another"), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro())}
	f.Expect(f.Admin.Create(t.Context(), lease)).To(Succeed())
	m := f.Manager(func(o *manager.Options) {
		o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace, o.RetryPeriod = true, lease.Name, f.Namespace, new(100*time.Millisecond)
	})
	f.Config.Guest = m.GetClient()
	f.Expect(f.Register(t.Context(), m)).To(Succeed())
	f.Run(t.Context(), m)
	t.Run("When another process is the leader, it should write nothing", func(t *testing.T) {
		f.Consistently(func() []v1alpha1.NodeRecord {
			records := &v1alpha1.NodeRecordList{}
			f.Expect(f.Admin.List(t.Context(), records)).To(Succeed())
			return records.Items
		}, "500ms").Should(BeEmpty())
	})
	t.Run("When it becomes the leader, it should record the launch and the end of a NodeClaim", func(t *testing.T) {
		f.Expect(f.Admin.Delete(t.Context(), lease)).To(Succeed())
		record := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeRecordName(f.claim)}}
		f.Eventually(func() error { return f.Admin.Get(t.Context(), client.ObjectKeyFromObject(record), record) }).Should(Succeed())
		f.claim.Finalizers = nil
		f.Expect(f.Admin.Update(t.Context(), f.claim)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), f.claim)).To(Succeed())
		f.Eventually(func() *v1alpha1.NodeEnd { return f.record().End }).Should(HaveField("Reason", "Deleted"))
	})
}
