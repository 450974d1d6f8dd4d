// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// statusFields is the fields that the operator writes to a HostedCluster's status, in any step. Other conditions belong to
// others, and status.operator to the shard, which no reconciliation may acquire or release.
var statusFields = apply.StatusFields{
	Names: []string{"observedGeneration", "autoNode", "version"},
	Conditions: []string{
		v1beta1.Ready, v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable, v1beta1.AutoNodeEnabled,
		v1beta1.NodesUpToDate, v1beta1.ImageOverridden,
		v1beta1.FeatureGatesAccepted, v1beta1.NodeClassReady, v1beta1.OfferingsAvailable, v1beta1.NodeIdentityEnforced,
	},
}

// conclude sums up a reconciliation's result: AutoNodeEnabled, the state and the message that a list of clusters shows, and
// the history of payloads.
func (r *Reconciler) conclude(s *scope.Scope, o *outcome) {
	hostedCluster := s.HostedCluster
	if o.state == off {
		r.failing.ended(hostedCluster)
		r.concludeOff(hostedCluster)
		return
	}
	if hostedCluster.Status.AutoNode == nil {
		hostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{}
	}
	if s.Component != nil {
		hostedCluster.Status.AutoNode.FeatureGates = s.Component.Status.FeatureGates
	}
	status := hostedCluster.Status.AutoNode
	if falls := status.Sleep != nil && status.Sleep.Since == nil; o.state != draining && (o.state == paused || !falls) {
		// Set by the teardown. A drain that goes on after a pause, or after AutoNode was on again, has its whole time.
		status.DrainStartedTime, status.DrainRequestedTime, status.DrainForcedTime = nil, nil, nil
	}
	if onlyConflicts(o.errs) {
		return // the next try has the newer object; nothing is wrong
	}
	if o.state == on || o.state == waiting {
		r.recordHistory(s, o)
	}
	switch {
	case o.err() == nil:
		r.failing.ended(hostedCluster)
	case o.state != paused && hostedCluster.Status.AutoNode.State != "" && !r.failing.lasts(hostedCluster, r.clock.Now()):
		return // what was said before may still be true, and the next try is to come soon
	}
	sum := summarize(s, o)
	setCondition(hostedCluster, v1beta1.AutoNodeEnabled, sum.status, sum.reason, sum.conditionMessage())
	sum.setReady(hostedCluster)
	hostedCluster.Status.AutoNode.State = sum.state
	hostedCluster.Status.AutoNode.Message = message.Cut(sum.message)
}

// concludeOff leaves a HostedCluster that never used AutoNode with AutoNodeEnabled and Ready, and one that did with its history.
func (r *Reconciler) concludeOff(hostedCluster *v1beta1.HostedCluster) {
	hostedCluster.Status.AutoNode = nil
	for _, condition := range statusFields.Conditions {
		if condition != v1beta1.AutoNodeEnabled && condition != v1beta1.Ready {
			meta.RemoveStatusCondition(&hostedCluster.Status.Conditions, condition)
		}
	}
	const message = "set spec.autoNode to turn AutoNode on"
	setCondition(hostedCluster, v1beta1.AutoNodeEnabled, metav1.ConditionFalse, v1beta1.AutoNodeNotConfiguredReason, message)
	setCondition(hostedCluster, v1beta1.Ready, metav1.ConditionTrue, v1beta1.AutoNodeNotConfiguredReason, message)
	hostedCluster.Status.ObservedGeneration = hostedCluster.Generation
}

// summary is the part of the status that people see first.
type summary struct {
	status  metav1.ConditionStatus
	reason  string
	message string
	// detail is for the condition alone, without a message or besides it.
	detail string
	state  v1beta1.AutoNodeState
	// unready is the condition that keeps the HostedCluster from being ready although Karpenter runs; nil for none.
	unready *metav1.Condition
}

func (s summary) conditionMessage() string {
	switch {
	case s.message == "":
		return s.detail
	case s.status == metav1.ConditionTrue && s.detail != "":
		return s.detail + "; " + s.message
	default:
		return s.message
	}
}

// setReady reports whether the running state matches the spec. AutoNodeEnabled stays True while an input is missing and Karpenter runs on,
// and while the default node class isn't ready.
func (s summary) setReady(hostedCluster *v1beta1.HostedCluster) {
	status, reason := s.status, s.reason
	switch {
	case s.unready != nil:
		status, reason = s.unready.Status, s.unready.Reason
	case status == metav1.ConditionTrue && s.state == v1beta1.AutoNodeStateWaiting:
		status, reason = metav1.ConditionFalse, v1beta1.AutoNodeWaitingReason
	}
	setCondition(hostedCluster, v1beta1.Ready, status, reason, s.conditionMessage())
	hostedCluster.Status.ObservedGeneration = hostedCluster.Generation
}

func summarize(s *scope.Scope, o *outcome) summary {
	if o.state == paused {
		return summary{status: metav1.ConditionFalse, reason: v1beta1.PausedReason, message: o.message, state: v1beta1.AutoNodeStatePaused}
	}
	if err := o.err(); err != nil {
		state := v1beta1.AutoNodeStateWaiting
		if o.state == draining {
			state = v1beta1.AutoNodeStateDraining
		}
		return summary{status: metav1.ConditionUnknown, reason: v1beta1.AutoNodeEvaluationFailedReason, message: err.Error(), state: state}
	}
	if o.state == draining {
		reason := cmp.Or(o.reason, v1beta1.AutoNodeDrainingReason)
		return summary{
			status: metav1.ConditionFalse, reason: reason, message: o.message, detail: "AutoNode is being removed",
			state: v1beta1.AutoNodeStateDraining,
		}
	}
	sum := summarizeRunning(s, o)
	sum.message = strings.Trim(o.infrastructure+"; "+sum.message, "; ")
	return sum
}

// summarizeRunning reports Karpenter's own state. A missing input doesn't turn off an earlier rollout.
func summarizeRunning(s *scope.Scope, o *outcome) summary {
	if s.Sleep.Wanted() {
		state := v1beta1.AutoNodeStateFallingAsleep
		if s.Sleep.Asleep {
			state = v1beta1.AutoNodeStateAsleep
		}
		message := strings.TrimSuffix(s.Sleep.Message+"; "+o.message, "; ")
		return summary{status: metav1.ConditionTrue, reason: string(state), message: message, state: state} // reasons are called as the states
	}
	status := &s.HostedCluster.Status
	var component v1beta1.ControlPlaneComponentStatus
	if s.Component != nil {
		component = s.Component.Status
	}
	available := meta.FindStatusCondition(component.Conditions, v1beta1.Available)
	rolledOut := meta.FindStatusCondition(component.Conditions, v1beta1.RolloutComplete)
	is := func(c *metav1.Condition, status metav1.ConditionStatus) bool { return c != nil && c.Status == status }

	progressing, reason, doing := progress(status.Version, component)
	switch runs := is(rolledOut, metav1.ConditionTrue) && is(available, metav1.ConditionTrue); {
	case o.blocked && !runs && !faulty(status.Conditions):
		return summary{status: metav1.ConditionFalse, reason: reason, message: o.message, detail: doing, state: progressing}
	case o.blocked && !runs:
		return summary{
			status: metav1.ConditionFalse, reason: v1beta1.AutoNodeWaitingReason, message: o.message, detail: "an input is missing",
			state: v1beta1.AutoNodeStateWaiting,
		}
	case !is(rolledOut, metav1.ConditionTrue):
		return summary{status: metav1.ConditionFalse, reason: reason, message: explain(doing, rolledOut), state: progressing}
	case !is(available, metav1.ConditionTrue):
		message := explain(fmt.Sprintf("Karpenter of release %s isn't available", component.Version), available)
		return summary{
			status: metav1.ConditionFalse, reason: v1beta1.AutoNodeDegradedReason, message: message, state: v1beta1.AutoNodeStateDegraded,
		}
	}
	sum := summary{
		status: metav1.ConditionTrue, reason: v1beta1.AsExpectedReason, state: v1beta1.AutoNodeStateEnabled,
		detail: fmt.Sprintf("Karpenter of release %s runs", component.Version),
	}
	if component.ImageOverride != "" {
		sum.detail += fmt.Sprintf(", but its image is %s, by annotation %s", component.ImageOverride, v1beta1.OverrideImageAnnotation)
	}
	if nodes := meta.FindStatusCondition(status.Conditions, v1beta1.NodesUpToDate); is(nodes, metav1.ConditionFalse) {
		sum.state, sum.message = v1beta1.AutoNodeStateUpgrading, nodes.Message
	}
	if offerings := meta.FindStatusCondition(status.Conditions, v1beta1.OfferingsAvailable); is(offerings, metav1.ConditionFalse) {
		sum.message = offerings.Message // first: nodes are neither launched nor replaced meanwhile
	}
	switch class := meta.FindStatusCondition(status.Conditions, v1beta1.NodeClassReady); {
	case o.message != "" || o.blocked:
		sum.state, sum.message = v1beta1.AutoNodeStateWaiting, o.message
	case is(class, metav1.ConditionFalse) && class.Reason == v1alpha1.NoSelectorReason:
		// A platform may leave the declaration of node classes to the guest's admins: the message names it, and nothing waits.
		sum.message = cmp.Or(sum.message, class.Message)
	case is(class, metav1.ConditionFalse):
		sum.state, sum.message, sum.unready = v1beta1.AutoNodeStateWaiting, class.Message, class
	case is(class, metav1.ConditionUnknown):
		sum.state, sum.message, sum.unready = v1beta1.AutoNodeStateProgressing, class.Message, class
	}
	return sum
}

// progress returns the purpose of an incomplete rollout of Karpenter. Runs has the version and the payload that were rolled out whole
// last, empty for none.
func progress(version *v1beta1.VersionStatus, runs v1beta1.ControlPlaneComponentStatus,
) (state v1beta1.AutoNodeState, reason, doing string) {
	desired := v1beta1.DesiredVersion{Version: runs.Version, Image: runs.ReleaseImage}
	if version != nil && version.Desired != nil {
		desired = *version.Desired
	}
	switch state, reason = v1beta1.AutoNodeStateProgressing, v1beta1.AutoNodeProgressingReason; {
	case desired.Version == "":
		return state, reason, "Karpenter is being installed"
	case runs.Version == "":
		return state, reason, fmt.Sprintf("Karpenter of release %s is being installed", desired.Version)
	case runs.Version == desired.Version && runs.ReleaseImage == desired.Image:
		return state, reason, fmt.Sprintf("Karpenter of release %s is being rolled out again", desired.Version)
	}
	state, reason = v1beta1.AutoNodeStateUpgrading, v1beta1.AutoNodeUpgradingReason
	if runs.Version == desired.Version {
		return state, reason, fmt.Sprintf("Karpenter is being upgraded to another build of release %s", desired.Version)
	}
	return state, reason, fmt.Sprintf("Karpenter is being upgraded from release %s to %s", runs.Version, desired.Version)
}

// explain adds the message of a condition of the component, if it has one.
func explain(what string, condition *metav1.Condition) string {
	if condition == nil || condition.Message == "" {
		return what
	}
	return what + ": " + condition.Message
}

// faulty reports whether a user has to correct an input, in contrast to one that takes time.
func faulty(conditions []metav1.Condition) bool {
	return slices.ContainsFunc([]string{v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable},
		func(condition string) bool {
			return meta.IsStatusConditionFalse(conditions, condition)
		})
}

func setCondition(hostedCluster *v1beta1.HostedCluster, conditionType string, status metav1.ConditionStatus, reason, text string) {
	meta.SetStatusCondition(&hostedCluster.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: text, ObservedGeneration: hostedCluster.Generation,
	})
}

// bound cuts the steps' texts to the limits of a condition and a status.
func bound(hostedCluster *v1beta1.HostedCluster) {
	conditions := hostedCluster.Status.Conditions
	for i := range conditions {
		if slices.Contains(statusFields.Conditions, conditions[i].Type) {
			conditions[i].Message = message.Cut(conditions[i].Message)
		}
	}
}

func onlyConflicts(errs []error) bool {
	return len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !apierrors.IsConflict(err) })
}

// normalReasons are the reasons that need no action, whatever the condition's status.
var normalReasons = sets.New(
	v1beta1.AsExpectedReason, v1beta1.DefaultReleaseReason, v1beta1.PausedReason, v1beta1.GuestConnectingReason, v1beta1.FitUnknownReason,
	v1beta1.AutoNodeProgressingReason, v1beta1.AutoNodeUpgradingReason, v1beta1.AutoNodeNotConfiguredReason, v1beta1.AutoNodeDrainingReason,
	v1beta1.NodesOutdatedReason, v1beta1.NodesAheadReason, v1beta1.ControlPlaneOlderReason, v1beta1.NodeUpgradeHeldReason,
	v1beta1.NodeClassPendingReason, v1beta1.UpgradeProvingReason, v1beta1.AsleepReason, v1beta1.FallingAsleepReason,
	v1beta1.ControlPlaneAsleepReason, v1beta1.WaitsForRingReason,
)

// warnings are the reasons that need an action although the condition is True.
var warnings = sets.New(v1beta1.PayloadUnsignedReason, v1beta1.SignatureUnknownReason)

// record writes an event for each condition but Ready whose status or reason changed, with that reason, and for each update that started or
// ended.
func (r *Reconciler) record(before *v1beta1.HostedClusterStatus, after *v1beta1.HostedCluster) {
	message.Transitions(r.recorder, after, before.Conditions, after.Status.Conditions, func(_ *metav1.Condition, is metav1.Condition) string {
		if is.Status == metav1.ConditionTrue && !warnings.Has(is.Reason) || normalReasons.Has(is.Reason) {
			return corev1.EventTypeNormal
		}
		return corev1.EventTypeWarning
	})
	was, is := newest(before.Version), newest(after.Status.Version)
	if is == nil || was != nil && was.Image == is.Image && was.State == is.State && was.StartedTime.Equal(&is.StartedTime) {
		return
	}
	if is.State == v1beta1.UpdateCompleted {
		r.recorder.Eventf(after, nil, corev1.EventTypeNormal, "UpdateCompleted", "Update",
			"release %s is complete: Karpenter and every node run it", is.Version)
	} else {
		r.recorder.Eventf(after, nil, corev1.EventTypeNormal, "UpdateStarted", "Update", "updating to release %s (%s)", is.Version, is.Image)
	}
}
