// SPDX-License-Identifier: Apache-2.0

package sleep_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/sleep"
)

// weeknights are the nightly schedule with a policy for nodes that don't drain within ten minutes.
func weeknights(onTimeout v1beta1.DrainTimeoutPolicy) *v1beta1.Sleep {
	return &v1beta1.Sleep{
		Schedules: []v1beta1.SleepSchedule{nightly}, NodeDrain: &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: 10 * time.Minute}, OnTimeout: onTimeout},
	}
}

func TestWeek(t *testing.T) {
	zurich, err := time.LoadLocation("Europe/Zurich")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	const saves = ", which saves $0.300 an hour"
	want := []string{
		"Mon 12:00: awake",
		"Mon 20:00: asleep until Tue 24 Nov 07:00 CET" + saves, "Tue 07:00: awake",
		"Tue 20:00: asleep until Wed 25 Nov 07:00 CET" + saves, "Wed 07:00: awake",
		"Wed 20:00: asleep until Thu 26 Nov 07:00 CET" + saves, "Thu 07:00: awake",
		"Thu 20:00: asleep until Fri 27 Nov 07:00 CET" + saves, "Fri 07:00: awake",
		"Fri 20:00: asleep until Mon 30 Nov 07:00 CET" + saves, "Mon 07:00: awake",
	}
	for name, restarts := range map[string]bool{"goes on": false, "restarts all the time": true} {
		t.Run("When a week passes and the operator "+name+", it should be asleep at night", func(t *testing.T) {
			f := newFixture(t, weeknights(v1beta1.DrainTimeoutForce))
			f.machine("workers-1", map[string]string{clusterv1.MachineDeploymentNameLabel: "workers"}, 0.9)
			var log []string
			for end := monday.AddDate(0, 0, 7); f.clock.Now().Before(end); {
				if restarts {
					f.restart()
				}
				if _, machines := f.nodes(); !f.Sleep.Wanted() && len(machines) == 1 {
					f.launch("a", 0.1)
					f.launch("b", 0.2)
				}
				after, is := f.settle(), "awake"
				nodes, machines := f.nodes()
				if f.Sleep.Wanted() {
					is = f.Sleep.Message
					f.Expect(f.Sleep.Asleep).To(BeTrue())
					f.Expect(nodes).To(BeEmpty())
					f.Expect(machines).To(Equal([]string{"workers-1"}), "Karpenter didn't make it")
					f.Expect(f.status().Since.At()).To(BeTemporally("<=", f.clock.Now()))
					f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(Equal(asleepUntil(f.Sleep.Until)))
				} else {
					f.Expect(f.status()).To(BeNil())
					f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(BeEmpty())
				}
				log = append(log, f.clock.Now().In(zurich).Format("Mon 15:04: ")+is)
				f.Expect(after).To(BeNumerically(">", 0))
				f.pass(after)
			}
			if diff := cmp.Diff(want, log); diff != "" {
				t.Errorf("the week (-want +got):\n%s", diff)
			}
		})
	}
}

// evening has the cluster fall asleep with nodes a and b, of which the latter doesn't drain.
func evening(t *testing.T, onTimeout v1beta1.DrainTimeoutPolicy) *fixture {
	t.Helper()
	f := newFixture(t, weeknights(onTimeout))
	f.launch("a", 0.1)
	f.launch("b", 0.2)
	f.create(f.guest, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cart", Labels: map[string]string{"app": "cart"}}, Spec: corev1.PodSpec{NodeName: "b"}})
	f.create(f.guest, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cart"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}},
	}})
	f.stuck["b"] = true
	f.settle()
	f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
	f.pass(8 * time.Hour)
	return f
}

// claim is NodeClaim b.
func (f *fixture) claim() *karpv1.NodeClaim {
	f.t.Helper()
	return scopetest.Get(f.t.Context(), f.WithT, f.guest, "", "b", &karpv1.NodeClaim{})
}

func (f *fixture) forced() bool {
	f.t.Helper()
	return metav1.HasAnnotation(f.claim().ObjectMeta, karpv1.NodeClaimTerminationTimestampAnnotationKey)
}

func TestForce(t *testing.T) {
	f := evening(t, v1beta1.DrainTimeoutForce)
	const falling = "falling asleep until Tue 24 Nov 07:00 CET; "
	t.Run("When its time comes, it should drain, and report what blocks", func(t *testing.T) {
		f.in(t)
		after := f.settle()
		f.Expect(f.Sleep).To(Equal(scope.Sleep{Until: "2026-11-24T07:00:00+01:00",
			Message: falling + "1 of 2 nodes is left to drain; NodeClaim b waits for PodDisruptionBudget default/cart (0 disruptions allowed); forced at 19:10 UTC"}))
		f.Expect(*f.status()).To(And(HaveField("Since", BeNil()), HaveField("SavedPerHour", "$0.300")))
		f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(Equal(asleepUntil("2026-11-24T07:00:00+01:00")))
		f.Expect(f.forced()).To(BeFalse())
		f.Expect(after).To(BeNumerically("<=", 30*time.Second))
	})
	t.Run("When nodes may still drain, it should force nothing", func(t *testing.T) {
		f.in(t)
		f.pass(10*time.Minute - time.Second)
		f.Expect(f.settle()).To(Equal(time.Second))
		f.Expect(f.forced()).To(BeFalse())
	})
	t.Run("When the time to drain is over, it should have Karpenter terminate the pods", func(t *testing.T) {
		f.in(t)
		f.pass(time.Second)
		f.settle()
		f.Expect(f.forced()).To(BeTrue())
		f.Expect(f.Sleep.Message).To(Equal(falling + "1 of 2 nodes is left to drain; NodeClaim b waits for PodDisruptionBudget default/cart (0 disruptions allowed); " +
			"pods are terminated by force, and what is left is given up at 19:15 UTC"))
		f.Expect(<-f.events.Events).To(ContainSubstring(v1beta1.DrainForcedReason))
	})
	t.Run("When Karpenter doesn't remove nodes by force either, it should delete their Machines, record them, and wait for Karpenter", func(t *testing.T) {
		f.in(t)
		f.pass(5 * time.Minute)
		f.settle()
		_, machines := f.nodes()
		f.Expect(machines).To(BeEmpty())
		f.Expect(f.claim().DeletionTimestamp).NotTo(BeNil())
		f.Expect(f.Sleep).To(And(HaveField("Asleep", BeFalse()), HaveField("Message", HaveSuffix("; its Machines are deleted through the management cluster"))))
		record := scopetest.Get(f.t.Context(), f.WithT, f.management, f.ControlPlaneNamespace, f.Names().Abandoned, &corev1.ConfigMap{})
		f.Expect(record.Data).To(And(HaveKeyWithValue("machines", HavePrefix("b nodeClaim=b")),
			HaveKeyWithValue("reason", "Karpenter didn't remove its nodes before the cluster had to be asleep")))
	})
	t.Run("When the last NodeClaim has gone, it should be asleep, and save what all nodes cost", func(t *testing.T) {
		f.in(t)
		f.stuck = nil
		f.Expect(f.settle()).To(Equal(monday.Add(19 * time.Hour).Sub(f.clock.Now())))
		f.Expect(f.Sleep).To(Equal(scope.Sleep{
			Until: "2026-11-24T07:00:00+01:00", Asleep: true, Message: "asleep until Tue 24 Nov 07:00 CET, which saves $0.300 an hour",
		}))
		f.Expect(f.status().Since.At()).To(BeTemporally("==", f.clock.Now()))
	})
}

func TestStop(t *testing.T) {
	f := evening(t, v1beta1.DrainTimeoutStop)
	t.Run("When the time to drain is over, it should stay awake for what is left, force nothing, and report what blocks", func(t *testing.T) {
		f.in(t)
		f.settle()
		f.Expect(f.Sleep.Message).To(HaveSuffix("to be done by 19:10 UTC; nothing is forced"))
		for range 5 {
			f.pass(2 * time.Hour)
			f.settle()
			_, machines := f.nodes()
			f.Expect(machines).To(Equal([]string{"b"}))
			f.Expect(f.forced()).To(BeFalse())
			f.Expect(f.Sleep).To(And(HaveField("Asleep", BeFalse()), HaveField("Message", And(
				HavePrefix("falling asleep until Tue 24 Nov 07:00 CET; 1 of 2 nodes is left to drain; NodeClaim b waits for PodDisruptionBudget default/cart (0 disruptions allowed); "),
				HaveSuffix("19:10 UTC, and spec.autoNode.sleep.nodeDrain.onTimeout is Stop: remove what holds it, raise spec.autoNode.sleep.nodeDrain.timeout, or set onTimeout to Force")))))
		}
	})
	t.Run("When its end comes before that, it should be awake", func(t *testing.T) {
		f.in(t)
		f.pass(time.Hour)
		f.Expect(f.settle()).To(Equal(13 * time.Hour))
		f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
		f.Expect(f.status()).To(BeNil())
		f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(BeEmpty())
	})
	t.Run("When it falls asleep again, nodes should have their whole time to drain", func(t *testing.T) {
		f.in(t)
		f.pass(13 * time.Hour)
		f.settle()
		f.Expect(f.Sleep.Message).To(HaveSuffix("to be done by 19:10 UTC; nothing is forced"))
	})
	t.Run("When the pod is gone, it should be asleep", func(t *testing.T) {
		f.in(t)
		f.stuck = nil
		f.settle()
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		f.Expect(f.status().SavedPerHour).To(Equal("$0.200"))
	})
}

func TestEdges(t *testing.T) {
	lacksComponent := func(f *fixture) { f.Component = nil }
	incomplete := func(f *fixture) { f.Guest.Complete = false }
	for name, without := range map[string]func(*fixture){"its guest is unreachable": (*fixture).unreachable, "its guest isn't watched yet": incomplete, "it has no component": lacksComponent} {
		t.Run("When "+name+" at an edge, it should stay as it is until that is over", func(t *testing.T) {
			f := newFixture(t, weeknights(v1beta1.DrainTimeoutForce))
			component := f.Component
			f.launch("a", 0.1)
			f.settle()
			f.pass(8 * time.Hour)
			without(f)
			f.Expect(f.settle()).To(Equal(time.Duration(0)), "the guest's return triggers it")
			f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
			f.Expect(f.status()).To(BeNil())
			nodes, _ := f.nodes()
			f.Expect(nodes).To(HaveLen(1))

			f.pass(2 * time.Hour)
			f.reachable()
			f.Component = component
			f.Expect(f.settle()).To(Equal(9 * time.Hour))
			f.Expect(f.Sleep.Asleep).To(BeTrue())

			f.pass(9 * time.Hour)
			without(f)
			f.settle()
			f.Expect(f.Sleep).To(And(HaveField("Asleep", BeTrue()), HaveField("Message", HavePrefix("asleep until "))))
			f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(Equal(asleepUntil("2026-11-24T07:00:00+01:00")))

			f.pass(time.Hour)
			f.reachable()
			f.Component = component
			f.Expect(f.settle()).To(Equal(12 * time.Hour))
			f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
			f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(BeEmpty())
		})
	}
	t.Run("When the operator is away at an edge, it should do what is due once it is back", func(t *testing.T) {
		f := newFixture(t, weeknights(v1beta1.DrainTimeoutForce))
		f.launch("a", 0.1)
		f.settle()
		f.pass(11 * time.Hour)
		f.restart()
		f.Expect(f.settle()).To(Equal(8 * time.Hour))
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		f.pass(10 * time.Hour)
		f.restart()
		f.Expect(f.settle()).To(Equal(11 * time.Hour))
		f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
		f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(BeEmpty())
	})
	t.Run("When it is asleep and its guest is unreachable, it should stay asleep, also with another operator", func(t *testing.T) {
		f := asleep(t)
		f.unreachable()
		f.restart()
		f.settle()
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		f.Expect(f.status().Since).NotTo(BeNil())
	})
}

// asleep is a cluster that is suspended.
func asleep(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, &v1beta1.Sleep{Suspend: true})
	f.settle()
	f.Expect(f.Sleep).To(Equal(scope.Sleep{Until: "someone wakes it", Asleep: true, Message: "asleep until someone wakes it"}))
	f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(Equal(asleepUntil("someone wakes it")))
	return f
}

func TestWhileAsleep(t *testing.T) {
	t.Run("When a NodeClaim appears, Karpenter should run until it is gone", func(t *testing.T) {
		f := asleep(t)
		f.pass(time.Hour)
		f.launch("a", 0.1)
		f.reconcile()
		f.Expect(f.Sleep).To(Equal(scope.Sleep{Until: "someone wakes it", Message: "falling asleep until someone wakes it; 1 node is left to drain; forced at 12:30 UTC"}))
		f.Expect(f.status().Since).To(BeNil())
		f.settle()
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		f.Expect(f.status().Since.At()).To(BeTemporally("==", f.clock.Now()))
		f.Expect(f.guest.Get(t.Context(), client.ObjectKey{Name: "a"}, &karpv1.NodeClaim{})).NotTo(Succeed())
	})
	t.Run("When a Machine of Karpenter's is left without a NodeClaim, it should be deleted", func(t *testing.T) {
		f := asleep(t)
		f.machine("a", map[string]string{v1alpha1.NodeClaimUIDLabel: "uid-a", v1alpha1.NodeClaimLabel: "a"}, 0.1)
		f.reconcile()
		f.Expect(f.Sleep).To(And(HaveField("Asleep", BeFalse()), HaveField("Message", HaveSuffix("1 Machine is to be deleted by Cluster API: a"))))
		f.settle()
		_, machines := f.nodes()
		f.Expect(machines).To(BeEmpty())
		f.Expect(f.Sleep.Asleep).To(BeTrue())
	})
	t.Run("When a NodeClaim of another Karpenter appears, it should leave that alone", func(t *testing.T) {
		f := asleep(t)
		claim := scopetest.NodeClaim("other")
		claim.Spec.NodeClassRef.Group = "karpenter.k8s.aws"
		f.create(f.guest, claim)
		f.settle()
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		f.Expect(f.guest.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)).To(Succeed())
	})
	t.Run("When a node class is deleted, it should go without Karpenter, and another one be marked", func(t *testing.T) {
		f := asleep(t)
		class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass}}
		f.Expect(f.guest.Delete(t.Context(), class)).To(Succeed())
		f.create(f.guest, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
		f.settle()
		f.Expect(f.guest.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(MatchError(ContainSubstring("not found")))
		f.Expect(f.marks("mine")).To(Equal(asleepUntil("someone wakes it")))
	})
	t.Run("When the Node of a removed Machine is deleted, it should go without Karpenter, and no other should", func(t *testing.T) {
		f := asleep(t)
		for _, name := range []string{"removed", "stays"} {
			f.node(name, "general")
		}
		f.Expect(f.guest.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "removed"}})).To(Succeed())
		f.settle()
		nodes, _ := f.nodes()
		f.Expect(nodes).To(Equal([]string{"stays"}))
		f.Expect(f.Sleep.Asleep).To(BeTrue())
	})
	t.Run("When the guest takes long to answer, it should go on the next time", func(t *testing.T) {
		f := asleep(t)
		for i := range 5 {
			name := fmt.Sprintf("removed-%d", i)
			f.node(name, "general")
			f.Expect(f.guest.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
		}
		f.Guest.Live = interceptor.NewClient(f.guest, interceptor.Funcs{Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
		) error {
			f.pass(10 * time.Second)
			return c.Get(ctx, key, object, options...)
		}})
		for _, want := range []int{3, 1, 0} {
			f.reconcile()
			nodes, _ := f.nodes()
			f.Expect(nodes).To(HaveLen(want))
		}
	})
	t.Run("When the spec doesn't suspend it any more, it should be awake", func(t *testing.T) {
		f := asleep(t)
		f.HostedCluster.Spec.AutoNode.Sleep = nil
		f.settle()
		f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
		f.Expect(f.marks(v1alpha1.DefaultNodeClass)).To(BeEmpty())
		f.Expect(f.status()).To(BeNil())
	})
	t.Run("When a spec can't be followed, it should stay as it is", func(t *testing.T) {
		f := asleep(t)
		f.HostedCluster.Spec.AutoNode.Sleep.Schedules = []v1beta1.SleepSchedule{{Start: "nonsense", End: "0 7 * * *"}}
		f.settle()
		f.Expect(f.Sleep.Asleep).To(BeTrue())
		awake := newFixture(t, f.HostedCluster.Spec.AutoNode.Sleep)
		awake.settle()
		awake.Expect(awake.Sleep).To(Equal(scope.Sleep{}))
	})
}

// validate returns the error of what the HostedCluster says about sleep.
func (f *fixture) validate() error {
	_, _, err := sleep.Decide(f.HostedCluster, f.Profile, f.clock.Now())
	return err
}

func TestAnnotations(t *testing.T) {
	const past, evening, night = "2026-11-23T10:00:00Z", "2026-11-23T18:00:00+01:00", "2026-11-24T03:00:00Z"
	for _, test := range []struct {
		name        string
		sleep, wake string
		spec        *v1beta1.Sleep
		at          time.Duration // since Monday noon
		asleep      bool
		until       string
		after       time.Duration
	}{
		{name: "When it has neither, it should follow the spec", spec: weeknights(""), after: 8 * time.Hour},
		{name: "When it has neither and no spec, it should be awake for good"},
		{name: "When it is to sleep until a time, it should, although its schedules say otherwise", sleep: evening, spec: weeknights(""), asleep: true, until: evening, after: 5*time.Hour + time.Hour},
		{name: "When it is to sleep until a time and has no spec, it should", sleep: night, asleep: true, until: night, after: 16 * time.Hour},
		{name: "When the time to sleep is over, it should be awake", sleep: past},
		{name: "When the time to sleep is just over, it should be awake", sleep: evening, at: 6 * time.Hour},
		{name: "When it is to be awake until a time, it should, although its schedules say otherwise", wake: night, spec: weeknights(""), at: 9 * time.Hour, after: 7 * time.Hour},
		{name: "When it is to be awake until a time, it should, although its spec suspends it", wake: night, spec: &v1beta1.Sleep{Suspend: true}, after: 16 * time.Hour},
		{name: "When both are in the future, it should be awake", wake: night, sleep: night, after: 16 * time.Hour},
		{name: "When the time to be awake is over and the one to sleep isn't, it should be asleep", wake: past, sleep: night, asleep: true, until: night, after: 16 * time.Hour},
		{name: "When both are over, it should follow the spec", wake: past, sleep: past, spec: &v1beta1.Sleep{Suspend: true}, asleep: true, until: "someone wakes it"},
		{name: "When it is suspended, it should be asleep whatever its schedules say", spec: &v1beta1.Sleep{Suspend: true, Schedules: []v1beta1.SleepSchedule{nightly}}, asleep: true, until: "someone wakes it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, test.spec)
			f.HostedCluster.Annotations = map[string]string{v1beta1.SleepUntilAnnotation: test.sleep, v1beta1.WakeUntilAnnotation: test.wake}
			f.Expect(f.validate()).To(Succeed())
			f.pass(test.at)
			f.Expect(f.settle()).To(Equal(test.after))
			f.Expect(f.Sleep).To(And(HaveField("Asleep", test.asleep), HaveField("Until", test.until)))
		})
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name, annotation, value string
		schedule                v1beta1.SleepSchedule
		want                    string
	}{
		{
			name: "When an annotation is no time, it should name it", annotation: v1beta1.SleepUntilAnnotation, value: "tomorrow", schedule: nightly,
			want: "annotation autonode.io/sleep-until: tomorrow isn't a time such as 2026-12-01T06:00:00Z",
		}, {
			name: "When an annotation has no zone, it should name it", annotation: v1beta1.WakeUntilAnnotation, value: "2026-12-01T06:00:00", schedule: nightly,
			want: "annotation autonode.io/wake-until: 2026-12-01T06:00:00 isn't a time such as 2026-12-01T06:00:00Z",
		}, {
			name: "When an annotation is hostile, it should quote it", annotation: v1beta1.WakeUntilAnnotation, value: "\x1b[2J\n", schedule: nightly,
			want: `annotation autonode.io/wake-until: "\x1b[2J\n" isn't a time such as 2026-12-01T06:00:00Z`,
		}, {
			name: "When a schedule is none, it should name it", schedule: v1beta1.SleepSchedule{Start: "0 20 * * *", End: "0 20 * * *"},
			want: `spec.autoNode.sleep.schedules[0].end: "0 20 * * *" is the time of start`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, &v1beta1.Sleep{Schedules: []v1beta1.SleepSchedule{test.schedule}})
			f.HostedCluster.Annotations = map[string]string{test.annotation: test.value}
			f.Expect(f.validate()).To(MatchError(test.want))
			f.settle()
			f.Expect(f.Sleep).To(Equal(scope.Sleep{}), "it stays awake")
		})
	}
}

func TestPlatform(t *testing.T) {
	t.Run("When nothing keeps a platform's Karpenter from launching, it should stay awake, whatever the spec says", func(t *testing.T) {
		f := newFixture(t, &v1beta1.Sleep{Suspend: true})
		f.HostedCluster.Annotations = map[string]string{v1beta1.SleepUntilAnnotation: "2099-01-01T00:00:00Z"}
		f.Profile = aws.New()
		f.Expect(f.settle()).To(Equal(time.Duration(0)))
		f.Expect(f.Sleep).To(Equal(scope.Sleep{}))
		f.Expect(f.status()).To(BeNil())
	})
}
