// SPDX-License-Identifier: Apache-2.0

// Package sleep removes a cluster's nodes by schedule or by hand, and then scales its Karpenter to zero.
//
// A cluster that falls asleep goes through the phases of a drain, by its own timeout and policy. Its objects in the guest stay.
package sleep

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/maintenance"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
	"github.com/autonode-io/autonode/operator/steps/teardown"
)

// Sleep is the step.
type Sleep struct {
	// Teardown drains.
	Teardown *teardown.Teardown
	Clock    clock.PassiveClock
}

// New returns the step.
func New(drain *teardown.Teardown) Sleep { return Sleep{drain, clock.RealClock{}} }

// Name implements scope.Step.
func (Sleep) Name() string { return "sleep" }

// Reconcile fills s.Sleep and owns status.autoNode.sleep. The steps behind it go on while a cluster sleeps: a payload is applied, with no
// replica. Without a guest a cluster stays as it is.
func (z Sleep) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.HostedCluster.Status.AutoNode == nil {
		s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{}
	}
	now, status := z.Clock.Now(), s.HostedCluster.Status.AutoNode
	asleep, until, invalid := Decide(s.HostedCluster, s.Profile, now)
	reachable := s.Guest != nil && s.Guest.Complete && s.Component != nil
	if known := status.Sleep; invalid != nil || !reachable && asleep != (known != nil) { // ValidConfiguration or GuestReachable says so
		asleep, until = known != nil, time.Time{}
	}
	result := scope.Result{}
	if !until.IsZero() {
		result.RequeueAfter = max(until.Sub(now), time.Second)
	}
	switch {
	case !asleep && status.Sleep == nil:
		return result, nil
	case !asleep:
		if err := nodeclass.Annotate(ctx, s); err != nil {
			return result, fmt.Errorf("waking: %w", err)
		}
		status.Sleep = nil
		return result, nil
	case status.Sleep == nil:
		status.Sleep, status.DrainStartedTime = &v1beta1.SleepStatus{SavedPerHour: z.Teardown.Price(ctx, s)}, nil // its drain is another one
	}
	s.Sleep = scope.Sleep{Until: "someone wakes it", Asleep: status.Sleep.Since != nil, Message: "someone wakes it"}
	if !until.IsZero() {
		s.Sleep.Until, s.Sleep.Message = until.Format(time.RFC3339), until.Format("Mon 2 Jan 15:04 MST")
	}
	held, err := "", error(nil)
	if reachable {
		held, err = z.proceed(ctx, s, &result)
	}
	if s.Sleep.Message = "asleep until " + s.Sleep.Message; !s.Sleep.Asleep {
		s.Sleep.Message = "falling " + s.Sleep.Message
	} else if status.Sleep.SavedPerHour != "" {
		s.Sleep.Message += ", which saves " + status.Sleep.SavedPerHour + " an hour"
	}
	if held != "" {
		s.Sleep.Message += "; " + held
	}
	return result, err
}

// proceed drains a cluster, or keeps it asleep. It returns what holds it up.
func (z Sleep) proceed(ctx context.Context, s *scope.Scope, result *scope.Result) (held string, err error) {
	status := s.HostedCluster.Status.AutoNode.Sleep
	if s.Sleep.Asleep {
		if s.Sleep.Asleep, err = z.Teardown.IsEmpty(ctx, s); err != nil {
			return "", err //nolint:wrapcheck // the teardown's own
		}
	}
	if !s.Sleep.Asleep {
		status.Since = nil
		drained, err := z.Teardown.Empty(ctx, s)
		if err != nil || drained.Wait {
			result.RequeueAfter = scope.Sooner(result.RequeueAfter, drained.RequeueAfter)
			return drained.Message, err //nolint:wrapcheck // the same
		}
		status.Since, s.Sleep.Asleep = ptr.To(scalar.NewTime(z.Clock.Now()).Stored()), true
	}
	if err := z.Teardown.KeepAsleep(ctx, s); err != nil {
		return message.Quoted(err.Error()), nil
	}
	return "", nil
}

// Decide decides by the annotations, then the spec, whether a cluster has to be asleep, and until when; zero for ever. An error names the
// field or the annotation that can't be followed.
func Decide(hostedCluster *v1beta1.HostedCluster, profile *provider.Profile, now time.Time) (asleep bool, until time.Time, err error) {
	if profile.NodeClass.DrainingAnnotation == "" {
		if hostedCluster.Spec.AutoNode.Sleep != nil || hostedCluster.Annotations[v1beta1.SleepUntilAnnotation] != "" {
			err = fmt.Errorf("clusters on platform %s can't sleep; remove spec.autoNode.sleep and annotation %s", profile.Platform,
				v1beta1.SleepUntilAnnotation)
		}
		return false, until, err
	}
	spec := ptr.Deref(hostedCluster.Spec.AutoNode.Sleep, v1beta1.Sleep{})
	schedules, err := maintenance.ParseSleep(spec.Schedules)
	if err != nil {
		return false, until, fmt.Errorf("spec.autoNode.sleep.schedules%w", err)
	}
	for _, annotation := range []string{v1beta1.WakeUntilAnnotation, v1beta1.SleepUntilAnnotation} {
		value := hostedCluster.Annotations[annotation]
		if at, err := time.Parse(time.RFC3339, value); value != "" && err != nil {
			return false, until, fmt.Errorf("annotation %s: %s isn't a time such as 2026-12-01T06:00:00Z", annotation, message.Quote(value))
		} else if at.After(now) {
			return annotation == v1beta1.SleepUntilAnnotation, at, nil
		}
	}
	if spec.Suspend {
		return true, until, nil
	}
	return schedules.Asleep(now), schedules.Changes(now), nil
}
