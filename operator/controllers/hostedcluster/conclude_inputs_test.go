// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestConcludeInputs(t *testing.T) {
	concludeAll(t, []conclusion{
		{
			name:    "When an input is missing before the first rollout, it should be Waiting",
			outcome: outcome{blocked: true, message: "no such image"},
			change: []func(*scope.Scope){func(s *scope.Scope) {
				s.Component.Status = v1beta1.ControlPlaneComponentStatus{}
				setCondition(s.HostedCluster, v1beta1.ReleaseResolved, metav1.ConditionFalse, v1beta1.ImageNotFoundReason, "")
			}},
			want: "False/AutoNodeWaiting", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When an input takes its time before the first rollout, it should be Progressing",
			outcome: outcome{blocked: true, message: "connecting to blue"},
			change: []func(*scope.Scope){func(s *scope.Scope) {
				s.Component.Status = v1beta1.ControlPlaneComponentStatus{}
				setCondition(s.HostedCluster, v1beta1.GuestReachable, metav1.ConditionUnknown, v1beta1.GuestConnectingReason, "")
			}},
			want: "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing, message: "connecting to blue",
		}, {
			name:    "When an input is missing later, it should not call off what runs",
			outcome: outcome{blocked: true, message: "no such image"},
			want:    "True/AsExpected", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When an input is wrong but the steps ran without it, it should say so",
			outcome: outcome{message: "no such image"},
			want:    "True/AsExpected", state: v1beta1.AutoNodeStateWaiting, message: "no such image",
		}, {
			name:    "When the spec can't be followed while Karpenter runs, it should not call off what runs",
			outcome: outcome{state: waiting, blocked: true, message: "there is no Cluster"},
			want:    "True/AsExpected", state: v1beta1.AutoNodeStateWaiting, message: "there is no Cluster",
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
