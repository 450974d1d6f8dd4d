// SPDX-License-Identifier: Apache-2.0

package component

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func deployment(image string, change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Generation: 2},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "karpenter", Image: image, Args: []string{"--a"}, Env: []corev1.EnvVar{{Name: "A", Value: "a"}}}}}},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2},
	}
	if change != nil {
		change(d)
	}
	return d
}

// pod is one that runs an image, as the operator's cache has it.
func pod(image string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "karpenter-x"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "injected", Image: "proxy"}, {Name: "karpenter", Image: image}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if change != nil {
		change(&p)
	}
	if _, err := ShrinkPod(&p); err != nil {
		panic(err)
	}
	return p
}

func ending(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }

func TestOwnStatus(t *testing.T) {
	t.Run("When the status has a field, it should be written", func(t *testing.T) {
		status := reflect.TypeFor[v1beta1.ControlPlaneComponentStatus]()
		for i := range status.NumField() {
			if name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ","); name != "conditions" && !slices.Contains(statusFields.Names, name) {
				t.Errorf("no code writes %s", name)
			}
		}
	})
}

func TestSetRollout(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  bool // whether the rollout was complete already
		live    *appsv1.Deployment
		desired *appsv1.Deployment
		pods    []corev1.Pod
		done    bool
		trouble string
		message string
	}{
		{
			name: "When every replica is new and available, it should be complete",
			live: deployment("new", nil), desired: deployment("new", nil), done: true,
		}, {
			name: "When the cache still has the old image, it should not be complete", before: true,
			live: deployment("old", nil), desired: deployment("new", nil), message: "the Deployment is being updated",
		}, {
			name: "When only the arguments differ, it should not be complete", before: true,
			live: deployment("new", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Args = []string{"--b"} }), desired: deployment("new", nil),
			message: "the Deployment is being updated",
		}, {
			name: "When only a variable differs, it should not be complete", before: true,
			live:    deployment("new", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Env[0].Value = "other" }),
			desired: deployment("new", nil), message: "the Deployment is being updated",
		}, {
			name: "When another client has added a variable, it should be complete",
			live: deployment("new", func(d *appsv1.Deployment) {
				c := &d.Spec.Template.Spec.Containers[0]
				c.Env = append(c.Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "proxy.example"})
			}),
			desired: deployment("new", nil), done: true,
		}, {
			name: "When the controller hasn't seen the change, it should not be complete", before: true,
			live: deployment("new", func(d *appsv1.Deployment) { d.Generation = 3 }), desired: deployment("new", nil), message: "the Deployment is being updated",
		}, {
			name: "When one replica is new, it should count", before: true,
			live:    deployment("new", func(d *appsv1.Deployment) { d.Status.UpdatedReplicas, d.Status.Replicas = 1, 3 }),
			message: "1 of 2 replicas are updated",
		}, {
			name: "When an old replica is left, it should not be complete", before: true,
			live: deployment("new", func(d *appsv1.Deployment) { d.Status.Replicas = 3 }), message: "1 old replicas are still to go",
		}, {
			name:    "When a new replica isn't available, it should not be complete",
			live:    deployment("new", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 }),
			message: "1 of 2 updated replicas are available",
		}, {
			name:    "When an old pod still ends, it should not be complete",
			live:    deployment("new", func(d *appsv1.Deployment) { d.Status.TerminatingReplicas = ptr.To[int32](1) }),
			message: "1 old replicas are still to end",
		}, {
			name: "When a replica crashes after the rollout, it should stay complete", before: true,
			live: deployment("new", func(d *appsv1.Deployment) {
				d.Status.AvailableReplicas, d.Status.TerminatingReplicas = 0, ptr.To[int32](1)
			}), done: true,
		}, {
			name: "When a replica is evicted after the rollout, it should stay complete", before: true,
			live: deployment("new", func(d *appsv1.Deployment) {
				d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 1, 1
			}),
			pods: []corev1.Pod{pod("new", nil), pod("new", ending)}, done: true,
		}, {
			name: "When a replica is missing before that, it should not be complete",
			live: deployment("new", func(d *appsv1.Deployment) {
				d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 1, 1
			}),
			message: "1 of 2 replicas are updated",
		}, {
			name: "When a pod has another image than its Deployment, it should not be complete",
			live: deployment("new", nil), pods: []corev1.Pod{pod("new", nil), pod("old", nil)},
			message: "Pod karpenter-x has image old instead of new; if it stays, find out what sets its image, and delete the pod",
		}, {
			name: "When a pod gets another image after the rollout, it should not be complete", before: true,
			live: deployment("new", nil), pods: []corev1.Pod{pod("evil", nil)},
			message: "Pod karpenter-x has image evil instead of new; if it stays, find out what sets its image, and delete the pod",
		}, {
			name: "When the same image comes from a mirror, it should be complete",
			live: deployment("registry.example/karpenter@sha256:a", nil), pods: []corev1.Pod{pod("mirror.example/karpenter@sha256:a", nil)}, done: true,
		}, {
			name: "When it comes from there with another digest, it should not be complete",
			live: deployment("registry.example/karpenter@sha256:a", nil), pods: []corev1.Pod{pod("mirror.example/karpenter@sha256:b", nil)},
			message: "Pod karpenter-x has image mirror.example/karpenter@sha256:b instead of registry.example/karpenter@sha256:a; if it stays, find out what sets its image, and delete the pod",
		}, {
			name: "When an old pod still ends and the Deployment doesn't count it, it should not be complete",
			live: deployment("new", nil), pods: []corev1.Pod{pod("new", nil), pod("old", ending)}, message: "1 old replicas are still to end",
		}, {
			name: "When an old pod was evicted or has ended, it should be complete",
			live: deployment("new", nil), pods: []corev1.Pod{
				pod("old", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
				pod("old", func(p *corev1.Pod) { ending(p); p.Status.Phase = corev1.PodSucceeded }),
			}, done: true,
		}, {
			name: "When the Deployment is gone, it should not be complete", before: true, message: "the Deployment is being made",
		}, {
			name: "When the Deployment controller complains, it should say what",
			live: deployment("new", func(d *appsv1.Deployment) {
				d.Status.UpdatedReplicas = 0
				d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "quota exceeded"}}
			}),
			message: "0 of 2 replicas are updated; quota exceeded",
		}, {
			name:    "When a pod is in trouble, it should say what for",
			live:    deployment("new", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }),
			trouble: "Pod karpenter-x: ImagePullBackOff: not found",
			message: "0 of 2 updated replicas are available; Pod karpenter-x: ImagePullBackOff: not found",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			component := &v1beta1.ControlPlaneComponent{}
			if test.before {
				set(component, v1beta1.RolloutComplete, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
			}
			setRollout(component, test.live, test.desired, test.pods, test.trouble)
			c := meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete)
			if c == nil || (c.Status == metav1.ConditionTrue) != test.done || c.Message != test.message {
				t.Errorf("got %+v", c)
			}
		})
	}
}

func TestSetReady(t *testing.T) {
	condition := func(conditionType string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: status, Reason: reason, Message: "of " + conditionType}
	}
	rolledOut := condition(v1beta1.RolloutComplete, metav1.ConditionTrue, v1beta1.AsExpectedReason)
	rolling := condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason)
	available := condition(v1beta1.Available, metav1.ConditionTrue, v1beta1.AsExpectedReason)
	for _, test := range []struct {
		name       string
		conditions []metav1.Condition
		status     metav1.ConditionStatus
		reason     string
		message    string
	}{
		{"When it is rolled out and available, it should be ready", []metav1.Condition{rolledOut, available},
			metav1.ConditionTrue, v1beta1.AsExpectedReason, ""},
		{"When a rollout goes on while old replicas serve, it should not be ready", []metav1.Condition{rolling, available},
			metav1.ConditionFalse, v1beta1.RollingOutReason, "of RolloutComplete"},
		{"When no replica serves after a rollout, it should not be ready",
			[]metav1.Condition{rolledOut, condition(v1beta1.Available, metav1.ConditionFalse, v1beta1.ReplicasUnavailableReason)},
			metav1.ConditionFalse, v1beta1.ReplicasUnavailableReason, "of Available"},
		{"When it is paused amid a rollout, it should say that it is paused",
			[]metav1.Condition{rolling, condition(v1beta1.Available, metav1.ConditionFalse, v1beta1.PausedReason)},
			metav1.ConditionFalse, v1beta1.PausedReason, "of Available"},
		{"When it is asleep amid a rollout, it should say that it is asleep",
			[]metav1.Condition{rolling, condition(v1beta1.Available, metav1.ConditionFalse, v1beta1.AsleepReason)},
			metav1.ConditionFalse, v1beta1.AsleepReason, "of Available"},
		{"When nothing is known yet, it should not be ready", nil,
			metav1.ConditionFalse, v1beta1.RollingOutReason, "the Deployment is being made"},
	} {
		t.Run(test.name, func(t *testing.T) {
			component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
			component.Status.Conditions = test.conditions
			setReady(component)
			ready := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Ready)
			if ready == nil || ready.Status != test.status || ready.Reason != test.reason || ready.Message != test.message {
				t.Errorf("got %+v", ready)
			}
			if component.Status.ObservedGeneration != 3 {
				t.Errorf("it observed generation %d", component.Status.ObservedGeneration)
			}
		})
	}
}

func TestSetAvailable(t *testing.T) {
	for _, test := range []struct {
		name  string
		live  *appsv1.Deployment
		sleep scope.Sleep
		want  string
	}{
		{name: "When one replica serves, it should be available", live: deployment("a", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 }), want: v1beta1.AsExpectedReason},
		{name: "When none serves, it should not be available", live: deployment("a", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }), want: v1beta1.ReplicasUnavailableReason},
		{name: "When there is no Deployment, it should not be available", want: v1beta1.DeploymentNotFoundReason},
		{name: "When the cluster falls asleep, it should be available", live: deployment("a", nil), sleep: scope.Sleep{Until: "later"}, want: v1beta1.AsExpectedReason},
		{name: "When the cluster is asleep, it should not be available for that", live: deployment("a", nil), sleep: scope.Sleep{Until: "later", Asleep: true}, want: v1beta1.AsleepReason},
	} {
		t.Run(test.name, func(t *testing.T) {
			component := &v1beta1.ControlPlaneComponent{}
			setAvailable(component, test.live, "", test.sleep)
			if c := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available); c == nil || c.Reason != test.want {
				t.Errorf("got %+v", c)
			}
		})
	}

	for _, reason := range []string{v1beta1.PausedReason, v1beta1.AsleepReason} {
		t.Run("When it is "+reason+" no more, that time should not count as an outage", func(t *testing.T) {
			component := &v1beta1.ControlPlaneComponent{Status: v1beta1.ControlPlaneComponentStatus{Conditions: []metav1.Condition{{
				Type: v1beta1.Available, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(0, 0)),
			}}}}
			setAvailable(component, deployment("a", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }), "", scope.Sleep{})
			if c := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available); time.Since(c.LastTransitionTime.Time) > time.Hour {
				t.Errorf("got %+v", c)
			}
		})
	}
}

func TestPodTold(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*corev1.Pod)
		want   bool
	}{
		{name: "When only its readiness changes, it should not pass: the Deployment reports it", change: func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}},
		{name: "When its image changes, it should pass", change: func(p *corev1.Pod) { p.Spec.Containers[1].Image = "evil" }, want: true},
		{name: "When it begins to end, it should pass", change: ending, want: true},
		{name: "When it is evicted, it should pass", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, want: true},
		{name: "When it comes to be in trouble, it should pass", change: func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
		}, want: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, after := pod("new", nil), pod("new", test.change)
			for _, p := range []*corev1.Pod{&before, &after} {
				p.Spec.NodeName = "worker"
				if _, err := ShrinkPod(p); err != nil || p.Spec.NodeName != "" {
					t.Fatalf("shrinking: %v, %+v", err, p.Spec)
				}
			}
			if got := PodChanged().Update(event.UpdateEvent{ObjectOld: &before, ObjectNew: &after}); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
	t.Run("When it comes or goes, it should pass", func(t *testing.T) {
		p := pod("new", nil)
		if !PodChanged().Create(event.CreateEvent{Object: &p}) || !PodChanged().Delete(event.DeleteEvent{Object: &p}) {
			t.Error("it doesn't")
		}
	})
}
