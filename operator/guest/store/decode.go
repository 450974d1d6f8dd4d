// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/guest/wire"
)

// decoder decodes the objects of a kind one by one.
type decoder struct {
	store    *Store
	gvk      schema.GroupVersionKind
	goType   reflect.Type
	selector labels.Selector // nil selects all
	*readable
}

// readable is the fields that are read of a kind's objects. Stores share it.
type readable struct {
	// whole is for an object, identity for one that was deleted, and progress for a bookmark.
	whole, identity, progress *wire.Type
}

type readableKey struct {
	goType reflect.Type
	fields string
}

var readables sync.Map // of *readable by readableKey

func readableOf(goType reflect.Type, fields []string) *readable {
	key := readableKey{goType, strings.Join(fields, " ")}
	if known, ok := readables.Load(key); ok {
		r, _ := known.(*readable)
		return r
	}
	if goType == reflect.TypeFor[metav1.PartialObjectMetadata]() {
		fields = []string{"metadata"}
	}
	of := wire.Of(goType)
	made := &readable{
		whole:    of.Only(fields...).Without("metadata.managedFields"),
		identity: of.Only("metadata.name", "metadata.namespace", "metadata.resourceVersion"),
		progress: of.Only("metadata.annotations", "metadata.resourceVersion"),
	}
	readables.Store(key, made)
	return made
}

var status = wire.Of(reflect.TypeFor[metav1.Status]())

// scratch are buffers for the next objects to decode.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

const scratchRetained = 64 << 10

func (s *Store) decoderOf(key kindKey, limits Kind) (*decoder, error) {
	d := &decoder{store: s, gvk: key.GroupVersionKind, selector: limits.Label, goType: reflect.TypeFor[metav1.PartialObjectMetadata]()}
	if !key.partial {
		object, err := s.Scheme().New(key.GroupVersionKind)
		if err != nil {
			return nil, err
		}
		d.goType = reflect.TypeOf(object).Elem()
	}
	d.readable = readableOf(d.goType, limits.Fields)
	return d, nil
}

// begin prepares for a list.
func (d *decoder) begin(k *kind) {
	d.store.usage.release(k)
	d.store.unreadable.begin(d.gvk)
}

// decode returns an object, and whether the selector selects it; nil if it can't be read at all. Unreadable parts are left out.
func (d *decoder) decode(raw wire.Object) (object client.Object, selected bool) {
	object, faults, err := d.read(d.whole, raw)
	if err != nil {
		identity, _, failed := d.read(d.identity, raw)
		if failed != nil || !isName(identity.GetName()) {
			return nil, false // not even an API server can name it
		}
		d.store.unreadable.set(d.gvk, client.ObjectKeyFromObject(identity), err.Error())
		return nil, false
	}
	if !isName(object.GetName()) || object.GetNamespace() != "" && !isName(object.GetNamespace()) || d.selector != nil && !d.selector.Matches(labels.Set(object.GetLabels())) {
		return object, false
	}
	problem := ""
	if len(faults) > 0 {
		problem = faults[0].String()
	}
	d.store.unreadable.set(d.gvk, client.ObjectKeyFromObject(object), problem)
	return object, true
}

// isName reports whether an API server may have accepted a name: messages repeat names.
func isName(name string) bool {
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}

// read decodes the fields of a type.
func (d *decoder) read(of *wire.Type, raw wire.Object) (client.Object, []wire.Fault, error) {
	object, ok := reflect.New(d.goType).Interface().(client.Object)
	if !ok {
		return nil, nil, fmt.Errorf("%s isn't an object", d.goType)
	}
	d.store.decoding.Lock()
	defer d.store.decoding.Unlock()
	faults, err := decode(of, raw, object)
	return object, faults, err
}

// decode decodes an object. A decoder panics only for input that no API server sends: that must not end the operator.
func decode(of *wire.Type, raw wire.Object, into any) (faults []wire.Fault, err error) {
	defer func() {
		if recover() != nil {
			faults, err = nil, wire.ErrMalformed
		}
	}()
	buffer, _ := scratch.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= scratchRetained {
			scratch.Put(buffer)
		}
	}()
	var checked wire.Checked
	if !raw.Protobuf {
		if *buffer, checked, err = of.FilterJSON((*buffer)[:0], raw.Raw, maxCost); err != nil {
			return nil, err
		}
		faults, err := of.Decode(*buffer, maxCost, into)
		return append(checked.Faults, faults...), err
	}
	if *buffer, checked, err = of.FilterProtobuf((*buffer)[:0], raw.Raw, maxCost); err != nil {
		return nil, err
	}
	message, ok := into.(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, wire.ErrMalformed // the guest wasn't asked for protobuf
	}
	if err := message.Unmarshal(*buffer); err != nil {
		return nil, wire.ErrMalformed
	}
	return checked.Faults, nil
}

// events decodes a watch.
type events struct {
	*decoder
	events *wire.Events
	body   io.Closer
	cancel context.CancelFunc
}

var _ watch.Decoder = (*events)(nil)

// Close implements watch.Decoder.
func (e *events) Close() {
	e.cancel()
	_ = e.body.Close()
}

// Decode implements watch.Decoder.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	for {
		name, raw, err := e.events.Next()
		if err != nil {
			return "", nil, e.store.bounded(err)
		}
		switch kind := watch.EventType(name); kind {
		case watch.Added, watch.Modified:
			object, selected := e.decode(raw)
			if object == nil {
				continue
			}
			if !selected {
				kind = watch.Deleted
			}
			return kind, object, nil
		case watch.Deleted:
			object, _, err := e.read(e.identity, raw)
			if err != nil {
				continue
			}
			e.store.unreadable.set(e.gvk, client.ObjectKeyFromObject(object), "")
			return kind, object, nil
		case watch.Bookmark:
			object, _, err := e.read(e.progress, raw)
			if err != nil {
				continue
			}
			return kind, object, nil
		case watch.Error:
			answer := &metav1.Status{}
			if _, err := decode(status, raw, answer); err != nil {
				return "", nil, errors.Join(wire.ErrMalformed, err)
			}
			answer.Message = strings.Clone(answer.Message[:min(len(answer.Message), maxMessage)])
			return kind, answer, nil
		}
	}
}

const (
	// maxMessage limits the text of an error.
	maxMessage = 1 << 10
	// maxName is the limit of names in Kubernetes.
	maxName = 253
)
