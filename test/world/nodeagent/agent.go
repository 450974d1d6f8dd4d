// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
)

// Config of Start. Every field but Logger is required.
type Config struct {
	// Management is an administrator's access to the management cluster. Pods get its address and CA.
	Management *rest.Config
	// NodeName names the Node.
	NodeName string
	// Dir holds images, volumes and logs.
	Dir string
	// Ports of the pods.
	Ports *port.Claims
	// LogClientCA, PEM, has signed the client certificate that the API server shows when it requests logs.
	LogClientCA []byte
	// BackOffBase is the first delay before a crashed container or a failed pull is retried; it doubles up to BackOffMax.
	BackOffBase, BackOffMax time.Duration
	// StopGrace is the containers' grace period when the agent stops.
	StopGrace time.Duration
	// Logger logs changes: containers that start and end, and what prevents that.
	Logger logr.Logger
}

// Agent is a running node agent.
type Agent struct {
	Config
	client  kubernetes.Interface
	logPort int32
	// server is the management cluster's API server, and clusterEnv its variables in every container.
	server     *url.URL
	clusterEnv map[string]string

	images   *imageStore
	spawner  *process.Spawner
	recorder record.EventRecorder

	// cancel ends the watch and the heartbeat; background waits for both.
	cancel     context.CancelFunc
	background sync.WaitGroup
	closers    []func()
	stopOnce   sync.Once

	mu       sync.Mutex
	workers  map[types.UID]*worker
	stopping bool
}

// Process is a running container.
type Process struct {
	Pod       types.NamespacedName
	Container string
	PID       int
	// Ports maps the pod's container ports to ports of this machine.
	Ports map[int32]int32
	// Log is the file that this run writes to.
	Log string

	child *process.Child
}

// Start registers the node and runs the pods bound to it until Stop is called; ctx bounds only the start. It returns
// when the Node is ready and the pods are known.
func Start(ctx context.Context, config Config) (*Agent, error) {
	if config.Logger.GetSink() == nil {
		config.Logger = logr.Discard()
	}
	a := &Agent{Config: config, workers: map[types.UID]*worker{}}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.cancel = cancel
	err := a.open()
	if err == nil {
		err = a.start(ctx, run)
	}
	if err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

// open prepares everything that needs no API server.
func (a *Agent) open() error {
	var err error
	if a.Dir, err = filepath.Abs(a.Dir); err != nil {
		return fmt.Errorf("finding the node agent's directory: %w", err)
	}
	management := rest.CopyConfig(a.Management)
	management.QPS, management.Burst = 200, 400
	if a.client, err = kubernetes.NewForConfig(management); err != nil {
		return fmt.Errorf("making a management client: %w", err)
	}
	if a.server, _, err = rest.DefaultServerUrlFor(management); err != nil {
		return fmt.Errorf("reading the management cluster's address: %w", err)
	}
	a.clusterEnv = map[string]string{
		"KUBERNETES_SERVICE_HOST": a.server.Hostname(), "KUBERNETES_SERVICE_PORT": a.server.Port(),
	}
	a.images = &imageStore{dir: filepath.Join(a.Dir, "images"), locks: map[string]*sync.Mutex{}}
	a.spawner = process.NewSpawner()
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
	a.recorder = broadcaster.NewRecorder(clientgoscheme.Scheme, corev1.EventSource{Component: "nodeagent", Host: a.NodeName})
	a.closers = append(a.closers, a.spawner.Close, broadcaster.Shutdown)
	return a.serveLogs()
}

// start registers the node and begins to watch. The first context bounds the start, the second what goes on.
func (a *Agent) start(ctx, run context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = a.heartbeat(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(last, err)
	}
	a.background.Go(func() { a.keepAlive(run) })
	_, controller := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(a.client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll,
			fields.OneTermEqualSelector("spec.nodeName", a.NodeName)),
		ObjectType: &corev1.Pod{},
		Handler: toolscache.ResourceEventHandlerFuncs{
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
	a.Logger.Info("Node ready", "Node", a.NodeName, "dir", a.Dir)
	return nil
}

// dispatch gives a pod's version to its worker.
func (a *Agent) dispatch(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w, ok := a.workers[pod.UID]; ok {
		w.observe(pod)
		return
	}
	if a.stopping {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := newWorker(a, pod, cancel)
	a.workers[pod.UID] = w
	go func() {
		w.run(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.workers, w.uid)
	}()
}

func (a *Agent) forget(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if pod, ok := object.(*corev1.Pod); ok && a.workers[pod.UID] != nil {
		a.workers[pod.UID].forget()
	}
}

// Stop ends every container and returns when no process is left. It leaves the pods' objects as they are.
func (a *Agent) Stop() {
	a.stopOnce.Do(func() {
		deadline := time.Now().Add(a.StopGrace)
		a.mu.Lock()
		a.stopping = true
		workers := slices.Collect(maps.Values(a.workers))
		a.mu.Unlock()
		a.cancel()
		for _, w := range workers {
			w.drain(deadline)
		}
		for _, w := range workers {
			<-w.done
		}
		for _, closer := range slices.Backward(a.closers) {
			closer()
		}
		a.background.Wait()
	})
}

// Processes lists the running containers, by pod.
func (a *Agent) Processes() []Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Process
	for _, w := range a.workers {
		if running := w.published(); running != nil {
			all = append(all, *running)
		}
	}
	slices.SortFunc(all, func(left, right Process) int { return cmp.Compare(left.Pod.String(), right.Pod.String()) })
	return all
}

// Kill sends SIGKILL to a pod's container, as a fault, and returns when the process has ended. The agent restarts it.
func (a *Agent) Kill(ctx context.Context, pod types.NamespacedName, container string) error {
	all := a.Processes()
	i := slices.IndexFunc(all, func(p Process) bool { return p.Pod == pod && p.Container == container && !p.child.Ended() })
	if i < 0 {
		return fmt.Errorf("container %s of pod %s isn't running", container, pod)
	}
	all[i].child.Kill()
	select {
	case <-all[i].child.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for container %s of pod %s to end: %w", container, pod, ctx.Err())
	}
}

// LogPath is the log of a container's newest run, which may be over, as may the pod; empty if there is none.
func (a *Agent) LogPath(pod types.NamespacedName, container string) string {
	if runs := a.runsOf(pod, container); len(runs) > 0 {
		return runs[0]
	}
	return ""
}
