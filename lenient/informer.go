// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// causeUndecodable is the cause of the error event that ends a watch whose answer can't be decoded.
const causeUndecodable metav1.CauseType = "ClientWatchDecoding"

// NewInformer makes the informers of a cache; see cache.Options. The cache's client must use the Decoder's transport.
func (d *Decoder) NewInformer(
	lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(d.listerWatcher(lw, example), example, resync, indexers)
}

func (d *Decoder) listerWatcher(lw toolscache.ListerWatcher, example runtime.Object) toolscache.ListerWatcher {
	switch example.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		return lw // they hold anything
	}
	gvk, err := apiutil.GVKForObject(example, d.Scheme)
	if err != nil || d.typeOf(gvk) == nil {
		return lw
	}
	f := &following{inner: toolscache.ToListerWatcherWithContext(lw), record: d.records.of(gvk.GroupKind())}
	return &toolscache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
}

// following lists and watches one kind. It is lenient once an answer couldn't be decoded, until no object of the kind is such any more.
type following struct {
	inner   toolscache.ListerWatcherWithContext
	record  *record
	lenient atomic.Bool
}

// call returns the context of a request.
func (f *following) call(ctx context.Context, lenient bool) (context.Context, *call) {
	made := &call{record: f.record, lenient: lenient}
	return context.WithValue(ctx, callKey{}, made), made
}

func (f *following) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !f.lenient.Load() {
		strict, made := f.call(ctx, false)
		list, err := f.inner.ListWithContext(strict, options)
		if err == nil || ctx.Err() != nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown || !made.whole && !made.doubtful {
			return list, err
		}
		f.lenient.Store(true)
	}
	lenient, _ := f.call(ctx, true)
	return f.inner.ListWithContext(lenient, options)
}

func (f *following) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if f.record.settled() && options.ResourceVersion != "" && (options.SendInitialEvents == nil || !*options.SendInitialEvents) {
		f.lenient.Store(false)
	}
	made, _ := f.call(ctx, f.lenient.Load())
	events, err := f.inner.WatchWithContext(made, options)
	if err != nil {
		return nil, err
	}
	w := &noticing{Interface: events, result: make(chan watch.Event), stopped: make(chan struct{})}
	go w.pass(func() { f.lenient.Store(true) }) // the reflector lists again
	return w, nil
}

// noticing is a watch that reports when its answer couldn't be decoded.
type noticing struct {
	watch.Interface
	result  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

// ResultChan implements watch.Interface.
func (n *noticing) ResultChan() <-chan watch.Event { return n.result }

// Stop implements watch.Interface.
func (n *noticing) Stop() {
	n.once.Do(func() { close(n.stopped) })
	n.Interface.Stop()
}

func (n *noticing) pass(undecodable func()) {
	defer close(n.result)
	for event := range n.Interface.ResultChan() {
		if event.Type == watch.Error && apierrors.HasStatusCause(apierrors.FromObject(event.Object), causeUndecodable) {
			undecodable()
		}
		select {
		case n.result <- event:
		case <-n.stopped:
			return
		}
	}
}
