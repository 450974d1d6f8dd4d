// SPDX-License-Identifier: Apache-2.0

package component

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// withoutReplicas are the reasons of a Karpenter that is to have none.
var withoutReplicas = sets.New(v1beta1.PausedReason, v1beta1.AsleepReason)

// setAvailable reports whether at least one replica serves.
func setAvailable(component *v1beta1.ControlPlaneComponent, live *appsv1.Deployment, trouble string, sleep scope.Sleep) {
	switch {
	case sleep.Asleep:
		set(component, v1beta1.Available, metav1.ConditionFalse, v1beta1.AsleepReason, sleep.Message)
	case live == nil:
		set(component, v1beta1.Available, metav1.ConditionFalse, v1beta1.DeploymentNotFoundReason, "there is no Deployment; it is made again")
	case live.Status.AvailableReplicas == 0:
		paused := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available)
		if paused != nil && withoutReplicas.Has(paused.Reason) {
			meta.RemoveStatusCondition(&component.Status.Conditions, v1beta1.Available) // the time of the pause doesn't count as an outage
		}
		none := fmt.Sprintf("none of %d replicas is available", ptr.Deref(live.Spec.Replicas, 1))
		set(component, v1beta1.Available, metav1.ConditionFalse, v1beta1.ReplicasUnavailableReason, none+explain(live, trouble))
	default:
		set(component, v1beta1.Available, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
	}
}

// setRollout reports whether every replica runs the applied pod template, and no other replica is left. The Deployment's status counts
// replicas, and its pods show their containers. Once true it stays true until the next rollout: a later eviction or restart affects
// Available.
func setRollout(component *v1beta1.ControlPlaneComponent, live, desired *appsv1.Deployment, pods []corev1.Pod, trouble string) {
	wait := func(format string, args ...any) {
		set(component, v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason,
			fmt.Sprintf(format, args...)+explain(live, trouble))
	}
	if live == nil {
		wait("the Deployment is being made")
		return
	}
	stray := strayAmong(pods, &live.Spec.Template.Spec)
	replicas, status := ptr.Deref(live.Spec.Replicas, 1), live.Status
	available := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available)
	restarts := replicas > 0 && available != nil && withoutReplicas.Has(available.Reason)
	if replicas > 0 && !restarts && rolledOut(component) && stray == "" && rolloutOf(live) != "" &&
		rolloutOf(live) == component.Status.Rollout && (desired == nil || sameContainer(live, desired)) {
		return // at most its size has changed
	}
	old := status.Replicas - status.UpdatedReplicas
	ending := max(ptr.Deref(status.TerminatingReplicas, 0), terminating(pods)) // of the two, the one lags, and not every cluster has the other
	switch {
	case desired != nil && (!sameContainer(live, desired) || replicas != ptr.Deref(desired.Spec.Replicas, 1)),
		status.ObservedGeneration < live.Generation:
		wait("the Deployment is being updated")
	case restarts && status.AvailableReplicas == 0:
		wait("%d replicas start", replicas)
	case status.UpdatedReplicas < replicas && (old > 0 || !rolledOut(component)):
		wait("%d of %d replicas are updated", status.UpdatedReplicas, replicas)
	case old > 0:
		wait("%d old replicas are still to go", old)
	case stray != "":
		wait("%s", stray)
	case rolledOut(component):
		// Stays true.
	case status.AvailableReplicas < status.UpdatedReplicas:
		wait("%d of %d updated replicas are available", status.AvailableReplicas, status.UpdatedReplicas)
	case ending > 0:
		wait("%d old replicas are still to end", ending)
	default:
		set(component, v1beta1.RolloutComplete, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
	}
}

// sameContainer reports whether the Deployment has the applied container. The cache or the API server may lag.
func sameContainer(live, desired *appsv1.Deployment) bool {
	a, b := live.Spec.Template.Spec.Containers, desired.Spec.Template.Spec.Containers
	at := slices.IndexFunc(a, func(c corev1.Container) bool { return c.Name == b[0].Name })
	return at >= 0 && a[at].Image == b[0].Image && slices.Equal(a[at].Args, b[0].Args) && hasVariables(a[at].Env, b[0].Env)
}

// hasVariables ignores variables that the kubelet resolves, which the API server completes, and those of other field
// managers.
func hasVariables(live, desired []corev1.EnvVar) bool {
	return !slices.ContainsFunc(desired, func(variable corev1.EnvVar) bool {
		return variable.ValueFrom == nil &&
			!slices.ContainsFunc(live, func(l corev1.EnvVar) bool { return l.Name == variable.Name && l.Value == variable.Value })
	})
}

// explain returns the rollout's obstacle: a failing pod's reason, else the Deployment controller's message.
func explain(live *appsv1.Deployment, trouble string) string {
	if trouble != "" {
		return "; " + trouble
	}
	if live == nil {
		return ""
	}
	for _, c := range live.Status.Conditions {
		failed := c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse
		if failed && c.Message != "" {
			return "; " + c.Message
		}
	}
	return ""
}

func rolledOut(component *v1beta1.ControlPlaneComponent) bool {
	return meta.IsStatusConditionTrue(component.Status.Conditions, v1beta1.RolloutComplete)
}

func set(component *v1beta1.ControlPlaneComponent, conditionType string, status metav1.ConditionStatus, reason, text string) {
	meta.SetStatusCondition(&component.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message.Cut(text), ObservedGeneration: component.Generation,
	})
}

// setReady reports whether the component is rolled out and available, with the reason and the message of the condition that is False.
func setReady(component *v1beta1.ControlPlaneComponent) {
	component.Status.ObservedGeneration = component.Generation
	rollout := meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete)
	available := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available)
	isTrue := func(condition *metav1.Condition) bool {
		return condition != nil && condition.Status == metav1.ConditionTrue
	}
	decides := rollout
	// While Karpenter is paused, the pause counts and not the rollout that it interrupted.
	if isTrue(rollout) || available != nil && withoutReplicas.Has(available.Reason) {
		decides = available
	}
	switch {
	case isTrue(decides):
		set(component, v1beta1.Ready, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
	case decides != nil:
		set(component, v1beta1.Ready, metav1.ConditionFalse, decides.Reason, decides.Message)
	default:
		set(component, v1beta1.Ready, metav1.ConditionFalse, v1beta1.RollingOutReason, "the Deployment is being made")
	}
}

// record writes an event for each condition but Ready whose status or reason changed, with that reason.
func (c *Component) record(before, after *v1beta1.ControlPlaneComponent) {
	message.Transitions(c.Recorder, after, before.Status.Conditions, after.Status.Conditions,
		func(was *metav1.Condition, is metav1.Condition) string {
			if is.Type == v1beta1.Available && is.Status == metav1.ConditionFalse && was != nil &&
				!withoutReplicas.HasAny(is.Reason, was.Reason) {
				return corev1.EventTypeWarning
			}
			return corev1.EventTypeNormal
		})
}
