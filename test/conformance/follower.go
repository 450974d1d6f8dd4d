// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
)

const (
	kindNodeClaim = "NodeClaim"
	kindMachine   = "Machine"
)

// guestKinds are the kinds of a node's objects in a guest.
var guestKinds = []schema.GroupVersionKind{
	{Group: apis.Group, Version: "v1", Kind: kindNodeClaim},
	corev1.SchemeGroupVersion.WithKind("Node"),
}

// follower watches when pods run, or Nodes are ready, and all objects of nodes.
type follower struct {
	cancel   context.CancelFunc
	watching sync.WaitGroup

	mu sync.Mutex
	// ready is the time at which each pod was first observed running. Without pods, these are Nodes.
	ready map[types.UID]time.Time
	// pods are the current ones that aren't terminating.
	pods map[types.UID]bool
	// ever and now are the objects of each kind by UID: all since reset, and the current ones.
	ever, now map[string]map[types.UID]string
	// joined are the Machines with a Node.
	joined map[types.UID]bool
	// resident are objects that stay: nothing here counts them.
	resident map[types.UID]bool
}

// newFollower returns one that watches nothing yet.
func newFollower() *follower {
	f := &follower{now: map[string]map[types.UID]string{}, pods: map[types.UID]bool{}, joined: map[types.UID]bool{}}
	f.reset()
	return f
}

// follow starts the watches of both clusters, and returns when they have synced. The demand is a Pod, or a Node if no pod asks for nodes.
func follow(ctx context.Context, scheme *runtime.Scheme, management, guest *rest.Config, namespace string, demand client.Object) (*follower, error) {
	running, cancel := context.WithCancel(context.Background())
	f := newFollower()
	f.cancel = cancel
	inGuest, err := cache.New(guest, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.SelectorFromSet(podLabels)}},
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching the guest: %w", err)
	}
	inManagement, err := cache.New(management, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultNamespaces: map[string]cache.Config{namespace: {}},
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching the management cluster: %w", err)
	}
	err = errors.Join(
		watch(ctx, inGuest, demand, f.seePod, func(pod client.Object) { f.losePod(pod.GetUID()) }),
		watch(ctx, inManagement, &clusterv1.Machine{}, f.see(kindMachine), f.lose(kindMachine)))
	for _, kind := range guestKinds {
		err = errors.Join(err, watch(ctx, inGuest, metadataOf(kind), f.see(kind.Kind), f.lose(kind.Kind)))
	}
	for _, kind := range machineKinds {
		if kind.Kind != kindMachine {
			err = errors.Join(err, watch(ctx, inManagement, metadataOf(kind), f.see(kind.Kind), f.lose(kind.Kind)))
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	for _, each := range []cache.Cache{inGuest, inManagement} {
		f.watching.Go(func() { _ = each.Start(running) })
		if !each.WaitForCacheSync(ctx) {
			f.stop()
			return nil, fmt.Errorf("watching what is measured: %w", context.Cause(ctx))
		}
	}
	return f, nil
}

func (f *follower) stop() {
	f.cancel()
	f.watching.Wait()
}

func metadataOf(kind schema.GroupVersionKind) client.Object {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

func watch(ctx context.Context, in cache.Cache, object client.Object, see, lose func(client.Object)) error {
	informer, err := in.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %T: %w", object, err)
	}
	on := func(do func(client.Object)) func(any) {
		return func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if seen, ok := object.(client.Object); ok {
				do(seen)
			}
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: on(see), UpdateFunc: func(_, after any) { on(see)(after) }, DeleteFunc: on(lose),
	})
	return err
}

// reset forgets deleted objects. Current ones stay known, and count as created since.
func (f *follower) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready, f.ever = map[types.UID]time.Time{}, map[string]map[types.UID]string{}
	for kind, objects := range f.now {
		for uid, name := range objects {
			f.note(f.ever, kind, uid, name)
		}
	}
}

// keep makes the current objects residents.
func (f *follower) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resident = map[types.UID]bool{}
	for _, objects := range f.now {
		for uid := range objects {
			f.resident[uid] = true
		}
	}
	f.now, f.ever = map[string]map[types.UID]string{}, map[string]map[types.UID]string{}
}

// keeps reports whether an object is a resident.
func (f *follower) keeps(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resident[uid]
}

func (f *follower) note(in map[string]map[types.UID]string, kind string, uid types.UID, name string) {
	if in[kind] == nil {
		in[kind] = map[types.UID]string{}
	}
	in[kind][uid] = name
}

func (f *follower) see(kind string) func(client.Object) {
	return func(object client.Object) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.resident[object.GetUID()] {
			return
		}
		f.note(f.ever, kind, object.GetUID(), object.GetName())
		f.note(f.now, kind, object.GetUID(), object.GetName())
		if machine, ok := object.(*clusterv1.Machine); ok && machine.Status.NodeRef.IsDefined() {
			f.joined[machine.UID] = true
		}
	}
}

func (f *follower) lose(kind string) func(client.Object) {
	return func(object client.Object) {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.now[kind], object.GetUID())
		delete(f.joined, object.GetUID())
	}
}

func (f *follower) seePod(object client.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if object.GetDeletionTimestamp() != nil {
		delete(f.pods, object.GetUID())
		return
	}
	f.pods[object.GetUID()] = true
	if isReady(object) {
		if _, known := f.ready[object.GetUID()]; !known {
			f.ready[object.GetUID()] = time.Now()
		}
	}
}

func (f *follower) losePod(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
}

// running is the number of current pods that have run.
func (f *follower) running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	running := 0
	for uid := range f.ready {
		if f.pods[uid] {
			running++
		}
	}
	return running
}

// remaining is the number of pods that aren't terminating.
func (f *follower) remaining() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pods)
}

// readyTimes returns the times at which current pods ran first, in order.
func (f *follower) readyTimes() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	var times []time.Time
	for uid, at := range f.ready {
		if f.pods[uid] {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// made is the number of objects of a kind since reset.
func (f *follower) made(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ever[kind])
}

// astray returns the names of current Machines without a Node.
func (f *follower) astray() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := []string{}
	for uid, name := range f.now[kindMachine] {
		if !f.joined[uid] {
			names = append(names, kindMachine+" "+name)
		}
	}
	slices.Sort(names)
	return names
}

// present is the number of current objects of nodes.
func (f *follower) present() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	present := 0
	for _, objects := range f.now {
		present += len(objects)
	}
	return present
}

// left returns the names of current objects.
func (f *follower) left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := []string{}
	for kind, objects := range f.now {
		for _, name := range objects {
			names = append(names, kind+" "+name)
		}
	}
	slices.Sort(names)
	return names
}
