// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/internal/message"
)

// maxReported is how many objects are known to have been reported.
const maxReported = 1024

// Message describes the problem of an object, and the remedy.
func Message(why string) string {
	return "Go can't decode this object, although the API server admitted it; what can't be decoded counts as absent: " + why +
		". Correct the value, or delete the object"
}

// Decoder removes values that Go can't decode from an API server's answers with Cluster API's objects, before the client decodes them. It
// is also the metric that counts the objects with such values.
type Decoder struct {
	scheme *runtime.Scheme
	metric *prometheus.Desc
	report func(object *metav1.PartialObjectMetadata, why string)

	mu sync.Mutex
	// reported has why each object was reported last: several informers and answers to writes may have the same.
	reported lru.Cache[types.UID, string]
	// seen are the kinds of the objects that can't be decoded now.
	seen map[seenKey]string
}

// seenKey names an object and the list or watch that has it; none for an answer to a read or a write.
type seenKey struct {
	list string
	uid  types.UID
}

// New returns a Decoder of a scheme's types, whose metric has that name. It calls report for an object that can't be decoded, once for each
// reason. report must not block, and may be nil.
func New(scheme *runtime.Scheme, metric string, report func(object *metav1.PartialObjectMetadata, why string)) *Decoder {
	const help = "Objects that the API server admitted and Go can't decode, of those that are watched."
	return &Decoder{
		scheme: scheme, metric: prometheus.NewDesc(metric, help, []string{"kind"}, nil), report: report,
		reported: lru.New[types.UID, string](maxReported), seen: map[seenKey]string{},
	}
}

// Describe implements prometheus.Collector.
func (d *Decoder) Describe(descs chan<- *prometheus.Desc) { descs <- d.metric }

// Collect implements prometheus.Collector. Kinds without such objects have no series.
func (d *Decoder) Collect(metrics chan<- prometheus.Metric) {
	d.mu.Lock()
	objects, counts := map[types.UID]string{}, map[string]float64{}
	for key, kind := range d.seen {
		if key.list != "" {
			objects[key.uid] = kind
		}
	}
	d.mu.Unlock()
	for _, kind := range objects {
		counts[kind]++
	}
	for kind, count := range counts {
		metrics <- prometheus.MustNewConstMetric(d.metric, prometheus.GaugeValue, count, kind)
	}
}

// Wrap puts the Decoder into a client configuration. The answers to dynamic clients must not go through it.
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
	if err != nil || !concerns(request, response) {
		return response, err
	}
	query := request.URL.Query()
	list := strings.Join([]string{request.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")}, "?")
	watches := query.Get("watch") != ""
	if !watches && query.Get("continue") == "" || query.Get("sendInitialEvents") == "true" {
		t.decoder.begin(list)
	}
	response.ContentLength = -1
	response.Header.Del("Content-Length")
	if watches {
		response.Body = &frames{ReadCloser: response.Body, decoder: t.decoder, list: list, events: json.NewDecoder(response.Body)}
		return response, nil
	}
	raw, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	response.Body = io.NopCloser(bytes.NewReader(t.decoder.answer(raw, list)))
	return response, nil
}

// concerns reports whether an answer has Cluster API's objects, which may be decoded into Go types.
func concerns(request *http.Request, response *http.Response) bool {
	if !strings.Contains(request.URL.Path, "/apis/"+clusterv1.GroupVersion.Group+"/") || response.StatusCode > http.StatusCreated {
		return false
	}
	media, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && media == runtime.ContentTypeJSON && parameters["as"] == ""
}

// answer corrects an object or a list.
func (d *Decoder) answer(raw []byte, list string) []byte {
	var content struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        json.RawMessage   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &content); err != nil {
		return raw // the client reports it
	}
	gvk := content.GroupVersionKind()
	kind, isList := strings.CutSuffix(gvk.Kind, "List")
	if !isList {
		if decoded := d.object(raw, gvk, ""); decoded != nil {
			return decoded
		}
		return raw
	}
	changed := false
	for i := range content.Items {
		if decoded := d.object(content.Items[i], gvk.GroupVersion().WithKind(kind), list); decoded != nil {
			content.Items[i], changed = decoded, true
		}
	}
	if !changed {
		return raw
	}
	return encode(content, raw)
}

// object returns an object without the values that its type can't hold, and reports them. It returns nil if there are none.
func (d *Decoder) object(raw []byte, gvk schema.GroupVersionKind, list string) []byte {
	made, err := d.scheme.New(gvk)
	object, ok := made.(client.Object)
	if err != nil || !ok {
		return nil // such as a Status
	}
	decoded, problems, err := Decode(raw, object, standard)
	if err != nil { // no API server sends such an object: keep kind and metadata
		metadata := &metav1.PartialObjectMetadata{}
		_ = json.Unmarshal(raw, metadata)
		metadata.SetGroupVersionKind(gvk)
		object, decoded, problems = metadata, encode(metadata, raw), append(problems, err.Error())
	}
	if len(problems) == 0 {
		d.forget(object.GetUID())
		return nil
	}
	identity := meta.AsPartialObjectMetadata(object)
	identity.SetGroupVersionKind(gvk)
	d.note(list, identity, message.Cut(strings.Join(problems, "; "), maxWhy))
	return decoded
}

// encode returns a value as JSON; otherwise for one that has none, which nothing here is.
func encode(value any, otherwise []byte) []byte {
	if raw, err := json.Marshal(value); err == nil {
		return raw
	}
	return otherwise
}

// note records an object that can't be decoded, and logs and reports it, once for each reason.
func (d *Decoder) note(list string, object *metav1.PartialObjectMetadata, why string) {
	d.mu.Lock()
	d.seen[seenKey{list, object.UID}] = object.Kind
	last, _ := d.reported.Get(object.UID)
	d.reported.Add(object.UID, why)
	d.mu.Unlock()
	if last == why {
		return
	}
	log.Log.WithName("lenient").Error(nil, "object can't be decoded",
		"kind", object.Kind, "namespace", object.Namespace, "name", object.Name, "why", why)
	if d.report != nil {
		d.report(object, why)
	}
}

// forget forgets an object that can be decoded, or is gone.
func (d *Decoder) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported.Remove(uid)
	maps.DeleteFunc(d.seen, func(key seenKey, _ string) bool { return key.uid == uid })
}

// begin forgets the objects of a list, which is about to arrive again.
func (d *Decoder) begin(list string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.seen, func(key seenKey, _ string) bool { return key.list == list })
}

// frames is the answer to a watch.
type frames struct {
	io.ReadCloser
	decoder *Decoder
	list    string
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
		f.ready = append(f.decoder.event(raw, f.list), '\n')
	}
	n := copy(into, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// event corrects an event of a watch.
func (d *Decoder) event(raw []byte, list string) []byte {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	var object struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &event) != nil || json.Unmarshal(event.Object, &object) != nil {
		return raw
	}
	decoded := d.object(event.Object, object.GroupVersionKind(), list)
	if event.Type == watch.Deleted {
		d.forget(object.Metadata.UID)
	}
	if decoded == nil {
		return raw
	}
	event.Object = decoded
	return encode(event, raw)
}
