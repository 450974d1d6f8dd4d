// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Reasons of container states, as the kubelet gives them.
const (
	reasonContainerCreating = "ContainerCreating"
	reasonPodInitializing   = "PodInitializing"
	reasonCrashLoopBackOff  = "CrashLoopBackOff"
	reasonConfigError       = "CreateContainerConfigError"
	reasonRunError          = "RunContainerError"
	reasonCompleted         = "Completed"
	reasonError             = "Error"
	reasonStartError        = "StartError"
	reasonUnknown           = "ContainerStatusUnknown"
)

// Exit codes that no process gave.
const (
	exitNotStarted = 128
	exitUnknown    = 137
)

// serviceAccountMount is where the API server's admission mounts a pod's service-account token.
const serviceAccountMount = "/var/run/secrets/kubernetes.io/serviceaccount"

type containerKind string

const (
	kindInit    containerKind = "init"
	kindSidecar containerKind = "sidecar"
	kindMain    containerKind = "main"
)

// container is one container of a pod, over all its runs. Only the pod's goroutine uses it.
type container struct {
	worker *worker
	kind   containerKind
	spec   *corev1.Container // the newest

	pull    pull
	running *run
	// restarts counts the runs after the first.
	restarts int32
	ranOnce  bool
	// terminated is the newest ended run, previous the one before.
	terminated, previous *corev1.ContainerStateTerminated
	imageID              string
	backoff              backoff
	notBefore            time.Time
	// reason and message say what a container that isn't running waits for; empty once it has ended for good.
	reason, message string
}

// run is one run of a container.
type run struct {
	*process
	spec     *corev1.Container
	prober   *prober
	handler  handler
	stopping bool
}

// alive tells whether a run is there that hasn't been collected.
func (c *container) alive() bool { return c.running != nil }

// wait notes what the container waits for, and tells the pod's goroutine when to look again (the zero time: on a change).
func (c *container) wait(reason, message string, until time.Time) {
	c.reason, c.message = reason, message
	c.worker.at(until)
}

// collect notes the end of a run.
func (c *container) collect() {
	if c.running == nil || !c.running.ended() {
		return
	}
	ended := c.running
	c.running = nil
	ended.prober.stop()
	terminated := &corev1.ContainerStateTerminated{
		ExitCode: ended.exit.code, Signal: ended.exit.signal, Reason: reasonCompleted,
		StartedAt:   metav1.NewTime(ended.started).Rfc3339Copy(),
		FinishedAt:  metav1.NewTime(ended.exit.finished).Rfc3339Copy(),
		ContainerID: containerID(ended.id),
	}
	if terminated.ExitCode != 0 {
		terminated.Reason = reasonError
		if ended.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
			terminated.Message = tail(c.worker.logFile(c.spec.Name, c.restarts), 80, 2048)
		}
	}
	c.worker.log.Info("Container ended", "container", c.spec.Name, "exitCode", terminated.ExitCode, "signal", terminated.Signal,
		"ran", ended.exit.finished.Sub(ended.started).Round(time.Millisecond).String())
	c.ended(terminated, ended.exit.finished.Sub(ended.started), ended.exit.finished)
}

// ended notes a run's end and when the next may begin.
func (c *container) ended(terminated *corev1.ContainerStateTerminated, ran time.Duration, finished time.Time) {
	c.previous, c.terminated = c.terminated, terminated
	c.reason, c.message = "", ""
	c.notBefore = finished.Add(c.backoff.after(ran))
	c.pull.img = nil // imagePullPolicy speaks of every run
}

// restartable tells whether the restart policy brings an ended container back.
func (c *container) restartable(pod *corev1.Pod) bool {
	switch {
	case c.terminated == nil, c.kind == kindSidecar:
		return true
	case c.kind == kindInit:
		return c.terminated.ExitCode != 0 && pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	case pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return true
	case pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure:
		return c.terminated.ExitCode != 0
	}
	return false
}

// ensure moves the container towards running, a step at a time.
func (c *container) ensure(ctx context.Context, pod *corev1.Pod) {
	if c.running != nil {
		c.check(pod)
		return
	}
	if !c.restartable(pod) {
		c.reason, c.message = "", ""
		return
	}
	if now := time.Now(); c.terminated != nil && now.Before(c.notBefore) {
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
			c.notBefore.Sub(c.terminated.FinishedAt.Time).Round(time.Second), c.spec.Name, pod.Name, pod.Namespace, pod.UID)
		if c.reason != reasonCrashLoopBackOff {
			c.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)", c.spec.Name, pod.Name, pod.Namespace, pod.UID)
		}
		c.wait(reasonCrashLoopBackOff, message, c.notBefore)
		return
	}
	img := c.image(ctx, pod)
	if img == nil {
		return
	}
	c.imageID = img.id
	reason, err := c.start(ctx, pod, img)
	if err == nil {
		c.reason, c.message = "", ""
		return
	}
	if c.reason != reason || c.message != err.Error() {
		c.event(corev1.EventTypeWarning, "Failed", "Error: %s", err)
		c.worker.log.Info("Container can't start", "container", c.spec.Name, "reason", reason, "cause", err.Error())
	}
	if reason == reasonRunError {
		now := metav1.Now().Rfc3339Copy()
		c.ended(&corev1.ContainerStateTerminated{ExitCode: exitNotStarted, Reason: reasonStartError, Message: err.Error(), StartedAt: now, FinishedAt: now}, 0, now.Time)
	}
	// A missing object wakes us when it comes; the timer is for what no watch tells.
	c.wait(reason, err.Error(), time.Now().Add(c.backoff.base))
}

// check looks after a running container.
func (c *container) check(pod *corev1.Pod) {
	_, _, unhealthy := c.running.prober.state()
	switch {
	case c.running.stopping:
	case unhealthy != "":
		c.event(corev1.EventTypeNormal, "Killing", "Container %s failed %s probe, will be restarted", c.spec.Name, strings.ToLower(string(unhealthy)))
		c.stop(time.Now().Add(c.probeGrace(pod, unhealthy)))
	case c.running.spec.Image != c.spec.Image:
		c.event(corev1.EventTypeNormal, "Killing", "Container %s definition changed, will be restarted", c.spec.Name)
		c.stop(time.Now().Add(podGrace(pod)))
	}
}

func podGrace(pod *corev1.Pod) time.Duration {
	return time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
}

func (c *container) probeGrace(pod *corev1.Pod, kind probeKind) time.Duration {
	probe := c.running.spec.LivenessProbe
	if kind == probeStartup {
		probe = c.running.spec.StartupProbe
	}
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return time.Duration(*probe.TerminationGracePeriodSeconds) * time.Second
	}
	return podGrace(pod)
}

// stop ends the run: the preStop hook, SIGTERM, and SIGKILL at the deadline, which a later call can only bring forward.
func (c *container) stop(deadline time.Time) {
	stopped := c.running
	stopped.killBy(deadline)
	if stopped.stopping {
		return
	}
	stopped.stopping = true
	hook := ptr.Deref(stopped.spec.Lifecycle, corev1.Lifecycle{}).PreStop
	if hook == nil {
		stopped.signal(syscall.SIGTERM)
		return
	}
	failed := c.eventFunc(corev1.EventTypeWarning, "FailedPreStopHook")
	go func() {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		go func() {
			select {
			case <-stopped.done:
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := stopped.handler.hook(ctx, hook); err != nil && !stopped.ended() {
			failed("PreStopHook failed: %v", err)
		}
		stopped.signal(syscall.SIGTERM)
	}()
}

// start begins a run. The reason belongs to the error.
func (c *container) start(ctx context.Context, pod *corev1.Pod, img *image) (reason string, err error) {
	w := c.worker
	user, err := containerUser(pod, c.spec, img)
	if err != nil {
		return reasonConfigError, err
	}
	as := c.actualUser(user)
	if as != nil {
		err = w.volumes.grant(as.uid)
	} else {
		err = w.volumes.grant(int64(os.Geteuid()))
	}
	if err != nil {
		return reasonConfigError, err
	}
	if err := w.ports.assign(&w.agent.ports, c.spec); err != nil {
		return reasonRunError, err
	}
	command, err := c.command(ctx, pod, img)
	if err != nil {
		return reasonConfigError, err
	}
	command.user = as
	restarts := c.restarts
	if c.ranOnce {
		restarts++
	}
	output, err := w.openLog(c.spec.Name, restarts)
	if err != nil {
		return reasonRunError, err
	}
	defer output.Close()
	command.output = output
	c.event(corev1.EventTypeNormal, "Created", "Container created")
	c.restarts, c.ranOnce = restarts, true
	process, err := w.agent.spawner.run(command)
	if err != nil {
		return reasonRunError, err
	}
	c.running = &run{process: process, spec: c.spec.DeepCopy()}
	c.running.handler = handler{container: c.running.spec, ports: maps.Clone(w.ports).actual, exec: c.execIn(command)}
	c.startProbes(pod)
	c.event(corev1.EventTypeNormal, "Started", "Container started")
	w.log.Info("Container started", "container", c.spec.Name, "pid", process.pid, "restarts", restarts)
	go func() {
		<-process.done
		w.wake()
	}()
	return "", nil
}

func (c *container) startProbes(pod *corev1.Pod) {
	running, unhealthy := c.running, c.eventFunc(corev1.EventTypeWarning, "Unhealthy")
	running.prober = &prober{
		container: running.spec, started: running.started, changed: c.worker.wake,
		check: running.handler.probe,
		failed: func(kind probeKind, err error) {
			if !running.ended() {
				unhealthy("%s probe failed: %v", kind, err)
			}
		},
	}
	running.prober.start()
	hook := ptr.Deref(running.spec.Lifecycle, corev1.Lifecycle{}).PostStart
	if hook == nil {
		return
	}
	failed, grace := c.eventFunc(corev1.EventTypeWarning, "FailedPostStartHook"), podGrace(pod)
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			<-running.done
			cancel()
		}()
		if err := running.handler.hook(ctx, hook); err != nil && !running.ended() {
			failed("PostStartHook failed: %v", err)
			running.killBy(time.Now().Add(grace))
			running.signal(syscall.SIGTERM)
		}
	}()
}

// actualUser is the user that the container really runs as; nil is the agent's own.
func (c *container) actualUser(wish credential) *credential {
	if os.Geteuid() != 0 || wish.uid == 0 {
		return nil
	}
	if !reachable(c.worker.agent.dir, wish) {
		c.event(corev1.EventTypeWarning, "RunAsUser", "Container %s runs as the node agent's user: user %d can't enter %s", c.spec.Name, wish.uid, c.worker.agent.dir)
		return nil
	}
	return &wish
}

// command works out what to start: the pod's words with references resolved, and ports and paths rewritten.
func (c *container) command(ctx context.Context, pod *corev1.Pod, img *image) (command, error) {
	w := c.worker
	cluster := w.agent.clusterEnv
	env := environment{objects: w.objects, pod: pod, container: c.spec, allocatable: w.agent.allocatable, cluster: cluster}
	own, err := env.build(ctx)
	if err != nil {
		return command{}, err
	}
	visible := env.visible(own)
	mounts, err := w.volumes.mountsOf(pod, c.spec, visible)
	if err != nil {
		return command{}, err
	}
	rewrite := newRewriter(w.ports, mounts)

	result := map[string]string{}
	for _, line := range img.config.Config.Env {
		if name, value, ok := strings.Cut(line, "="); ok {
			result[name] = rewrite.env(value)
		}
	}
	if err := w.hostEnv(pod, rewrite, result); err != nil {
		return command{}, err
	}
	maps.Copy(result, cluster)
	for name, value := range own {
		result[name] = rewrite.env(value)
	}
	result[dirMarker] = w.agent.dir

	argv := expandAll(c.spec.Command, visible)
	args := expandAll(c.spec.Args, visible)
	if len(argv) == 0 {
		argv = img.config.Config.Entrypoint
		if len(args) == 0 {
			args = img.config.Config.Cmd
		}
	}
	argv = append(append([]string{}, argv...), args...)
	if len(argv) == 0 {
		return command{}, fmt.Errorf("no command specified")
	}
	dir := c.spec.WorkingDir
	if dir == "" {
		dir = img.config.Config.WorkingDir
	}
	dir = rewrite.path("/"+strings.Trim(dir, "/"), img.rootfs)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return command{}, fmt.Errorf("making the working directory: %w", err)
	}
	path, err := program(argv[0], dir, result["PATH"], rewrite, img.rootfs)
	if err != nil {
		return command{}, err
	}
	return command{id: newID(), path: path, args: rewrite.args(argv[1:]), env: result, dir: dir}, nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program finds a program in the image, or on a volume.
func program(name, dir, path string, rewrite rewriter, rootfs string) (string, error) {
	if filepath.IsAbs(name) {
		return rewrite.path(filepath.Clean(name), rootfs), nil
	}
	if strings.Contains(name, "/") {
		return filepath.Join(dir, name), nil
	}
	if path == "" {
		path = defaultPath
	}
	for place := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(place) {
			continue
		}
		candidate := rewrite.path(filepath.Join(place, name), rootfs)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// execIn runs a command as the container would: for exec probes and hooks.
func (c *container) execIn(like command) func(ctx context.Context, argv []string) error {
	w, rewrite := c.worker, newRewriter(maps.Clone(c.worker.ports), nil)
	img := c.pull.img
	pod := w.current()
	if mounts, err := w.volumes.mountsOf(pod, c.spec, like.env); err == nil {
		rewrite = newRewriter(rewrite.ports, mounts)
	}
	return func(ctx context.Context, argv []string) error {
		path, err := program(argv[0], like.dir, like.env["PATH"], rewrite, img.rootfs)
		if err != nil {
			return err
		}
		output, err := os.CreateTemp(w.dir, "exec-")
		if err != nil {
			return fmt.Errorf("making a file for the output: %w", err)
		}
		defer func() { _ = os.Remove(output.Name()) }()
		defer output.Close()
		inside := like
		inside.path, inside.args, inside.output = path, rewrite.args(argv[1:]), output
		// Its own ID: what an exec leaves behind is killed at its end, without the container.
		inside.id = newID()
		process, err := w.agent.spawner.run(inside)
		if err != nil {
			return err
		}
		select {
		case <-process.done:
		case <-ctx.Done():
			process.kill()
			<-process.done
			return fmt.Errorf("command %q timed out", argv)
		}
		if process.exit.code != 0 {
			return fmt.Errorf("command %q exited with %d: %s", argv, process.exit.code, tail(output.Name(), 20, 1024))
		}
		return nil
	}
}

// status reports the container.
func (c *container) status() corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: c.imageID, RestartCount: c.restarts, Started: ptr.To(false)}
	switch {
	case c.running != nil:
		started, ready, _ := c.running.prober.state()
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.running.started).Rfc3339Copy()}
		status.LastTerminationState.Terminated = c.terminated
		status.Started, status.Ready = ptr.To(started), ready && c.kind != kindInit
		status.ContainerID = containerID(c.running.id)
	case c.reason != "":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
		status.LastTerminationState.Terminated = c.terminated
	case c.terminated != nil:
		status.State.Terminated = c.terminated
		status.LastTerminationState.Terminated = c.previous
		status.Ready = c.kind == kindInit && c.terminated.ExitCode == 0
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonContainerCreating}
	}
	if c.running == nil && c.terminated != nil {
		status.ContainerID = c.terminated.ContainerID
	}
	return status
}

// adopt takes over what the API server knows of an earlier agent's runs; those ended with that agent.
func (c *container) adopt(statuses []corev1.ContainerStatus) {
	for _, status := range statuses {
		if status.Name != c.spec.Name {
			continue
		}
		c.restarts, c.imageID = status.RestartCount, status.ImageID
		c.terminated = status.State.Terminated
		if c.terminated == nil {
			c.terminated = status.LastTerminationState.Terminated
		}
		if status.State.Running != nil {
			now := metav1.Now().Rfc3339Copy()
			c.previous, c.terminated = c.terminated, &corev1.ContainerStateTerminated{
				ExitCode: exitUnknown, Reason: reasonUnknown, Message: "The container ended with the node agent that ran it",
				StartedAt: status.State.Running.StartedAt, FinishedAt: now, ContainerID: status.ContainerID,
			}
		}
		c.ranOnce = c.terminated != nil
	}
}

func (c *container) event(kind, reason, message string, args ...any) {
	c.eventFunc(kind, reason)(message, args...)
}

// eventFunc binds an event to the container, for goroutines that outlive what the container now is.
func (c *container) eventFunc(kind, reason string) func(message string, args ...any) {
	field := "containers"
	if c.kind != kindMain {
		field = "initContainers"
	}
	pod := c.worker.current()
	reference := &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: fmt.Sprintf("spec.%s{%s}", field, c.spec.Name),
	}
	recorder := c.worker.agent.recorder
	return func(message string, args ...any) { recorder.Eventf(reference, kind, reason, message, args...) }
}

func newID() string {
	var id [32]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func containerID(id string) string { return "process://" + id }
