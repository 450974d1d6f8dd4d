// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// TestPhase: what the record of a drain means, minutes after it began. The guests' nodes have half an hour, and then five minutes by force.
func TestPhase(t *testing.T) {
	began := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	recorded := func(minutes int) *scalar.Time {
		if minutes < 0 {
			return nil
		}
		return ptr.To(scalar.NewTime(at(minutes)))
	}
	const never = -1
	for name, test := range map[string]struct {
		now               int
		requested, forced int // never, or the minute
		timeout           time.Duration
		stops             bool

		want                    phase
		wantDeadline, wantGiven int
	}{
		"When the guest hasn't answered yet, the deadline should count from the start":     {now: 29, requested: never, forced: never, want: graceful, wantDeadline: 30, wantGiven: 35},
		"When the guest answered later, the deadline should count from its answer":         {now: 39, requested: 10, forced: never, want: graceful, wantDeadline: 40, wantGiven: 45},
		"When the deadline is reached, pods should be terminated":                          {now: 30, requested: 0, forced: never, want: forced, wantDeadline: 30, wantGiven: 35},
		"When no operator ran at the deadline, force should come before giving up":         {now: 90, requested: 0, forced: never, want: forced, wantDeadline: 30, wantGiven: 95},
		"When pods were terminated late, five minutes should count from then":              {now: 54, requested: 0, forced: 50, want: forced, wantDeadline: 30, wantGiven: 55},
		"When five minutes of force are over, the rest should be given up":                 {now: 55, requested: 0, forced: 50, want: over, wantDeadline: 30, wantGiven: 55},
		"When the deadline was moved after the force, it should hold":                      {now: 50, requested: 0, forced: 31, timeout: time.Hour, want: graceful, wantDeadline: 60, wantGiven: 65},
		"When the nodes' time is shorter than five minutes, force should last no longer":   {now: 2, requested: 0, forced: 2, timeout: 2 * time.Minute, want: forced, wantDeadline: 2, wantGiven: 4},
		"When onTimeout is Stop, nothing should be forced or given up, however late it is": {now: 900, requested: 0, forced: never, stops: true, want: stopped, wantDeadline: 30, wantGiven: 905},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			hosted := &v1beta1.HostedCluster{}
			hosted.Spec.NodeDrain = &v1beta1.NodeDrain{}
			if test.timeout != 0 {
				hosted.Spec.NodeDrain.Timeout = &scalar.Duration{Duration: test.timeout}
			}
			if test.stops {
				hosted.Spec.NodeDrain.OnTimeout = v1beta1.DrainTimeoutStop
			}
			hosted.Status.AutoNode = &v1beta1.AutoNodeStatus{
				DrainStartedTime: recorded(0), DrainRequestedTime: recorded(test.requested), DrainForcedTime: recorded(test.forced),
			}
			d := step(clocktesting.NewFakePassiveClock(at(test.now))).drainOf(&scope.Scope{HostedCluster: hosted})
			g.Expect(d.phase).To(Equal(test.want))
			g.Expect(d.deadline).To(BeTemporally("==", at(test.wantDeadline)))
			g.Expect(d.givenUp).To(BeTemporally("==", at(test.wantGiven)))
		})
	}

	t.Run("When a drain starts again, what was written down of the last one should mean nothing", func(t *testing.T) {
		g := NewWithT(t)
		s := &scope.Scope{HostedCluster: &v1beta1.HostedCluster{}}
		s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{DrainRequestedTime: recorded(0), DrainForcedTime: recorded(30)}
		d := step(clocktesting.NewFakePassiveClock(at(60))).drainOf(s)
		g.Expect(d.phase).To(Equal(graceful))
		g.Expect(d.deadline).To(BeTemporally("==", at(90)))
		g.Expect(s.HostedCluster.Status.AutoNode).To(HaveValue(And(
			HaveField("DrainRequestedTime", BeNil()), HaveField("DrainForcedTime", BeNil()), HaveField("DrainStartedTime.Time.Time", BeTemporally("==", at(60))),
		)))
	})

	t.Run("When the guest answers, the first answer and the first force should be written down, and no later ones", func(t *testing.T) {
		g, now := NewWithT(t), clocktesting.NewFakePassiveClock(at(0))
		s := &scope.Scope{HostedCluster: &v1beta1.HostedCluster{}}
		step := step(now)
		for _, pass := range []struct{ now, requested, forced int }{{5, 5, never}, {20, 5, never}, {35, 5, 35}, {38, 5, 35}, {41, 5, 35}} {
			now.SetTime(at(pass.now))
			step.answered(s)
			g.Expect(s.HostedCluster.Status.AutoNode.DrainRequestedTime.At()).To(BeTemporally("==", recorded(pass.requested).At()), "after %d minutes", pass.now)
			g.Expect(s.HostedCluster.Status.AutoNode.DrainForcedTime.At()).To(BeTemporally("==", recorded(pass.forced).At()), "after %d minutes", pass.now)
		}
	})
}

func step(now clock.PassiveClock) *Teardown {
	return New(Config{Clock: now, DrainTimeout: 30 * time.Minute})
}
