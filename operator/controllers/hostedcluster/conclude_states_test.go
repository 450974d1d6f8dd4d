// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"errors"
	"testing"

	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
)

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
	})
}
