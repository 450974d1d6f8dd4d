// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/test/world/process"
)

// Reasons of container states, as the kubelet gives them.
const (
	reasonContainerCreating = "ContainerCreating"
	reasonCrashLoopBackOff  = "CrashLoopBackOff"
	reasonConfigError       = "CreateContainerConfigError"
	reasonImagePullBackOff  = "ImagePullBackOff"
	reasonCompleted         = "Completed"
	reasonError             = "Error"
	reasonStartError        = "StartError"
)

// What a container's back-off delays.
const (
	runBackOff  = "run"
	pullBackOff = "pull"
)

// exitNotStarted is the exit code of a container whose program couldn't be started.
const exitNotStarted = 128

// container is a pod's container, over all its runs. Only the pod's goroutine uses it.
type container struct {
	worker *worker
	spec   *corev1.Container // the newest

	pull    pull
	running *run
	// restarts counts the runs after the first.
	restarts int32
	ranOnce  bool
	// terminated is the newest ended run, previous the one before.
	terminated, previous *corev1.ContainerStateTerminated
	imageID              string
	// finished is the end of the newest ended run, and backoff delays the next run and the next pull.
	finished time.Time
	backoff  *flowcontrol.Backoff
	// reason and message say what a container that isn't running waits for; empty once it has ended for good.
	reason, message string
}

// run is one run of a container.
type run struct {
	*process.Child
	spec     *corev1.Container
	prober   *prober
	stopping bool
}

// wait notes what the container waits for, and wakes the pod's goroutine then (the zero time: on a change).
func (c *container) wait(reason, message string, until time.Time) {
	c.reason, c.message = reason, message
	c.worker.at(until)
}

// collect notes the end of a run.
func (c *container) collect() {
	if c.running == nil || !c.running.Ended() {
		return
	}
	ended, exit := c.running, c.running.Exit()
	c.running = nil
	ended.prober.stop()
	terminated := &corev1.ContainerStateTerminated{
		ExitCode: exit.Code, Signal: exit.Signal, Reason: reasonCompleted,
		StartedAt:   metav1.NewTime(ended.Started).Rfc3339Copy(),
		FinishedAt:  metav1.NewTime(exit.Finished).Rfc3339Copy(),
		ContainerID: containerID(ended.PID),
	}
	if terminated.ExitCode != 0 {
		terminated.Reason = reasonError
		if ended.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
			terminated.Message, _ = process.Tail(c.worker.logFile(c.spec.Name, c.restarts), 80, 2048)
		}
	}
	c.worker.log.Info("Container ended", "container", c.spec.Name, "exitCode", terminated.ExitCode, "signal", terminated.Signal,
		"ran", exit.Finished.Sub(ended.Started).Round(time.Millisecond).String())
	c.ended(terminated, exit.Finished)
}

// ended notes a run's end.
func (c *container) ended(terminated *corev1.ContainerStateTerminated, finished time.Time) {
	c.previous, c.terminated, c.finished = c.terminated, terminated, finished
	c.reason, c.message = "", ""
	c.pull.img = nil // imagePullPolicy speaks of every run
}

// ensure moves the container towards running, a step at a time.
func (c *container) ensure(ctx context.Context, pod *corev1.Pod) {
	if c.running != nil {
		c.check(pod)
		return
	}
	if c.terminated != nil && c.backoff.IsInBackOffSince(runBackOff, c.finished) {
		delay := c.backoff.Get(runBackOff)
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", delay, c.spec.Name, pod.Name, pod.Namespace, pod.UID)
		if c.reason != reasonCrashLoopBackOff {
			c.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)", c.spec.Name, pod.Name, pod.Namespace, pod.UID)
		}
		c.wait(reasonCrashLoopBackOff, message, c.finished.Add(delay))
		return
	}
	img := c.image(ctx, pod)
	if img == nil {
		return
	}
	c.imageID = img.id
	if err := mayRun(pod, c.spec, img); err != nil {
		c.failed(err)
		c.wait(reasonConfigError, err.Error(), time.Time{})
		return
	}
	if c.terminated != nil { // the first restart is at once
		c.backoff.Next(runBackOff, c.finished)
	}
	if err := c.start(pod, img); err != nil {
		c.failed(err)
		now := metav1.Now().Rfc3339Copy()
		c.ended(&corev1.ContainerStateTerminated{ExitCode: exitNotStarted, Reason: reasonStartError, Message: err.Error(), StartedAt: now, FinishedAt: now}, time.Now())
		c.restarts, c.ranOnce = c.nextRestart(), true
		c.wait(reasonCrashLoopBackOff, err.Error(), c.finished.Add(c.backoff.Get(runBackOff)))
		return
	}
	c.reason, c.message = "", ""
}

func (c *container) failed(err error) {
	if c.message != err.Error() {
		c.event(corev1.EventTypeWarning, "Failed", "Error: %s", err)
		c.worker.log.Info("Container can't start", "container", c.spec.Name, "cause", err.Error())
	}
}

// mayRun is the kubelet's refusal of a container that must not run as root but would. Here all run as the agent's user.
func mayRun(pod *corev1.Pod, container *corev1.Container, img *image) error {
	of, own := ptr.Deref(pod.Spec.SecurityContext, corev1.PodSecurityContext{}), ptr.Deref(container.SecurityContext, corev1.SecurityContext{})
	nonRoot := ptr.Deref(of.RunAsNonRoot, false)
	if own.RunAsNonRoot != nil {
		nonRoot = *own.RunAsNonRoot
	}
	user, _, _ := strings.Cut(img.config.Config.User, ":")
	for _, wish := range []*int64{of.RunAsUser, own.RunAsUser} {
		if wish != nil {
			user = fmt.Sprint(*wish)
		}
	}
	switch {
	case nonRoot && (user == "" || user == "0"):
		return fmt.Errorf("container has runAsNonRoot and image will run as root")
	case nonRoot && strings.Trim(user, "0123456789") != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", user)
	}
	return nil
}

// check looks after a running container.
func (c *container) check(pod *corev1.Pod) {
	switch {
	case c.running.stopping:
	case c.running.prober.unhealthy():
		c.event(corev1.EventTypeNormal, "Killing", "Container %s failed liveness probe, will be restarted", c.spec.Name)
		c.stop(time.Now().Add(podGrace(pod)))
	case c.running.spec.Image != c.spec.Image:
		c.event(corev1.EventTypeNormal, "Killing", "Container %s definition changed, will be restarted", c.spec.Name)
		c.stop(time.Now().Add(podGrace(pod)))
	}
}

func podGrace(pod *corev1.Pod) time.Duration {
	return time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
}

// stop ends the run: SIGTERM, and SIGKILL at the deadline, which a later call can only bring forward.
func (c *container) stop(deadline time.Time) {
	c.running.stopping = true
	c.running.Terminate(deadline)
}

func (c *container) nextRestart() int32 {
	if c.ranOnce {
		return c.restarts + 1
	}
	return c.restarts
}

// start begins a run.
func (c *container) start(pod *corev1.Pod, img *image) error {
	w := c.worker
	if err := w.ports.assign(w.agent.Ports, c.spec); err != nil {
		return err
	}
	cmd, err := c.command(pod, img)
	if err != nil {
		return err
	}
	restarts := c.nextRestart()
	output, err := w.openLog(c.spec.Name, restarts)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	c.event(corev1.EventTypeNormal, "Created", "Container created")
	child, err := w.agent.spawner.Start(cmd)
	if err != nil {
		return err
	}
	c.restarts, c.ranOnce = restarts, true
	c.running = &run{Child: child, spec: c.spec.DeepCopy()}
	unhealthy := c.eventFunc(corev1.EventTypeWarning, "Unhealthy")
	c.running.prober = newProber(c.running.spec, w.ports, child.Started, w.wake, func(kind probeKind, err error) {
		if !child.Ended() {
			unhealthy("%s probe failed: %v", kind, err)
		}
	})
	c.event(corev1.EventTypeNormal, "Started", "Container started")
	w.log.Info("Container started", "container", c.spec.Name, "pid", child.PID, "restarts", restarts)
	go func() {
		<-child.Done()
		w.wake()
	}()
	return nil
}

// status reports the container.
func (c *container) status() corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: c.imageID, RestartCount: c.restarts, Started: ptr.To(c.running != nil)}
	switch {
	case c.running != nil:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.running.Started).Rfc3339Copy()}
		status.LastTerminationState.Terminated = c.terminated
		status.Ready = c.running.prober.ready()
		status.ContainerID = containerID(c.running.PID)
	case c.reason != "":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
		status.LastTerminationState.Terminated = c.terminated
	case c.terminated != nil:
		status.State.Terminated = c.terminated
		status.LastTerminationState.Terminated = c.previous
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonContainerCreating}
	}
	if c.running == nil && c.terminated != nil {
		status.ContainerID = c.terminated.ContainerID
	}
	return status
}

func (c *container) event(kind, reason, message string, args ...any) {
	c.eventFunc(kind, reason)(message, args...)
}

// eventFunc binds an event to the container, for goroutines that outlive what the container now is.
func (c *container) eventFunc(kind, reason string) func(message string, args ...any) {
	pod := c.worker.current()
	reference := &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: fmt.Sprintf("spec.containers{%s}", c.spec.Name),
	}
	recorder := c.worker.agent.recorder
	return func(message string, args ...any) { recorder.Eventf(reference, kind, reason, message, args...) }
}

func containerID(pid int) string { return fmt.Sprintf("process://%d", pid) }
