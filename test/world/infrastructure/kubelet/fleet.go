// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs the kubelets of one guest, by kwok: they make their Nodes ready, renew their leases, and start and
// end pods.
//
// It puts kwok's node, lease and pod controllers together by itself, instead of using kwok's own composition, for three
// reasons: a single kubelet can be halted and started again; a kubelet goes on serving its pods when its Node object has
// been deleted, as a real one does; and everything ends when it is stopped.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/informer"
)

const (
	// resync is the interval of full reconciliations. They complete what an outage of the guest's API server interrupted.
	resync = 20 * time.Second
	// leaseDuration is that of a kubelet; leases are renewed four times as often.
	leaseDuration = 40 * time.Second
	parallelism   = 8
	nodeNameIndex = "spec.nodeName"
	// podCIDR is the network of podIPs.
	podCIDR = "10.128.0.0/9"
)

// Config of a Fleet.
type Config struct {
	// Guest reaches the guest cluster. Its rate limits should be off.
	Guest kubernetes.Interface
	// Logger gets warnings and errors.
	Logger logr.Logger
	// Identity holds the Nodes' leases. It should stay the same over restarts.
	Identity string
}

// Fleet is the kubelets of one guest.
type Fleet struct {
	guest      kubernetes.Interface
	nodes      toolscache.SharedIndexInformer
	pods       toolscache.SharedIndexInformer
	leases     toolscache.SharedIndexInformer
	nodeEvents chan informer.Event[*corev1.Node]
	podEvents  chan informer.Event[*corev1.Pod]
	// nodeSync and podSync name the nodes that kwok has to be notified about again, itself and its pods.
	nodeSync workqueue.TypedInterface[string]
	podSync  workqueue.TypedInterface[string]

	// feed keeps the order: once a node was halted, kwok hears no more of it.
	feed    sync.Mutex
	mutex   sync.RWMutex
	running map[string]*controllers.NodeInfo

	feeding     <-chan struct{} // closed when there is nothing more to feed
	stopFeeding context.CancelFunc
	feeders     sync.WaitGroup
	stopKwok    context.CancelFunc
}

// Start starts a fleet without nodes. It doesn't wait for the guest.
func Start(config Config) (*Fleet, error) {
	f := &Fleet{
		guest:      config.Guest,
		nodeEvents: make(chan informer.Event[*corev1.Node]),
		podEvents:  make(chan informer.Event[*corev1.Pod]),
		nodeSync:   workqueue.NewTyped[string](),
		podSync:    workqueue.NewTyped[string](),
		running:    map[string]*controllers.NodeInfo{},
	}
	f.nodes = coreinformers.NewNodeInformer(config.Guest, resync, toolscache.Indexers{})
	f.pods = coreinformers.NewFilteredPodInformer(config.Guest, metav1.NamespaceAll, resync,
		toolscache.Indexers{nodeNameIndex: podNodeName},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		})
	f.leases = coordinationinformers.NewLeaseInformer(config.Guest, corev1.NamespaceNodeLease, 0, toolscache.Indexers{})
	informers := []toolscache.SharedIndexInformer{f.nodes, f.pods, f.leases}
	for _, each := range informers {
		if err := each.SetTransform(stripManagedFields); err != nil {
			return nil, fmt.Errorf("setting an informer's transform: %w", err)
		}
	}
	if _, err := f.nodes.AddEventHandler(handler(f.nodeEvent)); err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	if _, err := f.pods.AddEventHandler(handler(f.podEvent)); err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	kwok, err := f.newKwok(config)
	if err != nil {
		return nil, err
	}

	ctx := klog.NewContext(context.Background(), config.Logger)
	kwokCtx, stopKwok := context.WithCancel(kwoklog.NewContext(ctx, kwoklog.NewLogger(logWriter{config.Logger}, kwoklog.LevelWarn)))
	f.stopKwok = stopKwok
	feeding, stopFeeding := context.WithCancel(ctx)
	f.feeding, f.stopFeeding = feeding.Done(), stopFeeding
	if err := kwok.start(kwokCtx, f.nodeEvents, f.podEvents); err != nil {
		stopKwok()
		f.stopFeeding()
		return nil, err
	}
	for _, each := range informers {
		f.feeders.Go(func() { each.RunWithContext(feeding) })
	}
	f.feeders.Go(func() { f.work(f.nodeSync, f.syncNode) })
	f.feeders.Go(func() { f.work(f.podSync, f.syncPods) })
	return f, nil
}

// Stop stops all kubelets. Nodes and Pods are left as they are. It waits for the watches; kwok's workers end right after, all but
// the three idle goroutines of its queues, which kwok has no means to end.
func (f *Fleet) Stop() {
	f.stopFeeding()
	f.nodeSync.ShutDown()
	f.podSync.ShutDown()
	f.feeders.Wait()
	// kwok's loops hand events on to each other over channels without buffers, so they have to end with nothing on its way:
	// when a loop takes one more event, it is through with those before.
	f.nodeEvents <- informer.Event[*corev1.Node]{Type: informer.Deleted, Object: &corev1.Node{}}
	f.podEvents <- informer.Event[*corev1.Pod]{Type: informer.Deleted, Object: &corev1.Pod{}}
	f.stopKwok()
}

// Run starts the kubelet of a Node, whether that Node exists yet or not. It does nothing when it runs.
func (f *Fleet) Run(node string) {
	f.mutex.Lock()
	_, known := f.running[node]
	if !known {
		f.running[node] = &controllers.NodeInfo{}
	}
	f.mutex.Unlock()
	if !known {
		f.nodeSync.Add(node)
	}
}

// Halt stops the kubelet of a Node dead: no heartbeats, and its Pods stay as they are.
func (f *Fleet) Halt(node string) {
	f.feed.Lock()
	defer f.feed.Unlock()
	f.mutex.Lock()
	_, known := f.running[node]
	delete(f.running, node)
	f.mutex.Unlock()
	if known {
		send(f.feeding, f.nodeEvents, informer.Deleted, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
}

// Running returns the names of the nodes whose kubelet runs.
func (f *Fleet) Running() []string {
	f.mutex.RLock()
	defer f.mutex.RUnlock()
	return slices.Collect(maps.Keys(f.running))
}

// Node returns a Node as the fleet sees it; nil where there is none. It must not be modified.
func (f *Fleet) Node(name string) *corev1.Node {
	node, _ := getter[*corev1.Node]{f.nodes.GetStore()}.Get(name)
	return node
}

// EndTerminatingPods ends the Pods of a node that are being deleted, as a kubelet does before it shuts down.
func (f *Fleet) EndTerminatingPods(ctx context.Context, node string) error {
	var errs []error
	for _, pod := range f.podsOn(node) {
		if pod.DeletionTimestamp == nil {
			continue
		}
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
		if err := f.guest.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options); err != nil &&
			!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("ending pod %s: %w", klog.KObj(pod), err))
		}
	}
	return errors.Join(errs...)
}

func (f *Fleet) node(name string) (*controllers.NodeInfo, bool) {
	f.mutex.RLock()
	defer f.mutex.RUnlock()
	info, ok := f.running[name]
	return info, ok
}

func (f *Fleet) podsOn(node string) []*corev1.Pod {
	objects, err := f.pods.GetIndexer().ByIndex(nodeNameIndex, node)
	if err != nil {
		return nil
	}
	return all[*corev1.Pod](objects)
}

// podIPs gives a pod its address: always the same one, so that neither a restart nor doing something twice changes it.
func (f *Fleet) podIPs(node string, hostNetwork bool, uid, name, namespace string) []string {
	if hostNetwork {
		if current := f.Node(node); current != nil {
			for _, address := range current.Status.Addresses {
				if address.Type == corev1.NodeInternalIP {
					return []string{address.Address}
				}
			}
		}
		return nil
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	sum := hash.Sum32()
	return []string{netip.AddrFrom4([4]byte{10, 128 | byte(sum>>16)&0x7f, byte(sum >> 8), byte(sum)}).String()}
}

func (f *Fleet) nodeEvent(kind informer.EventType, node *corev1.Node) {
	f.feed.Lock()
	defer f.feed.Unlock()
	// Before the leases are known, kwok would try to make those that there are. syncNode makes up for what is skipped.
	if _, ok := f.node(node.Name); ok && f.leases.HasSynced() {
		send(f.feeding, f.nodeEvents, kind, node)
	}
}

func (f *Fleet) podEvent(kind informer.EventType, pod *corev1.Pod) {
	if _, ok := f.node(pod.Spec.NodeName); ok {
		send(f.feeding, f.podEvents, kind, pod)
	}
}

func (f *Fleet) syncNode(name string) {
	if node := f.Node(name); node != nil {
		f.nodeEvent(informer.Sync, node)
	}
	f.syncPods(name)
}

func (f *Fleet) syncPods(node string) {
	for _, pod := range f.podsOn(node) {
		f.podEvent(informer.Sync, pod)
	}
}

func (f *Fleet) work(queue workqueue.TypedInterface[string], do func(string)) {
	if !toolscache.WaitForCacheSync(f.feeding, f.leases.HasSynced) {
		return
	}
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return
		}
		do(name)
		queue.Done(name)
	}
}

// stripManagedFields saves memory: no code here reads them.
func stripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

func podNodeName(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("indexing pods: got a %T", object)
	}
	return []string{pod.Spec.NodeName}, nil
}
