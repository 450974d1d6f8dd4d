// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

const (
	// retryPeriod is the pause before a write to the API server, or a mount, is tried again.
	retryPeriod = time.Second
	// orphanGrace is what containers get whose pod is gone from the API server.
	orphanGrace = 2 * time.Second
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
	next    time.Time // when to look again even if nobody wakes
	started time.Time
	objects *objectUser
	volumes *volumes
	ports   podPorts
	pulls   sync.WaitGroup
	init    []*container
	main    []*container

	mounted    bool
	mountError string
	ended      bool // no container comes back
	// reason and message say why the pod was ended as a whole; empty while it wasn't.
	reason, message string
	stopGrace       time.Duration
	stopBy          time.Time
	done            chan struct{}

	mu sync.Mutex
	// pod is the newest version that was seen, from the watch or in an answer.
	pod       *corev1.Pod
	gone      bool // from the API server
	draining  *time.Time
	processes []Process
	handles   map[string]*process
}

func newWorker(agent *Agent, pod *corev1.Pod) *worker {
	w := &worker{
		agent: agent, pod: pod, uid: pod.UID,
		key:     types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		dir:     filepath.Join(agent.dir, "pods", string(pod.UID)),
		wakeUp:  make(chan struct{}, 1),
		started: time.Now(), ports: podPorts{}, done: make(chan struct{}), handles: map[string]*process{},
	}
	w.log = agent.log.WithValues("Pod", w.key.String())
	w.objects = agent.objects.user(pod.UID, w.wake)
	w.volumes = &volumes{
		dir: filepath.Join(w.dir, "volumes"), objects: w.objects, allocatable: agent.allocatable, owner: -1,
		tokens: &tokens{client: agent.client, now: time.Now},
	}
	for i := range pod.Spec.InitContainers {
		kind := kindInit
		if isSidecar(&pod.Spec.InitContainers[i]) {
			kind = kindSidecar
		}
		w.init = append(w.init, w.newContainer(kind, &pod.Spec.InitContainers[i], pod.Status.InitContainerStatuses))
	}
	for i := range pod.Spec.Containers {
		w.main = append(w.main, w.newContainer(kindMain, &pod.Spec.Containers[i], pod.Status.ContainerStatuses))
	}
	return w
}

func (w *worker) newContainer(kind containerKind, spec *corev1.Container, statuses []corev1.ContainerStatus) *container {
	c := &container{worker: w, kind: kind, spec: spec, backoff: w.agent.backoff}
	c.adopt(statuses)
	return c
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
	if !older(pod, w.pod) {
		w.pod = pod
	}
	w.wake()
}

// older compares resource versions, which order the versions of one object.
func older(a, b *corev1.Pod) bool {
	left, leftErr := strconv.ParseUint(a.ResourceVersion, 10, 64)
	right, rightErr := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return leftErr == nil && rightErr == nil && left < right
}

// forget tells that the API server has the pod no longer.
func (w *worker) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	w.wake()
}

// drain ends the containers, by a deadline, without touching the pod object: the agent stops.
func (w *worker) drain(deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining == nil || deadline.Before(*w.draining) {
		w.draining = &deadline
	}
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
		w.publishProcesses()
		timer.Stop()
		if !w.next.IsZero() {
			timer.Reset(max(time.Until(w.next), 0))
		}
	}
}

// close lets go of everything but the logs.
func (w *worker) close() {
	w.cancel()
	w.pulls.Wait()
	w.agent.objects.release(w.uid)
	w.ports.releaseAll(&w.agent.ports)
	w.mu.Lock()
	w.processes, w.handles = nil, map[string]*process{}
	draining := w.draining != nil
	w.mu.Unlock()
	if !draining { // else the next agent goes on with the pod, and its emptyDirs
		w.removeDir()
	}
}

func (w *worker) removeDir() {
	if err := os.RemoveAll(w.dir); err != nil {
		w.log.Error(err, "Removing the pod's directory")
	}
}

// sync takes the next steps; it tells whether the pod needs its worker no longer.
func (w *worker) sync(ctx context.Context) (done bool) {
	w.mu.Lock()
	pod, gone, draining := w.pod, w.gone, w.draining
	w.mu.Unlock()
	w.takeSpecs(pod)
	for _, c := range w.all() {
		c.collect()
	}
	w.keepDeadline(pod)
	deleted := pod.DeletionTimestamp != nil
	if !gone && !deleted && draining == nil && !w.ended && !isTerminal(pod.Status.Phase) {
		w.advance(ctx, pod)
		w.ended = isTerminal(podPhase(pod, w.observation(false)))
		if !w.ended {
			w.publish(ctx, pod, false)
			return false
		}
	}
	if !w.stopContainers(w.deadline(pod, gone, draining)) {
		if !gone {
			w.publish(ctx, pod, draining == nil)
		}
		return false
	}
	if gone {
		return true
	}
	published := w.publish(ctx, pod, draining == nil)
	switch {
	case deleted:
		return published && w.finalize(ctx, pod)
	case draining != nil:
		return true
	}
	w.unmount()
	return false
}

// keepDeadline ends a pod that has been active for longer than it may.
func (w *worker) keepDeadline(pod *corev1.Pod) {
	if pod.Spec.ActiveDeadlineSeconds == nil || w.ended || isTerminal(pod.Status.Phase) {
		return
	}
	started := w.started
	if pod.Status.StartTime != nil {
		started = pod.Status.StartTime.Time
	}
	over := started.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second)
	if time.Now().Before(over) {
		w.at(over)
		return
	}
	w.ended, w.reason, w.message = true, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	w.agent.recorder.Event(pod, corev1.EventTypeNormal, w.reason, w.message)
}

// takeSpecs follows changes to the pod's containers: of those, only the image can change.
func (w *worker) takeSpecs(pod *corev1.Pod) {
	for i, c := range w.init {
		c.spec = &pod.Spec.InitContainers[i]
	}
	for i, c := range w.main {
		c.spec = &pod.Spec.Containers[i]
	}
}

func (w *worker) all() []*container {
	return append(append([]*container{}, w.init...), w.main...)
}

// advance brings the pod nearer to running.
func (w *worker) advance(ctx context.Context, pod *corev1.Pod) {
	if !w.mount(ctx, pod) {
		return
	}
	for _, c := range w.init {
		if !w.advanceInit(ctx, pod, c) {
			return
		}
	}
	for _, c := range w.main {
		c.ensure(ctx, pod)
	}
}

// advanceInit tells whether the containers after c may start.
func (w *worker) advanceInit(ctx context.Context, pod *corev1.Pod, c *container) bool {
	if c.kind == kindInit && c.running == nil && c.terminated != nil && c.terminated.ExitCode == 0 {
		c.reason, c.message = "", ""
		return true
	}
	c.ensure(ctx, pod)
	if c.kind == kindSidecar && c.running != nil {
		started, _, _ := c.running.prober.state()
		return started
	}
	// A sidecar that is between two runs doesn't hold up containers that run already.
	return c.kind == kindSidecar && c.ranOnce && w.main[0].ranOnce
}

// mount brings the volumes up to date. It tells whether containers may start.
func (w *worker) mount(ctx context.Context, pod *corev1.Pod) bool {
	if err := w.makeDirs(); err != nil {
		w.mountFailed(pod, err)
		return false
	}
	renew, err := w.volumes.mount(ctx, pod)
	w.at(renew)
	if err != nil {
		w.mountFailed(pod, err)
		return w.mounted // what was mounted once serves on
	}
	w.mounted, w.mountError = true, ""
	return true
}

func (w *worker) mountFailed(pod *corev1.Pod, err error) {
	if w.mountError != err.Error() {
		w.mountError = err.Error()
		w.agent.recorder.Event(pod, corev1.EventTypeWarning, "FailedMount", w.mountError)
		w.log.Info("Volume can't be mounted", "cause", w.mountError)
	}
	if !w.mounted {
		for _, c := range w.all() {
			c.wait(c.creating(pod), w.mountError, time.Time{})
		}
	}
	w.at(time.Now().Add(retryPeriod))
}

func (w *worker) makeDirs() error {
	// Other users may pass, not look around; the scratch directory is as /tmp.
	err := errors.Join(makeDir(w.dir, 0o711), makeDir(w.volumes.dir, 0o711), makeDir(w.scratch(), 0o777|os.ModeSticky))
	if err != nil {
		return fmt.Errorf("making the pod's directory: %w", err)
	}
	return nil
}

// makeDir makes a directory with this mode, whatever the umask; one that is there stays as it is.
func makeDir(dir string, mode os.FileMode) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// scratch is the pod's HOME and, without a volume at /tmp, its TMPDIR.
func (w *worker) scratch() string { return filepath.Join(w.dir, "scratch") }

// hostEnv adds what stands in for the files that a container would have.
func (w *worker) hostEnv(pod *corev1.Pod, rewrite rewriter, env map[string]string) error {
	env["HOSTNAME"], env["HOME"], env["TMPDIR"] = pod.Name, w.scratch(), w.scratch()
	if m, ok := rewrite.mountAt("/tmp"); ok {
		env["TMPDIR"] = m.hostPath
	}
	m, ok := rewrite.mountAt(serviceAccountMount)
	if !ok {
		return nil
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["management"] = &clientcmdapi.Cluster{Server: w.agent.server, CertificateAuthorityData: w.agent.ca}
	config.AuthInfos["pod"] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(m.hostPath, "token")}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "management", AuthInfo: "pod", Namespace: pod.Namespace}
	config.CurrentContext = "pod"
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("making the pod's kubeconfig: %w", err)
	}
	env["KUBECONFIG"] = filepath.Join(w.dir, "kubeconfig")
	if err := os.WriteFile(env["KUBECONFIG"], content, 0o644); err != nil {
		return fmt.Errorf("writing the pod's kubeconfig: %w", err)
	}
	return nil
}

// deadline is when the containers of an ending pod are killed.
func (w *worker) deadline(pod *corev1.Pod, gone bool, draining *time.Time) time.Time {
	now, grace := time.Now(), podGrace(pod)
	if pod.DeletionTimestamp != nil {
		grace = time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
	}
	if gone {
		grace = min(grace, orphanGrace)
	}
	if w.stopBy.IsZero() || grace < w.stopGrace {
		by := now.Add(grace)
		if w.stopBy.IsZero() || by.Before(w.stopBy) {
			w.stopBy = by
		}
		w.stopGrace = grace
	}
	if draining != nil && draining.Before(w.stopBy) {
		return *draining
	}
	return w.stopBy
}

// stopContainers ends the main containers, then the sidecars, last one first. It tells whether all have ended.
func (w *worker) stopContainers(deadline time.Time) bool {
	stopping := false
	for _, c := range w.main {
		stopping = w.stopOne(c, deadline) || stopping
	}
	for i := len(w.init) - 1; i >= 0 && !stopping; i-- {
		stopping = w.stopOne(w.init[i], deadline)
	}
	return !stopping
}

func (w *worker) stopOne(c *container, deadline time.Time) (stopping bool) {
	if !c.alive() {
		if c.ranOnce {
			c.reason, c.message = "", "" // it waits for nothing any more
		}
		return false
	}
	if !c.running.stopping {
		c.event(corev1.EventTypeNormal, "Killing", "Stopping container %s", c.spec.Name)
	}
	c.stop(deadline)
	return true
}

// unmount gives back what a pod that has ended needs no longer; its logs and its status stay until it is deleted.
func (w *worker) unmount() {
	w.agent.objects.release(w.uid)
	w.ports.releaseAll(&w.agent.ports)
	w.removeDir()
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

func (w *worker) observation(terminating bool) observation {
	seen := observation{started: w.started, mounted: w.mounted, terminating: terminating, reason: w.reason, message: w.message}
	for _, c := range w.init {
		seen.init = append(seen.init, c.status())
	}
	for _, c := range w.main {
		status := c.status()
		if len(w.init) > 0 && !c.ranOnce && c.reason == "" && status.State.Waiting != nil {
			status.State.Waiting.Reason = reasonPodInitializing
		}
		seen.main = append(seen.main, status)
	}
	return seen
}

// publish writes the pod's status where it differs. Terminating says that no container comes back. It tells whether
// the API server has the status, or will never need it.
func (w *worker) publish(ctx context.Context, pod *corev1.Pod, terminating bool) bool {
	seen := w.observation(terminating)
	status := podStatus(pod, seen, time.Now())
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
		w.mu.Lock()
		if !older(updated, w.pod) {
			w.pod = updated
		}
		w.mu.Unlock()
		return true
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true // gone, or a namesake has its place; the watch will say so
	}
	w.log.Error(err, "Writing the pod's status")
	w.at(time.Now().Add(retryPeriod))
	return false
}

// publishProcesses makes the running processes visible to the agent's users.
func (w *worker) publishProcesses() {
	processes, handles := []Process{}, map[string]*process{}
	for _, c := range w.all() {
		if c.running == nil {
			continue
		}
		processes = append(processes, Process{
			Pod: w.key, UID: w.uid, Container: c.spec.Name, PID: c.running.pid, Restarts: c.restarts,
			Ports: maps.Clone(w.ports), Log: w.logFile(c.spec.Name, c.restarts),
		})
		handles[c.spec.Name] = c.running.process
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes, w.handles = processes, handles
}
