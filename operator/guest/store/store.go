// SPDX-License-Identifier: Apache-2.0

// Package store keeps the objects of a guest that controllers read, by one watch per kind.
//
// It does for a guest what controller-runtime's cache does for the management cluster, in less memory: an informer has
// thirteen goroutines and a buffer of 16 KiB per handler, and the operator watches a dozen kinds in each of a thousand
// guests. Here a watch has four goroutines, and calls the handlers itself.
package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// ErrClosed is the error of a Store that was closed.
var ErrClosed = errors.New("the connection to the guest is closed")

// Kind limits the objects of a kind.
type Kind struct {
	// Label selects the objects that are kept; nil selects all.
	Label labels.Selector
	// Transform limits the fields that are kept; nil keeps all. It has to be idempotent.
	Transform toolscache.TransformFunc
}

// Config of New.
type Config struct {
	// Guest names the API server and the credentials. Its timeout doesn't apply.
	Guest *rest.Config
	// HTTP is the connection, without a timeout: net/http would spend a goroutine on it for each watch.
	HTTP *http.Client
	// Live reads kinds that have no watch, maps kinds to resources, and writes.
	Live client.Client
	// Codecs of Live's scheme. Stores share them.
	Codecs serializer.CodecFactory
	// Kinds limits the objects of each kind.
	Kinds func(schema.GroupVersionKind) Kind
	// Timeout is how long a read waits for the first list of its kind.
	Timeout time.Duration
	// Bounds limit the objects of one guest; zero is the default.
	Bounds Bounds
	// Exceeded is called once if the guest exceeds them. The Store is closed then, and has dropped its objects.
	Exceeded func(why error)
	// Charge takes bytes from the guest's budget, for work that isn't proportional to the bytes that it sent.
	Charge func(bytes int)
	// Noticed is called when Unreadable may have changed. Like Exceeded it must not block, and may be nil.
	Noticed func()
}

// Store is a client for one guest. It reads the kinds of Handle and Index from watches, and everything else from the
// API server. It reads metadata from a watch of whole objects if there is one, so that no kind is watched twice.
type Store struct {
	client.Client
	config Config
	ctx    context.Context //nolint:containedctx // of the watches, which outlive the call that starts them
	cancel context.CancelFunc

	connecting sync.Mutex
	connection rest.Interface // nil until the first list or watch

	mu     sync.Mutex
	kinds  map[kindKey]*kind
	closed error // why everything was dropped; nil if nothing was

	usage      *account
	unreadable *unreadable
	decoding   sync.Mutex // one object at a time, so that decoding takes a bounded amount of memory for each guest
}

// kindKey distinguishes a watch of metadata from one of whole objects.
type kindKey struct {
	schema.GroupVersionKind
	partial bool
}

// New returns a Store without watches. It makes no request.
func New(config Config) *Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{
		Client: config.Live, config: config, ctx: ctx, cancel: cancel, kinds: map[kindKey]*kind{},
		usage: &account{bounds: config.Bounds.orDefault()}, unreadable: &unreadable{noticed: config.Noticed},
	}
}

// Close ends the watches. Objects that they have read stay readable.
func (s *Store) Close() { s.cancel() }

// Handle starts the watch of an object's kind, unless there is one, and calls the handler for all objects there are
// and for each change. The handler delays the watch, so it must not block.
func (s *Store) Handle(object client.Object, handler toolscache.ResourceEventHandler) error {
	k, err := s.watch(object)
	if err != nil {
		return err
	}
	k.handle(handler)
	return nil
}

// Index starts the watch of an object's kind, unless there is one, and has List understand client.MatchingFields with
// that field.
func (s *Store) Index(object client.Object, field string, extract client.IndexerFunc) error {
	k, err := s.watch(object)
	if err != nil {
		return err
	}
	return k.index(field, extract)
}

// watch returns the watch of an object's kind, and starts it if there is none.
func (s *Store) watch(object client.Object) (*kind, error) {
	key, err := s.keyOf(object)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if k, ok := s.kinds[key]; ok {
		return k, nil
	}
	mapping, err := s.RESTMapper().RESTMapping(key.GroupKind(), key.Version)
	if err != nil {
		return nil, fmt.Errorf("finding the resource of %s: %w", key.Kind, err)
	}
	limits := s.config.Kinds(key.GroupVersionKind)
	k := newKind(key.GroupVersionKind, mapping.Scope.Name() == meta.RESTScopeNameNamespace, limits.Transform)
	k.usage, k.exceeded = s.usage, s.exceed
	requests, err := s.requests(k, key, mapping.Resource)
	if err != nil {
		return nil, err
	}
	s.kinds[key] = k
	reflector := toolscache.NewReflectorWithOptions(requests, object, k, toolscache.ReflectorOptions{Name: "guest", TypeDescription: key.Kind})
	go reflector.RunWithContext(withAnswers(s.ctx))
	return k, nil
}

func (s *Store) keyOf(object client.Object) (kindKey, error) {
	gvk, err := apiutil.GVKForObject(object, s.Scheme())
	if err != nil {
		return kindKey{}, fmt.Errorf("finding the kind of %T: %w", object, err)
	}
	_, partial := object.(*metav1.PartialObjectMetadata)
	return kindKey{gvk, partial}, nil
}

// watched returns the watch to read from, nil if there is none.
func (s *Store) watched(key kindKey) (*kind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return nil, fmt.Errorf("%w: %w", ErrClosed, s.closed)
	}
	k, ok := s.kinds[key]
	if !ok && key.partial {
		return s.kinds[kindKey{key.GroupVersionKind, false}], nil
	}
	return k, nil
}

// exceed closes the Store of a guest that exceeds its bounds, and drops its objects.
func (s *Store) exceed(why error) {
	s.mu.Lock()
	first := s.closed == nil && s.ctx.Err() == nil
	if first {
		s.closed, s.kinds = why, map[kindKey]*kind{}
	}
	s.cancel()
	s.mu.Unlock()
	if first && s.config.Exceeded != nil {
		s.config.Exceeded(why)
	}
}

// Unreadable returns how many objects can't be read whole, and the problem of one of them.
func (s *Store) Unreadable() (count int, example string) { return s.unreadable.first() }

// listed waits for the first list of a kind.
func (s *Store) listed(ctx context.Context, k *kind) error {
	if k.isListed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	select {
	case <-k.listed:
		return nil
	case <-s.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first list of %s: %w", k.gvk.Kind, ctx.Err())
	}
}
