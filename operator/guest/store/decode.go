// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/lenient"
)

var (
	// whole are the options that read all fields.
	whole = lenient.Options()
	// unread skip the types of the fields that no controller reads of a guest's objects.
	unread = lenient.Options(
		lenient.Skip[[]metav1.ManagedFieldsEntry](), lenient.Skip[apiextensionsv1.CustomResourceDefinitionSpec](),
		lenient.Skip[[]corev1.ContainerImage](), lenient.Skip[[]corev1.NodeCondition](),
		lenient.Skip[[]corev1.Container](), lenient.Skip[[]corev1.Volume](),
	)
)

// decoder decodes the objects of a kind one by one.
type decoder struct {
	store    *Store
	gvk      schema.GroupVersionKind
	goType   reflect.Type
	selector labels.Selector // nil selects all
}

func (s *Store) decoderOf(key kindKey, selector labels.Selector) (*decoder, error) {
	d := &decoder{store: s, gvk: key.GroupVersionKind, selector: selector, goType: reflect.TypeFor[metav1.PartialObjectMetadata]()}
	if !key.partial {
		object, err := s.Scheme().New(key.GroupVersionKind)
		if err != nil {
			return nil, err
		}
		d.goType = reflect.TypeOf(object).Elem()
	}
	return d, nil
}

// begin prepares for a list.
func (d *decoder) begin(k *kind) {
	d.store.usage.release(k)
	d.store.unreadable.begin(d.gvk)
}

// decode returns an object, and whether the selector selects it; nil if it can't be read at all. Unreadable parts are left out.
func (d *decoder) decode(raw []byte) (object client.Object, selected bool) {
	object, problem, err := d.read(raw)
	if err != nil {
		identity, failed := d.identity(raw)
		if failed != nil || !isName(identity.GetName()) {
			return nil, false // not even an API server can name it
		}
		d.store.unreadable.set(d.gvk, client.ObjectKeyFromObject(identity), err.Error())
		return nil, false
	}
	if !isName(object.GetName()) || object.GetNamespace() != "" && !isName(object.GetNamespace()) ||
		d.selector != nil && !d.selector.Matches(labels.Set(object.GetLabels())) {
		return object, false
	}
	d.store.unreadable.set(d.gvk, client.ObjectKeyFromObject(object), problem)
	return object, true
}

// isName reports whether an API server may have accepted a name: messages repeat names.
func isName(name string) bool {
	return name != "" && len(name) <= maxName &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}

func (d *decoder) empty() (client.Object, error) {
	object, ok := reflect.New(d.goType).Interface().(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s isn't an object", d.goType)
	}
	return object, nil
}

// read decodes an object. problem is the first of the parts that are left out.
func (d *decoder) read(raw []byte) (object client.Object, problem string, err error) {
	if object, err = d.empty(); err != nil {
		return nil, "", err
	}
	d.store.decoding.Lock()
	defer d.store.decoding.Unlock()
	problem, err = decode(raw, object, unread, d.store.config.Charge)
	return object, problem, err
}

// Decode decodes all of an object that a guest has sent, unless that takes too much memory. problem is the first of the parts that are left
// out. Client-go can decode an object without such parts, in bounded time. charge is that of Config.
func Decode(raw []byte, into any, charge func(bytes int)) (problem string, err error) {
	return decode(raw, into, whole, charge)
}

func decode(raw []byte, into any, options json.Options, charge func(bytes int)) (problem string, err error) {
	defer func() {
		if recover() != nil { // for input that no API server sends
			err = errMalformed
		}
	}()
	levels, err := lenient.Count(raw)
	if err != nil {
		return "", fmt.Errorf("it would take too much memory: %w", err)
	}
	_, problems, err := lenient.Decode(raw, into, options)
	charge(len(problems)*(len(raw)+eventCost) + len(raw)*(max(0, levels-8)/4)) // a schema decodes its content once for each level
	if len(problems) > 0 {
		problem = problems[0]
	}
	return problem, err
}

// identity decodes the name of an object, which may be of any size.
func (d *decoder) identity(raw []byte) (client.Object, error) {
	object, err := d.empty()
	if err != nil {
		return nil, err
	}
	var named struct {
		Metadata struct {
			Name            string `json:"name"`
			Namespace       string `json:"namespace"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &named, unread); err != nil {
		return nil, err
	}
	object.SetName(named.Metadata.Name)
	object.SetNamespace(named.Metadata.Namespace)
	object.SetResourceVersion(named.Metadata.ResourceVersion)
	return object, nil
}

// events decodes a watch.
type events struct {
	*decoder
	stream *stream
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
	kind, object, err := e.decodeNext()
	if named, ok := object.(metav1.Object); ok && len(named.GetResourceVersion()) > maxPosition {
		return "", nil, e.store.bounded(errPosition)
	}
	return kind, object, err
}

func (e *events) decodeNext() (watch.EventType, runtime.Object, error) {
	for {
		name, raw, err := e.stream.event()
		if err != nil {
			return "", nil, e.store.bounded(err)
		}
		e.store.config.Charge(eventCost)
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
			object, err := e.identity(raw)
			if err != nil {
				continue
			}
			e.store.unreadable.set(e.gvk, client.ObjectKeyFromObject(object), "")
			return kind, object, nil
		case watch.Bookmark:
			object, _, err := e.read(raw)
			if err != nil {
				continue
			}
			return kind, object, nil
		case watch.Error:
			answer := &metav1.Status{}
			if _, err := Decode(raw, answer, e.store.config.Charge); err != nil {
				return "", nil, err
			}
			answer.Message = strings.Clone(answer.Message[:min(len(answer.Message), maxMessage)])
			return kind, answer, nil
		}
	}
}

const (
	// eventCost is what an event of a watch counts for beside its bytes: the smallest takes as much CPU time as a KiB of a list.
	eventCost = 1 << 10
	// maxMessage limits the text of an error.
	maxMessage = 1 << 10
	// maxName is the limit of names in Kubernetes.
	maxName = 253
)
