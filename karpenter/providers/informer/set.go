// SPDX-License-Identifier: Apache-2.0

// Package informer caches management objects of kinds that are known only at run time, because a node class names
// them. Each kind has its own informer, so that a kind that isn't served or readable doesn't block the others, as it
// would in controller-runtime's cache. Of the kinds that are in that cache, it follows the objects: see Watch.
package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// SyncTimeout is how long the first read of a kind waits for its list.
const SyncTimeout = 5 * time.Second

// Config of a Set.
type Config struct {
	// Management is the management cluster.
	Management dynamic.Interface
	// Mapper finds the resource of a kind. It must discover kinds installed after its creation.
	Mapper meta.RESTMapper
	// Namespace to read.
	Namespace string
	// Selector selects the cached objects; nil for all.
	Selector labels.Selector
	// Names narrows a kind to the one object with a name, so that the right to read that object is enough.
	Names map[schema.GroupKind]string
	// Versions overrides the API server's preferred version, by group.
	Versions map[string]string
}

// Set holds one informer for each requested kind. It is a manager.Runnable, and can be read before it starts.
type Set struct {
	Config

	// Informers outlive the call that starts them.
	ctx  context.Context //nolint:containedctx // see above
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	kinds     map[schema.GroupKind]*kind
	observers []func(schema.GroupKind)
	// objectObservers also receive the object.
	objectObservers []func(schema.GroupKind, *unstructured.Unstructured)
}

// UnreadableError means that a kind can't be read, so its objects are unknown.
type UnreadableError struct {
	GroupKind schema.GroupKind
	Namespace string
	Err       error
}

// Error names the kind and the namespace.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("reading %s in namespace %s: %s", e.GroupKind, e.Namespace, e.Err)
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// Permanent reports whether a user's action is needed: install the kind, or grant read access. Otherwise the
// management cluster is unreachable, or the kind is still being listed.
func (e *UnreadableError) Permanent() bool {
	return permanent(e.Err)
}

// IsUnreadable reports whether err is, or wraps, an UnreadableError.
func IsUnreadable(err error) bool {
	var unreadable *UnreadableError
	return errors.As(err, &unreadable)
}

var errSyncing = errors.New("still being listed")

// New returns a Set without informers.
func New(config Config) *Set {
	s := &Set{Config: config, kinds: map[schema.GroupKind]*kind{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Start waits until ctx ends and then stops the informers.
func (s *Set) Start(ctx context.Context) error {
	<-ctx.Done()
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a standby fills its caches too.
func (s *Set) NeedLeaderElection() bool { return false }

// OnChange calls f whenever an object of a read kind changes, and when a kind becomes readable. f must not block.
func (s *Set) OnChange(f func(schema.GroupKind)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = append(s.observers, f)
}

// OnObject calls f with every added, changed or deleted object of a read kind. f must not block. The object is
// shared: don't modify it.
func (s *Set) OnObject(f func(schema.GroupKind, *unstructured.Unstructured)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objectObservers = append(s.objectObservers, f)
}

// List returns the matching objects of a kind, ordered by name. They are shared: don't modify them. The error is an
// *UnreadableError, or that of ctx.
func (s *Set) List(ctx context.Context, gk schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	k, err := s.synced(ctx, gk)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	if err := toolscache.ListAll(k.informer.GetStore(), selector, func(o any) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			objects = append(objects, u)
		}
	}); err != nil {
		return nil, &UnreadableError{GroupKind: gk, Namespace: s.Namespace, Err: err}
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects, nil
}

// Get returns one object. It is shared: don't modify it. The error is a NotFound, an *UnreadableError, or that of
// ctx.
func (s *Set) Get(ctx context.Context, gk schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	k, err := s.synced(ctx, gk)
	if err != nil {
		return nil, err
	}
	o, exists, err := k.informer.GetStore().GetByKey(s.Namespace + "/" + name)
	if err != nil {
		return nil, &UnreadableError{GroupKind: gk, Namespace: s.Namespace, Err: err}
	}
	u, ok := o.(*unstructured.Unstructured)
	if !exists || !ok {
		return nil, apierrors.NewNotFound(k.resource.GroupResource(), name)
	}
	return u, nil
}

// Resource returns the resource of a kind, in the version that this set reads. The error is an *UnreadableError.
func (s *Set) Resource(gk schema.GroupKind) (schema.GroupVersionResource, error) {
	var versions []string
	if v := s.Versions[gk.Group]; v != "" {
		versions = append(versions, v)
	}
	mapping, err := s.Mapper.RESTMapping(gk, versions...)
	if err != nil {
		return schema.GroupVersionResource{}, &UnreadableError{GroupKind: gk, Namespace: s.Namespace, Err: err}
	}
	return mapping.Resource, nil
}

// kind is one informer and the outcome of its last request.
type kind struct {
	informer toolscache.SharedIndexInformer
	resource schema.GroupVersionResource

	mu  sync.Mutex
	err error
	// failed is closed once a request has failed.
	failed chan struct{}
	once   sync.Once
}

// synced returns the synced informer of a kind, and starts it if necessary.
func (s *Set) synced(ctx context.Context, gk schema.GroupKind) (*kind, error) {
	k, err := s.start(gk)
	if err != nil {
		return nil, err
	}
	if !k.informer.HasSynced() {
		timer := time.NewTimer(SyncTimeout)
		defer timer.Stop()
		select {
		case <-k.informer.HasSyncedChecker().Done():
		case <-k.failed:
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := k.state(); err != nil {
		return nil, &UnreadableError{GroupKind: gk, Namespace: s.Namespace, Err: err}
	}
	return k, nil
}

// start returns the informer of a kind, and starts it if necessary.
func (s *Set) start(gk schema.GroupKind) (*kind, error) {
	s.mu.Lock()
	k, ok := s.kinds[gk]
	s.mu.Unlock()
	if ok {
		return k, nil
	}
	// Don't hold the lock: this may call the API server.
	resource, err := s.Resource(gk)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.kinds[gk]; ok {
		return k, nil
	}
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	k = &kind{resource: resource, failed: make(chan struct{})}
	client := s.Management.Resource(resource).Namespace(s.Namespace)
	k.informer = toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			s.narrow(gk, &options)
			list, err := client.List(ctx, options)
			s.record(gk, k, err)
			// A nil pointer in an interface isn't nil.
			if err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			s.narrow(gk, &options)
			w, err := client.Watch(ctx, options)
			s.record(gk, k, err)
			return w, err
		},
	}, s.Management), &unstructured.Unstructured{}, 0, toolscache.Indexers{})
	// These fail only after the informer has started.
	_ = k.informer.SetTransform(withoutManagedFields)
	_ = k.informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {})
	_, _ = k.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.changed(gk, o) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			s.changed(gk, o)
		},
		UpdateFunc: func(before, after any) {
			b, okBefore := before.(*unstructured.Unstructured)
			a, okAfter := after.(*unstructured.Unstructured)
			if !okBefore || !okAfter || b.GetResourceVersion() != a.GetResourceVersion() {
				s.changed(gk, after)
			}
		},
	})
	s.kinds[gk] = k
	s.wg.Go(func() { k.informer.RunWithContext(s.ctx) })
	s.wg.Go(func() {
		select {
		case <-k.informer.HasSyncedChecker().Done():
			s.notify(gk)
		case <-s.ctx.Done():
		}
	})
	return k, nil
}

func (s *Set) narrow(gk schema.GroupKind, options *metav1.ListOptions) {
	if name, ok := s.Names[gk]; ok {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	if s.Selector != nil {
		options.LabelSelector = s.Selector.String()
	}
}

// record stores the outcome of the last request, and notifies observers if the kind becomes readable or unreadable.
func (s *Set) record(gk schema.GroupKind, k *kind, err error) {
	k.mu.Lock()
	before := k.err
	k.err = err
	k.mu.Unlock()
	if err != nil {
		k.once.Do(func() { close(k.failed) })
	}
	if permanent(before) != permanent(err) {
		s.notify(gk)
	}
}

func (s *Set) changed(gk schema.GroupKind, o any) {
	s.notify(gk)
	s.mu.Lock()
	observers := s.objectObservers
	s.mu.Unlock()
	if u, ok := o.(*unstructured.Unstructured); ok {
		for _, f := range observers {
			f(gk, u)
		}
	}
}

func (s *Set) notify(gk schema.GroupKind) {
	s.mu.Lock()
	observers := s.observers
	s.mu.Unlock()
	for _, f := range observers {
		f(gk)
	}
}

// state returns why the kind can't be read. A kind that has been listed stays readable while the management cluster
// is unreachable.
func (k *kind) state() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.informer.HasSynced():
		if permanent(k.err) {
			return k.err
		}
		return nil
	case k.err != nil:
		return k.err
	}
	return errSyncing
}

func permanent(err error) bool {
	return err != nil && (meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err))
}

// withoutManagedFields drops them, except from templates: they distinguish a person's fields from a webhook's defaults.
func withoutManagedFields(o any) (any, error) {
	if u, ok := o.(*unstructured.Unstructured); ok && !strings.HasSuffix(u.GetKind(), clusterv1.TemplateSuffix) {
		u.SetManagedFields(nil)
	}
	return o, nil
}
