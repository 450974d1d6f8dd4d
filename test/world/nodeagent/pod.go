// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"
)

const (
	// retryPeriod is the pause before a write to the API server, or a mount, is retried.
	retryPeriod = time.Second
	// nodeGracePeriod is the grace period of containers whose pod is gone from the API server.
	nodeGracePeriod = 2 * time.Second
)

// worker runs one pod. Its goroutine compares, at every wake-up, what should be with what is, and takes the next steps;
// whatever takes long happens elsewhere and wakes it. Fields below mu are shared, all others are the goroutine's.
type worker struct {
	agent *Agent
	log   logr.Logger
	key   types.NamespacedName
	uid   types.UID
	dir   string
	// cancel ends what the worker waits for.
	cancel context.CancelFunc

	wakeUp  chan struct{}
	next    time.Time // the next reconciliation without a wake-up
	started time.Time
	objects *objects
	volumes *volumes
	ports   podPorts
	pulls   sync.WaitGroup
	// unsupported is why the pod never starts; empty if the agent supports it.
	unsupported string
	container   *container

	mounted    bool
	mountError string
	stopBy     time.Time
	done       chan struct{}

	mu sync.Mutex
	// pod is the newest version that was seen, from the watch or in an answer.
	pod      *corev1.Pod
	gone     bool // from the API server
	draining *time.Time
	running  *Process
}

func newWorker(agent *Agent, pod *corev1.Pod, cancel context.CancelFunc) *worker {
	w := &worker{
		agent: agent, pod: pod, uid: pod.UID, cancel: cancel,
		key:     types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		dir:     filepath.Join(agent.Dir, "pods", string(pod.UID)),
		wakeUp:  make(chan struct{}, 1),
		started: time.Now(), ports: podPorts{}, done: make(chan struct{}),
		unsupported: unsupported(pod),
	}
	w.log = agent.Logger.WithValues("Pod", w.key.String())
	w.objects = &objects{client: agent.client, namespace: pod.Namespace, changed: w.wake, watches: map[string]objectWatch{}}
	w.volumes = &volumes{
		dir: filepath.Join(w.dir, "volumes"), objects: w.objects, written: map[string]map[string]file{},
		tokens: &tokens{client: agent.client, now: time.Now, kept: map[string]token{}},
	}
	w.container = &container{worker: w, spec: &pod.Spec.Containers[0], backoff: flowcontrol.NewBackOff(agent.BackOffBase, agent.BackOffMax)}
	if w.unsupported != "" {
		agent.recorder.Event(pod, corev1.EventTypeWarning, reasonUnsupported, w.unsupported)
		w.log.Info("Pod can't run here", "cause", w.unsupported)
	}
	return w
}

// wake makes the worker look again soon.
func (w *worker) wake() {
	select {
	case w.wakeUp <- struct{}{}:
	default:
	}
}

// at makes the worker look again at a time; the zero time is none.
func (w *worker) at(when time.Time) {
	if !when.IsZero() && (w.next.IsZero() || when.Before(w.next)) {
		w.next = when
	}
}

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// observe takes a version of the pod, unless a newer one is known.
func (w *worker) observe(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, w.pod.ResourceVersion); err != nil || order >= 0 {
		w.pod = pod
	}
	w.wake()
}

// forget: the API server no longer has the pod.
func (w *worker) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	w.wake()
}

// drain ends the container by a deadline and leaves the pod's object alone: the agent stops.
func (w *worker) drain(deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining = &deadline
	w.cancel()
	w.wake()
}

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.wakeUp:
		case <-timer.C:
		}
		w.next = time.Time{}
		if w.sync(ctx) {
			return
		}
		w.publishProcess()
		timer.Stop()
		if !w.next.IsZero() {
			timer.Reset(max(time.Until(w.next), 0))
		}
	}
}

// close releases everything but the logs.
func (w *worker) close() {
	w.cancel()
	w.pulls.Wait()
	w.objects.stop()
	w.ports.release(w.agent.Ports)
	w.publishProcess()
	if err := os.RemoveAll(w.dir); err != nil {
		w.log.Error(err, "Removing the pod's directory")
	}
}

// sync takes the next steps; it reports whether the pod no longer needs its worker.
func (w *worker) sync(ctx context.Context) (done bool) {
	w.mu.Lock()
	pod, gone, draining := w.pod, w.gone, w.draining
	w.mu.Unlock()
	w.container.spec = &pod.Spec.Containers[0] // the image can change
	w.container.collect()
	deleted := pod.DeletionTimestamp != nil
	if !gone && !deleted && draining == nil && !isTerminal(pod.Status.Phase) {
		w.advance(ctx, pod)
		w.publish(ctx, pod, false)
		return false
	}
	stopped := w.stopContainer(w.deadline(pod, gone, draining))
	if gone || draining != nil {
		return stopped
	}
	published := w.publish(ctx, pod, true)
	return stopped && published && deleted && w.finalize(ctx, pod)
}

// advance brings the pod nearer to running.
func (w *worker) advance(ctx context.Context, pod *corev1.Pod) {
	if w.unsupported != "" {
		w.container.wait(reasonConfigError, w.unsupported, time.Time{})
		return
	}
	if w.mount(ctx, pod) {
		w.container.ensure(ctx, pod)
	}
}

// mount brings the volumes up to date. It reports whether the container may start.
func (w *worker) mount(ctx context.Context, pod *corev1.Pod) bool {
	err := errors.Join(os.MkdirAll(w.volumes.dir, 0o755), os.MkdirAll(w.scratch(), 0o755))
	if err == nil {
		var renew time.Time
		renew, err = w.volumes.mount(ctx, pod)
		w.at(renew)
	}
	if err == nil {
		w.mounted, w.mountError = true, ""
		return true
	}
	if w.mountError != err.Error() {
		w.mountError = err.Error()
		w.agent.recorder.Event(pod, corev1.EventTypeWarning, "FailedMount", w.mountError)
		w.log.Info("Volume can't be mounted", "cause", w.mountError)
	}
	w.at(time.Now().Add(retryPeriod))
	if !w.mounted {
		w.container.wait(reasonContainerCreating, w.mountError, time.Time{})
	}
	return w.mounted // what was mounted once serves on
}

// deadline is the time at which the container of a terminating pod is killed.
func (w *worker) deadline(pod *corev1.Pod, gone bool, draining *time.Time) time.Time {
	now, grace := time.Now(), podGrace(pod)
	if pod.DeletionTimestamp != nil {
		grace = time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
	}
	if gone {
		grace = min(grace, nodeGracePeriod)
	}
	if by := now.Add(grace); w.stopBy.IsZero() || by.Before(w.stopBy) {
		w.stopBy = by
	}
	if draining != nil && draining.Before(w.stopBy) {
		w.stopBy = *draining
	}
	return w.stopBy
}

// stopContainer reports whether the container has ended.
func (w *worker) stopContainer(deadline time.Time) bool {
	c := w.container
	if c.running == nil {
		if c.ranOnce {
			c.reason, c.message = "", "" // it waits for nothing any more
		}
		return true
	}
	if !c.running.stopping {
		c.event(corev1.EventTypeNormal, "Killing", "Stopping container %s", c.spec.Name)
	}
	c.stop(deadline)
	return false
}

// finalize deletes a terminated pod's object for good, as only its node may.
func (w *worker) finalize(ctx context.Context, pod *corev1.Pod) (done bool) {
	err := w.agent.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0),
		Preconditions:      &metav1.Preconditions{UID: &pod.UID},
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		w.log.Info("Pod removed")
		return true
	}
	w.log.Error(err, "Deleting a terminated pod")
	w.at(time.Now().Add(retryPeriod))
	return false
}

// publish writes the pod's status where it differs. Terminating reports that the container doesn't come back. It reports
// whether the API server has the status, or will never need it.
func (w *worker) publish(ctx context.Context, pod *corev1.Pod, terminating bool) bool {
	status := podStatus(pod, observation{
		started: w.started, mounted: w.mounted, terminating: terminating, unsupported: w.unsupported, container: w.container.status(),
	}, time.Now())
	if equality.Semantic.DeepEqual(pod.Status, status) {
		return true
	}
	// The UID makes sure that the patch doesn't hit a namesake.
	before, beforeErr := json.Marshal(corev1.Pod{Status: pod.Status})
	after, afterErr := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: status})
	patch, patchErr := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	err := errors.Join(beforeErr, afterErr, patchErr)
	var updated *corev1.Pod
	if err == nil {
		updated, err = w.agent.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	switch {
	case err == nil:
		w.observe(updated)
		return true
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true // gone, or a namesake has its place; the watch will say so
	}
	w.log.Error(err, "Writing the pod's status")
	w.at(time.Now().Add(retryPeriod))
	return false
}

// publishProcess makes the running process visible to the agent's users.
func (w *worker) publishProcess() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = nil
	if c := w.container; c.running != nil {
		w.running = &Process{
			Pod: w.key, Container: c.spec.Name, PID: c.running.PID, Ports: maps.Clone(w.ports), Log: w.logFile(c.spec.Name, c.restarts),
			child: c.running.Child,
		}
	}
}

// published is the running process, nil where none runs.
func (w *worker) published() *Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}
