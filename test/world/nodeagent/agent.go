// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Config says what an agent needs. Management, NodeName and Dir are required.
type Config struct {
	// Management reaches the management cluster, with the rights of a node at least. Its server and CA are also what pods
	// are given.
	Management *rest.Config
	// NodeName names the Node.
	NodeName string
	// Dir holds images, volumes and logs. One agent at a time uses it; the next one goes on where it ended.
	Dir string
	// Labels are added to the Node's.
	Labels map[string]string
	// Capacity overrides what the machine has, per resource: requests are counted, not enforced.
	Capacity corev1.ResourceList
	// Version is the kubelet version to report; default: the API server's.
	Version string
	// BackOffBase is the first delay before a crashed container or a failed pull is tried again, doubled up to BackOffMax.
	// Defaults: the kubelet's 10 s and 5 min.
	BackOffBase, BackOffMax time.Duration
	// StopGrace bounds what containers get when the agent stops. Default 10 s.
	StopGrace time.Duration
	// LogClientCA, PEM, turns kubectl logs on: who asks must hold a certificate signed by it, as the API server does with
	// --kubelet-client-certificate.
	LogClientCA []byte
	// Logger says what changes: containers starting and ending, and what hinders them.
	Logger logr.Logger
}

func (c *Config) complete() error {
	var errs []error
	if c.Management == nil {
		errs = append(errs, errors.New("no Management"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("no NodeName"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("no Dir"))
	}
	if c.BackOffBase <= 0 {
		c.BackOffBase = 10 * time.Second
	}
	if c.BackOffMax <= 0 {
		c.BackOffMax = 5 * time.Minute
	}
	if c.StopGrace <= 0 {
		c.StopGrace = 10 * time.Second
	}
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	return errors.Join(errs...)
}

// Agent is a running node agent.
type Agent struct {
	client      kubernetes.Interface
	nodeName    string
	dir         string
	log         logr.Logger
	labels      map[string]string
	allocatable corev1.ResourceList
	version     string
	bootID      string
	backoff     backoff
	stopGrace   time.Duration
	logPort     int32

	// server and ca are how pods reach the management cluster; clusterEnv is what every container gets.
	server     string
	ca         []byte
	clusterEnv map[string]string

	images      *imageStore
	objects     *objectCache
	ports       portPool
	spawner     *spawner
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
	lock        *os.File

	// cancel ends the watch and the heartbeat; background waits for both.
	cancel     context.CancelFunc
	background sync.WaitGroup
	closers    []func()
	stopOnce   sync.Once
	stopped    chan struct{}
	stopErr    error

	mu       sync.Mutex
	workers  map[types.UID]*worker
	stopping bool
}

// Process is a running container.
type Process struct {
	Pod       types.NamespacedName
	UID       types.UID
	Container string
	PID       int
	// Restarts counts the runs before this one.
	Restarts int32
	// Ports maps the pod's container ports to ports of this machine.
	Ports map[int32]int32
	// Log is the file that this run writes to.
	Log string
}

// Start registers the node and runs the pods bound to it, until Stop is called or the context ends, which stops the
// agent as Stop does. It returns once the Node is ready and the pods are known.
func Start(ctx context.Context, config Config) (*Agent, error) {
	if err := config.complete(); err != nil {
		return nil, fmt.Errorf("node agent configuration: %w", err)
	}
	a := &Agent{
		nodeName: config.NodeName, log: config.Logger, labels: config.Labels, stopGrace: config.StopGrace,
		allocatable: capacity(config.Capacity), version: config.Version, bootID: string(uuid.NewUUID()),
		backoff: backoff{base: config.BackOffBase, maximum: config.BackOffMax, reset: 2 * config.BackOffMax},
		stopped: make(chan struct{}), workers: map[types.UID]*worker{},
	}
	if err := a.open(config); err != nil {
		a.close()
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.cancel = cancel
	if err := a.start(ctx, run); err != nil {
		cancel()
		a.background.Wait()
		a.close()
		return nil, err
	}
	go func() {
		select {
		case <-ctx.Done():
			_ = a.Stop(context.WithoutCancel(ctx))
		case <-a.stopped:
		}
	}()
	return a, nil
}

// open prepares everything that needs no API server.
func (a *Agent) open(config Config) error {
	var err error
	if a.dir, err = filepath.Abs(config.Dir); err != nil {
		return fmt.Errorf("node agent directory: %w", err)
	}
	if err := a.openDir(); err != nil {
		return err
	}
	management := rest.CopyConfig(config.Management)
	management.QPS, management.Burst = 200, 400
	if a.client, err = kubernetes.NewForConfig(management); err != nil {
		return fmt.Errorf("making a management client: %w", err)
	}
	if err := a.describeCluster(management); err != nil {
		return err
	}
	if a.images, err = newImageStore(filepath.Join(a.dir, "images")); err != nil {
		return err
	}
	a.objects = newObjectCache(a.client)
	a.spawner = newSpawner()
	a.closers = append(a.closers, a.spawner.close)
	a.broadcaster = record.NewBroadcaster()
	a.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
	a.recorder = a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "nodeagent", Host: a.nodeName})
	a.closers = append(a.closers, a.broadcaster.Shutdown)
	return a.serveLogs(config.LogClientCA)
}

// openDir makes the directory ours alone, and ends what an earlier agent left in it.
func (a *Agent) openDir() error {
	for _, dir := range []string{a.dir, filepath.Join(a.dir, "pods"), filepath.Join(a.dir, "logs")} {
		if err := makeDir(dir, 0o755); err != nil {
			return fmt.Errorf("making the node agent's directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(a.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the node agent's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return fmt.Errorf("another node agent uses %s: %w", a.dir, err)
	}
	a.lock = lock
	if found := killMarked(dirMarker, a.dir); found > 0 {
		a.log.Info("Ended processes that an earlier node agent left", "count", found)
	}
	return nil
}

// describeCluster works out what pods are told of the management cluster.
func (a *Agent) describeCluster(management *rest.Config) error {
	server, _, err := rest.DefaultServerUrlFor(management)
	if err != nil {
		return fmt.Errorf("reading the management cluster's address: %w", err)
	}
	port := server.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[server.Scheme]
	}
	a.server = (&url.URL{Scheme: server.Scheme, Host: net.JoinHostPort(server.Hostname(), port), Path: server.Path}).String()
	a.clusterEnv = map[string]string{
		"KUBERNETES_SERVICE_HOST": server.Hostname(), "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port,
	}
	a.ca = management.CAData
	if len(a.ca) == 0 && management.CAFile != "" {
		if a.ca, err = os.ReadFile(management.CAFile); err != nil {
			return fmt.Errorf("reading the management cluster's CA: %w", err)
		}
	}
	return nil
}

// start registers the node and begins to watch. The first context bounds the start, the second what goes on.
func (a *Agent) start(ctx, run context.Context) error {
	if a.version == "" {
		version, err := a.client.Discovery().ServerVersion()
		if err != nil {
			return fmt.Errorf("reading the management cluster's version: %w", err)
		}
		a.version = version.GitVersion
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = a.registerNode(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(last, err)
	}
	a.background.Go(func() { a.heartbeat(run) })
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(a.client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll,
			fields.OneTermEqualSelector("spec.nodeName", a.nodeName)),
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { a.dispatch(object.(*corev1.Pod)) },
			UpdateFunc: func(_, object any) { a.dispatch(object.(*corev1.Pod)) },
			DeleteFunc: a.forget,
		},
	})
	a.background.Go(func() { controller.RunWithContext(run) })
	select {
	case <-controller.HasSyncedChecker().Done():
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of pods: %w", ctx.Err())
	}
	a.removeStaleDirs(store)
	a.log.Info("Node ready", "Node", a.nodeName, "dir", a.dir)
	return nil
}

// removeStaleDirs removes what pods left that vanished while no agent ran.
func (a *Agent) removeStaleDirs(store cache.Store) {
	known := map[string]bool{}
	for _, object := range store.List() {
		known[string(object.(*corev1.Pod).UID)] = true
	}
	entries, _ := os.ReadDir(filepath.Join(a.dir, "pods"))
	for _, entry := range entries {
		a.mu.Lock()
		_, runs := a.workers[types.UID(entry.Name())]
		a.mu.Unlock()
		if !known[entry.Name()] && !runs {
			_ = os.RemoveAll(filepath.Join(a.dir, "pods", entry.Name()))
		}
	}
}

// dispatch gives a pod's version to its worker.
func (a *Agent) dispatch(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w, ok := a.workers[pod.UID]
	if ok {
		w.observe(pod)
		return
	}
	if a.stopping {
		return
	}
	w = newWorker(a, pod)
	a.workers[pod.UID] = w
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		defer cancel()
		w.run(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.workers, w.uid)
	}()
}

func (a *Agent) forget(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w, ok := a.workers[pod.UID]; ok {
		w.forget()
	}
}

// Stop ends every container, each with its grace bounded by Config.StopGrace and by the context, reports the node not
// ready as far as the API server answers, and returns when no process is left. The error tells of a container that
// outlived its SIGKILL.
func (a *Agent) Stop(ctx context.Context) error {
	a.stopOnce.Do(func() {
		a.stopErr = a.stop(ctx)
		close(a.stopped)
	})
	<-a.stopped
	return a.stopErr
}

func (a *Agent) stop(ctx context.Context) error {
	a.log.Info("Stopping the node agent", "Node", a.nodeName)
	deadline := time.Now().Add(a.stopGrace)
	if until, ok := ctx.Deadline(); ok && until.Before(deadline) {
		deadline = until
	}
	a.mu.Lock()
	a.stopping = true
	workers := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		workers = append(workers, w)
	}
	a.mu.Unlock()
	report, cancelReport := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancelReport()
	if err := a.reportNode(report, false); err != nil {
		a.log.Info("The node can't be reported as stopped", "cause", err.Error())
	}
	a.cancel()
	for _, w := range workers {
		w.drain(deadline)
	}
	// After the deadline come SIGKILL and the last status; an API server that is gone may not hold us up.
	last := time.NewTimer(time.Until(deadline) + 5*time.Second)
	defer last.Stop()
	var errs []error
	for _, w := range workers {
		select {
		case <-w.done:
		case <-ctx.Done():
			w.drain(time.Now())
			w.cancel()
			errs = append(errs, a.waitFor(w))
		case <-last.C:
			w.cancel()
			errs = append(errs, a.waitFor(w))
		}
	}
	a.background.Wait()
	a.close()
	return errors.Join(errs...)
}

// waitFor gives a worker that must end now a last second.
func (a *Agent) waitFor(w *worker) error {
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-w.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("pod %s: containers didn't end", w.key)
	}
}

// close lets go of what open took.
func (a *Agent) close() {
	for _, closer := range slices.Backward(a.closers) {
		closer()
	}
	if a.lock != nil {
		_ = killMarked(dirMarker, a.dir)
		_ = a.lock.Close()
	}
}

// Processes lists the running containers, by pod and container.
func (a *Agent) Processes() []Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Process
	for _, w := range a.workers {
		w.mu.Lock()
		all = append(all, w.processes...)
		w.mu.Unlock()
	}
	slices.SortFunc(all, func(left, right Process) int {
		return cmp.Or(cmp.Compare(left.Pod.String(), right.Pod.String()), cmp.Compare(left.Container, right.Container))
	})
	return all
}

// Kill sends SIGKILL to a pod's container, as a fault, and returns when the process has ended. The pod's restart policy
// decides what follows.
func (a *Agent) Kill(ctx context.Context, pod types.NamespacedName, container string) error {
	handle := a.handle(pod, container)
	if handle == nil {
		return fmt.Errorf("container %s of pod %s isn't running", container, pod)
	}
	handle.kill()
	select {
	case <-handle.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for container %s of pod %s to end: %w", container, pod, ctx.Err())
	}
}

func (a *Agent) handle(pod types.NamespacedName, container string) *process {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		if w.key != pod {
			continue
		}
		w.mu.Lock()
		found := w.handles[container]
		w.mu.Unlock()
		if found != nil && !found.ended() {
			return found
		}
	}
	return nil
}

// LogPath is the log of a container's newest run, which may be over, as may the pod; empty if there is none.
func (a *Agent) LogPath(pod types.NamespacedName, container string) string {
	if runs := a.runsOf(pod, container); len(runs) > 0 {
		return runs[0]
	}
	return ""
}

// Port is the port of this machine behind a container port of a running pod.
func (a *Agent) Port(pod types.NamespacedName, containerPort int32) (int32, error) {
	for _, process := range a.Processes() {
		if port, ok := process.Ports[containerPort]; ok && process.Pod == pod {
			return port, nil
		}
	}
	return 0, errors.New("pod " + pod.String() + " has no running container with port " + strconv.Itoa(int(containerPort)))
}
