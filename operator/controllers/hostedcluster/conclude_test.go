// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestOwnStatus(t *testing.T) {
	t.Run("When the status has a field, it should be written by the operator or by the shard", func(t *testing.T) {
		written := append([]string{"conditions", "operator"}, statusFields.Names...)
		status := reflect.TypeFor[v1beta1.HostedClusterStatus]()
		if status.NumField() != len(written) {
			t.Errorf("%d fields, of which %d are written", status.NumField(), len(written))
		}
		for i := range status.NumField() {
			if name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ","); !slices.Contains(written, name) {
				t.Errorf("no code writes %s", name)
			}
		}
	})
}

// conflict is the answer to a write that came too late.
var conflict = apierrors.NewConflict(schema.GroupResource{Resource: "hostedclusters"}, "blue", errors.New("modified"))

// componentSays gives Karpenter's component a condition.
func componentSays(conditionType string, status metav1.ConditionStatus, message string) func(*scope.Scope) {
	return func(s *scope.Scope) {
		meta.SetStatusCondition(&s.Component.Status.Conditions, metav1.Condition{Type: conditionType, Status: status, Reason: "Reason", Message: message})
	}
}

// hostedSays gives the HostedCluster a condition.
func hostedSays(conditionType string, status metav1.ConditionStatus, reason, message string) func(*scope.Scope) {
	return func(s *scope.Scope) { setCondition(s.HostedCluster, conditionType, status, reason, message) }
}

func runsOlder(s *scope.Scope) { s.Component.Status.Version = "1.36.2" }

func neverRolledOut(s *scope.Scope) { s.Component.Status = v1beta1.ControlPlaneComponentStatus{} }

// conclusion is what became of a reconciliation, and what the status is to say.
type conclusion struct {
	name    string
	outcome outcome
	change  []func(*scope.Scope)
	// want is status/reason of AutoNodeEnabled, then the state, then the message in the list. ready is Ready's, if it differs.
	want, message string
	state         v1beta1.AutoNodeState
	// detail is what the condition's message has to hold beside it.
	detail string
	ready  string
}

// concludeAll concludes each in a subtest. It uses kstatus too, the library by which Flux and others decide whether an object is as its spec
// reports.
func concludeAll(t *testing.T, tests []conclusion) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
			s := running("1.36.3")
			for _, change := range test.change {
				change(s)
			}
			o := test.outcome
			r.conclude(s, &o)
			got, status := "", s.HostedCluster.Status
			if c := meta.FindStatusCondition(status.Conditions, v1beta1.AutoNodeEnabled); c != nil {
				got = string(c.Status) + "/" + c.Reason
				if !strings.Contains(c.Message, test.message) || !strings.Contains(c.Message, test.detail) || c.Message == "" {
					t.Errorf("the condition's message is %q, want %q and %q", c.Message, test.message, test.detail)
				}
			}
			if got != test.want || status.AutoNode.State != test.state || status.AutoNode.Message != test.message {
				t.Errorf("got %s, %q, %q; want %s, %q, %q", got, status.AutoNode.State, status.AutoNode.Message, test.want, test.state, test.message)
			}
			if test.want != "" {
				expectReady(t, s.HostedCluster, cmp.Or(test.ready, test.want))
			}
		})
	}
}

// expectReady checks Ready's status/reason, and what follows from it.
func expectReady(t *testing.T, hostedCluster *v1beta1.HostedCluster, want string) {
	t.Helper()
	g := NewWithT(t)
	computed := func() kstatus.Status {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(hostedCluster)
		g.Expect(err).NotTo(HaveOccurred())
		result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
		g.Expect(err).NotTo(HaveOccurred())
		return result.Status
	}
	ready := meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.Ready)
	g.Expect(ready).NotTo(BeNil())
	g.Expect(string(ready.Status) + "/" + ready.Reason).To(Equal(want))
	if ready.Status == metav1.ConditionTrue {
		g.Expect(computed()).To(Equal(kstatus.CurrentStatus))
	} else {
		g.Expect(computed()).To(Equal(kstatus.InProgressStatus))
	}
	hostedCluster.Generation++
	g.Expect(computed()).To(Equal(kstatus.InProgressStatus), "a spec that the operator hasn't seen yet")
}

func TestConcludeRollout(t *testing.T) {
	concludeAll(t, []conclusion{
		{
			name: "When all is well, it should have nothing to say",
			want: "True/AsExpected", state: v1beta1.AutoNodeStateEnabled,
		}, {
			name: "When another image runs than the payload's, it should be enabled and say so in the condition",
			change: []func(*scope.Scope){func(s *scope.Scope) {
				s.Component.Status.ImageOverride = "registry.example/case-4711@sha256:b"
			}},
			want: "True/AsExpected", state: v1beta1.AutoNodeStateEnabled,
			detail: "Karpenter of release 1.36.3 runs, but its image is registry.example/case-4711@sha256:b, by annotation autonode.io/override-image",
		}, {
			name:   "When Karpenter was never rolled out, it should be Progressing",
			change: []func(*scope.Scope){neverRolledOut},
			want:   "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing, message: "Karpenter of release 1.36.3 is being installed",
		}, {
			name:   "When another payload is rolled out, it should be Upgrading, from what to what",
			change: []func(*scope.Scope){componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"), runsOlder},
			want:   "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading,
			message: "Karpenter is being upgraded from release 1.36.2 to 1.36.3: 1 of 2 replicas are updated",
		}, {
			name: "When another build of the same version is rolled out, it should be Upgrading too",
			change: []func(*scope.Scope){
				componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"),
				func(s *scope.Scope) { s.Component.Status.ReleaseImage = "registry.example/release@sha256:other" },
			},
			want: "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading,
			message: "Karpenter is being upgraded to another build of release 1.36.3: 1 of 2 replicas are updated",
		}, {
			name:    "When the guest takes its time while another payload is rolled out, it should still be Upgrading",
			outcome: outcome{blocked: true, message: "connecting to blue"},
			change:  []func(*scope.Scope){componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"), runsOlder},
			want:    "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading, message: "connecting to blue",
		}, {
			name:   "When Karpenter starts again with the same payload, as after a pause, it should not be Upgrading",
			change: []func(*scope.Scope){componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "0 of 2 replicas are updated")},
			want:   "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing,
			message: "Karpenter of release 1.36.3 is being rolled out again: 0 of 2 replicas are updated",
		}, {
			name:   "When Karpenter crashes after its rollout, it should be degraded",
			change: []func(*scope.Scope){componentSays(v1beta1.Available, metav1.ConditionFalse, "none of 2 replicas is available")},
			want:   "False/AutoNodeDegraded", state: v1beta1.AutoNodeStateDegraded,
			message: "Karpenter of release 1.36.3 isn't available: none of 2 replicas is available",
		}, {
			name:   "When nodes are outdated, it should be Upgrading while Karpenter is as expected",
			change: []func(*scope.Scope){hostedSays(v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "5 of 8 nodes still run 1.36.2")},
			want:   "True/AsExpected", state: v1beta1.AutoNodeStateUpgrading, message: "5 of 8 nodes still run 1.36.2",
		}, {
			name:   "When the default node class isn't ready, it should be Waiting with its message, and not be ready for its reason",
			change: []func(*scope.Scope){hostedSays(v1beta1.NodeClassReady, metav1.ConditionFalse, "NoTemplates", "node class default isn't ready: nothing matches pool=general")},
			want:   "True/AsExpected", ready: "False/NoTemplates", state: v1beta1.AutoNodeStateWaiting, message: "node class default isn't ready: nothing matches pool=general",
		}, {
			name:   "When the default node class selects nothing at all, as where admins write their own, it should say so and stay ready",
			change: []func(*scope.Scope){hostedSays(v1beta1.NodeClassReady, metav1.ConditionFalse, "NoSelector", "node class default isn't ready: it has no selector")},
			want:   "True/AsExpected", state: v1beta1.AutoNodeStateEnabled, message: "node class default isn't ready: it has no selector",
		}, {
			name:   "When Karpenter hasn't reported on the default node class yet, it should be Progressing and not be ready yet",
			change: []func(*scope.Scope){hostedSays(v1beta1.NodeClassReady, metav1.ConditionUnknown, v1beta1.NodeClassPendingReason, "waiting for Karpenter")},
			want:   "True/AsExpected", ready: "Unknown/NodeClassPending", state: v1beta1.AutoNodeStateProgressing, message: "waiting for Karpenter",
		}, {
			name: "When nothing can be launched, it should say so and stay ready",
			change: []func(*scope.Scope){func(s *scope.Scope) {
				setCondition(s.HostedCluster, v1beta1.NodeClassReady, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
				setCondition(s.HostedCluster, v1beta1.OfferingsAvailable, metav1.ConditionFalse, "NoCapacity", "node class default: 2 offerings are in back-off; 12 pods wait")
			}},
			want: "True/AsExpected", state: v1beta1.AutoNodeStateEnabled, message: "node class default: 2 offerings are in back-off; 12 pods wait",
		},
	})
}

func TestConcludeInputs(t *testing.T) {
	concludeAll(t, []conclusion{
		{
			name:    "When an input is missing before the first rollout, it should be Waiting",
			outcome: outcome{blocked: true, message: "no such image"},
			change:  []func(*scope.Scope){neverRolledOut, hostedSays(v1beta1.ReleaseResolved, metav1.ConditionFalse, v1beta1.ImageNotFoundReason, "")},
			want:    "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When an input takes its time before the first rollout, it should be Progressing",
			outcome: outcome{blocked: true, message: "connecting to blue"},
			change:  []func(*scope.Scope){neverRolledOut, hostedSays(v1beta1.GuestReachable, metav1.ConditionUnknown, v1beta1.GuestConnectingReason, "")},
			want:    "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing, message: "connecting to blue",
		}, {
			name:    "When an input is missing later, it should not call off what runs",
			outcome: outcome{blocked: true, message: "no such image"},
			want:    "True/AsExpected", ready: "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When an input is wrong but the steps ran without it, it should say so",
			outcome: outcome{message: "no such image"},
			want:    "True/AsExpected", ready: "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When an input is missing and the node class isn't ready either, it should name the input",
			outcome: outcome{blocked: true, message: "no such image"},
			change:  []func(*scope.Scope){hostedSays(v1beta1.NodeClassReady, metav1.ConditionFalse, "NoTemplates", "nothing matches")},
			want:    "True/AsExpected", ready: "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When the spec can't be followed while Karpenter runs, it should not call off what runs",
			outcome: outcome{state: waiting, blocked: true, message: "there is no Cluster"},
			want:    "True/AsExpected", ready: "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "there is no Cluster",
		}, {
			name:    "When a step fails, it should be Unknown with the error",
			outcome: outcome{blocked: true, errs: []error{errors.New("crd: boom")}},
			want:    "Unknown/AutoNodeEvaluationFailed", state: v1beta1.AutoNodeStateWaiting, message: "crd: boom",
		}, {
			name:    "When a write only came too late, it should leave what it said before",
			outcome: outcome{blocked: true, errs: []error{conflict}},
			want:    "",
		},
	})

	t.Run("When a step fails, it should keep what it said before until the error lasts, and report a later one again", func(t *testing.T) {
		clock := clocktesting.NewFakePassiveClock(noon)
		r := &Reconciler{clock: clock}
		s := running("1.36.3")
		said := func(errs ...error) string {
			r.conclude(s, &outcome{blocked: len(errs) > 0, errs: errs})
			c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled)
			return string(c.Status) + "/" + c.Reason + " " + string(s.HostedCluster.Status.AutoNode.State)
		}
		boom := errors.New("crd: boom")
		const fine, failed = "True/AsExpected Enabled", "Unknown/AutoNodeEvaluationFailed Waiting"
		for i, step := range []struct {
			after time.Duration
			err   error
			want  string
		}{
			{0, nil, fine},
			{0, boom, fine},
			{time.Second, boom, fine}, // tries come fast at first
			{time.Second, nil, fine},
			{time.Hour, boom, fine}, // the one before has nothing to do with it
			{hiccup, conflict, fine},
			{0, boom, failed},
			{time.Second, nil, fine},
		} {
			clock.SetTime(clock.Now().Add(step.after))
			var errs []error
			if step.err != nil {
				errs = append(errs, step.err)
			}
			if got := said(errs...); got != step.want {
				t.Errorf("step %d: got %s, want %s", i, got, step.want)
			}
		}
	})
}

func TestConcludeStates(t *testing.T) {
	concludeAll(t, []conclusion{
		{
			name:    "When it is paused, Karpenter doesn't run, and it should say until when",
			outcome: outcome{state: paused, message: "paused by spec.pausedUntil; Karpenter is scaled to zero"},
			want:    "False/Paused", state: v1beta1.AutoNodeStatePaused, message: "paused by spec.pausedUntil; Karpenter is scaled to zero",
		}, {
			name:    "When the pause fails to hold, it should be paused all the same, with the error",
			outcome: outcome{state: paused, message: "paused; but Karpenter may still run: boom", errs: []error{errors.New("component: boom")}},
			want:    "False/Paused", state: v1beta1.AutoNodeStatePaused, message: "paused; but Karpenter may still run: boom",
		}, {
			name:    "When a drain may force nothing and its time is over, it should have a reason of its own",
			outcome: outcome{state: draining, blocked: true, message: "4 of 12 nodes left", reason: v1beta1.AutoNodeDrainStoppedReason},
			want:    "False/AutoNodeDrainStopped", state: v1beta1.AutoNodeStateDraining, message: "4 of 12 nodes left",
		}, {
			name:    "When it drains, it should say what is left",
			outcome: outcome{state: draining, blocked: true, message: "4 of 12 nodes left"},
			want:    "False/AutoNodeDraining", state: v1beta1.AutoNodeStateDraining, message: "4 of 12 nodes left",
		},
	})

	t.Run("When a drain is interrupted, the nodes should have their whole time in the next one", func(t *testing.T) {
		for state, kept := range map[state]bool{draining: true, paused: false, on: false, waiting: false} {
			r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
			s := running("1.36.3")
			s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{DrainStartedTime: ptr.To(scalar.NewTime(noon))}
			r.conclude(s, &outcome{state: state, blocked: true})
			if got := s.HostedCluster.Status.AutoNode.DrainStartedTime != nil; got != kept {
				t.Errorf("in state %d the drain's beginning is kept: %t, want %t", state, got, kept)
			}
		}
	})

	t.Run("When AutoNode is off, it should drop what is said of nodes and keep the history", func(t *testing.T) {
		r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
		s := running("1.36.3")
		s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateDraining}
		r.conclude(s, &outcome{state: off})
		status := s.HostedCluster.Status
		if status.AutoNode != nil || len(status.Conditions) != 2 || status.Conditions[0].Reason != v1beta1.AutoNodeNotConfiguredReason ||
			status.Conditions[1].Type != v1beta1.Ready || status.Version == nil {
			t.Errorf("got %+v", status)
		}
		expectReady(t, s.HostedCluster, "True/AutoNodeNotConfigured")
	})
}

func TestConcludeSleep(t *testing.T) {
	const falling, saves = "falling asleep until Tue 24 Nov 07:00 CET; 1 node is left to drain", "asleep until Tue 24 Nov 07:00 CET, which saves $1.204 an hour"
	asleep := func(s *scope.Scope) {
		s.HostedCluster.Spec.AutoNode = scopetest.AutoNode()
		s.Sleep = scope.Sleep{Until: "2026-11-24T07:00:00+01:00", Asleep: true, Message: saves}
		meta.SetStatusCondition(&s.Component.Status.Conditions, metav1.Condition{Type: v1beta1.Available, Status: metav1.ConditionFalse, Reason: v1beta1.AsleepReason, Message: saves})
	}
	concludeAll(t, []conclusion{
		{
			name:   "When it falls asleep, it should be ready, and say what is left",
			change: []func(*scope.Scope){func(s *scope.Scope) { s.Sleep = scope.Sleep{Until: "2026-11-24T07:00:00+01:00", Message: falling} }},
			want:   "True/FallingAsleep", state: v1beta1.AutoNodeStateFallingAsleep, message: falling,
		}, {
			name:   "When it is asleep, it should be ready without a Karpenter, and say until when",
			change: []func(*scope.Scope){asleep},
			want:   "True/Asleep", state: v1beta1.AutoNodeStateAsleep, message: saves,
		}, {
			name:   "When another payload is rolled out while it is asleep, it should be asleep",
			change: []func(*scope.Scope){asleep, runsOlder, componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "the Deployment is being updated")},
			want:   "True/Asleep", state: v1beta1.AutoNodeStateAsleep, message: saves,
		}, {
			name: "When its nodes are outdated and its node class isn't ready while it is asleep, it should be ready",
			change: []func(*scope.Scope){
				asleep, hostedSays(v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "5 of 8 nodes still run 1.36.2"),
				hostedSays(v1beta1.NodeClassReady, metav1.ConditionFalse, v1beta1.AsleepReason, "node class default isn't ready: the cluster is asleep"),
			},
			want: "True/Asleep", state: v1beta1.AutoNodeStateAsleep, message: saves,
		}, {
			name:    "When an input is missing while it is asleep, it should say that too",
			outcome: outcome{blocked: true, message: "no such image"},
			change:  []func(*scope.Scope){asleep, hostedSays(v1beta1.ReleaseResolved, metav1.ConditionFalse, v1beta1.ImageNotFoundReason, "")},
			want:    "True/Asleep", state: v1beta1.AutoNodeStateAsleep, message: saves + "; no such image",
		}, {
			name:    "When Machines hang while it is asleep, it should say that first",
			outcome: outcome{infrastructure: "1 Machine hangs in deletion"},
			change:  []func(*scope.Scope){asleep},
			want:    "True/Asleep", state: v1beta1.AutoNodeStateAsleep, message: "1 Machine hangs in deletion; " + saves,
		}, {
			name:    "When it is paused while it is asleep, it should be paused",
			outcome: outcome{state: paused, message: "paused by spec.pausedUntil"},
			change:  []func(*scope.Scope){asleep},
			want:    "False/Paused", state: v1beta1.AutoNodeStatePaused, message: "paused by spec.pausedUntil",
		}, {
			name:    "When it drains after it was asleep, it should drain",
			outcome: outcome{state: draining, blocked: true, message: "removing node class default"},
			want:    "False/AutoNodeDraining", state: v1beta1.AutoNodeStateDraining, message: "removing node class default",
		},
	})

	t.Run("When it sleeps or drains, the status should have the times of what goes on and no other", func(t *testing.T) {
		asleep := v1beta1.SleepStatus{Since: ptr.To(scalar.NewTime(noon))}
		for name, test := range map[string]struct {
			status         *v1beta1.SleepStatus
			state          state
			off            bool
			sleeps, drains bool
		}{
			"awake":                           {},
			"falling asleep":                  {status: &v1beta1.SleepStatus{}, sleeps: true, drains: true},
			"asleep":                          {status: &asleep, sleeps: true},
			"paused":                          {status: &v1beta1.SleepStatus{}, state: paused, sleeps: true},
			"being turned off":                {status: &v1beta1.SleepStatus{}, state: draining, off: true, sleeps: true, drains: true},
			"its spec isn't followed anymore": {status: &v1beta1.SleepStatus{}, state: waiting, sleeps: true, drains: true},
		} {
			g, s := NewWithT(t), running("1.36.3")
			if !test.off {
				s.HostedCluster.Spec.AutoNode = scopetest.AutoNode()
			}
			s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{Sleep: test.status, DrainStartedTime: ptr.To(scalar.NewTime(noon))}
			r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
			r.conclude(s, &outcome{state: test.state})
			g.Expect(s.HostedCluster.Status.AutoNode.Sleep != nil).To(Equal(test.sleeps), name)
			g.Expect(s.HostedCluster.Status.AutoNode.DrainStartedTime != nil).To(Equal(test.drains), name)
		}
	})
}
