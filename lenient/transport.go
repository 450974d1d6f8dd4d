// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/lenient/exponent"
)

// errDoubtful ends an answer that contains a number that takes too long to decode, before it is decoded.
var errDoubtful = errors.New("an answer contains a number with a very large exponent; its objects are decoded one by one")

// Wrap puts the Decoder's transport into a client configuration. The answers to dynamic clients must not go through it.
func (d *Decoder) Wrap(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next, d} })
}

type transport struct {
	next    http.RoundTripper
	decoder *Decoder
}

// WrappedRoundTripper lets client-go close idle connections.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil || !t.concerns(request, response) {
		return response, err
	}
	made, query := callOf(request.Context()), request.URL.Query()
	switch {
	case query.Get("watch") != "" && made == nil:
		return response, nil // no informer of typed objects
	case made != nil && !made.lenient:
		response.Body = &watching{ReadCloser: response.Body, call: made}
	case made != nil && query.Get("watch") != "":
		if query.Get("sendInitialEvents") == "true" {
			made.record.begin()
		}
		response.Body = &frames{ReadCloser: response.Body, decoder: t.decoder, record: made.record, events: json.NewDecoder(response.Body)}
		resized(response)
	default:
		return t.whole(request, response, made)
	}
	return response, nil
}

// concerns reports whether an answer has custom resources that may be decoded into Go types.
func (t transport) concerns(request *http.Request, response *http.Response) bool {
	group, _, found := strings.Cut(afterPrefix(request.URL.Path), "/")
	if !found || !t.decoder.groups.Has(group) || response.StatusCode < http.StatusOK || response.StatusCode > http.StatusCreated || response.Body == nil {
		return false
	}
	media, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && media == runtime.ContentTypeJSON && parameters["as"] == ""
}

// afterPrefix returns the part of a path after /apis/: the API server's own may be below another.
func afterPrefix(path string) string {
	_, after, _ := strings.Cut(path, "/apis/")
	return after
}

// whole reads an answer that isn't a stream, and decodes the objects of a list one by one. A single object is decoded too: a Machine that
// can't be read couldn't be deleted either.
func (t transport) whole(request *http.Request, response *http.Response, made *call) (*http.Response, error) {
	raw, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	found, doubted := t.decoder.records.note, func(*metav1.PartialObjectMetadata) {}
	if made != nil {
		found, doubted = made.record.see, made.record.doubt
		if request.URL.Query().Get("continue") == "" {
			made.record.begin()
		}
	}
	replaced, next := []byte(nil), ""
	var kind typeMeta
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	switch {
	case t.decoder.typeOf(kind.gvk()) == nil: // another kind, such as a Status
	case !strings.HasSuffix(kind.Kind, listSuffix):
		replaced = t.decoder.single(raw, kind.gvk(), found)
	case made != nil || t.decoder.fails(raw, kind.gvk()):
		if replaced, next, err = t.decoder.list(raw, found, doubted); err != nil {
			return nil, err
		}
	}
	if made != nil && next == "" {
		made.record.end()
	}
	if replaced != nil {
		raw = replaced
		resized(response)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// fails reports whether a list can't be decoded whole.
func (d *Decoder) fails(raw []byte, gvk schema.GroupVersionKind) bool {
	return exponent.Found(raw) || decodeRaw(raw, d.typeOf(gvk)) != nil
}

// resized removes the header of an answer's length, which is another now.
func resized(response *http.Response) {
	response.ContentLength = -1
	response.Header.Del("Content-Length")
}

// watching looks at an answer that is passed on as it is.
type watching struct {
	io.ReadCloser
	call  *call
	found exponent.Reader
}

// Read implements io.Reader.
func (w *watching) Read(into []byte) (int, error) {
	n, err := w.ReadCloser.Read(into)
	if w.found.Found(into[:n]) {
		w.call.doubtful = true
		return 0, errDoubtful
	}
	if errors.Is(err, io.EOF) {
		w.call.whole = true
	}
	return n, err
}

// frames is the answer to a watch, whose objects are decoded one by one.
type frames struct {
	io.ReadCloser
	decoder *Decoder
	record  *record
	events  *json.Decoder
	ready   []byte
}

// Read implements io.Reader.
func (f *frames) Read(into []byte) (int, error) {
	if len(f.ready) == 0 {
		var raw json.RawMessage
		if err := f.events.Decode(&raw); err != nil {
			return 0, err
		}
		f.ready = append(f.decoder.frame(raw, f.see), '\n')
	}
	n := copy(into, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

func (f *frames) see(change event, object *metav1.PartialObjectMetadata, why string, doubtful bool) {
	switch watch.EventType(change.Type) {
	case watch.Bookmark:
		if object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			f.record.end()
		}
	case watch.Deleted:
		f.record.see(object, "")
	default:
		f.record.see(object, why)
		if doubtful {
			f.record.doubt(object)
		}
	}
}
