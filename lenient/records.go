// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/internal/lru"
)

// remembered is how many objects are known to have been reported.
const remembered = 1024

// records are the objects that can't be decoded now.
type records struct {
	report func(*metav1.PartialObjectMetadata, string)
	// noted has why each object was reported last, by its UID: several informers and answers to writes may have the same.
	noted lru.Cache[types.UID, string]

	mu  sync.Mutex
	all []*record
}

// record are those of one informer.
type record struct {
	of   *records
	kind schema.GroupKind

	mu      sync.Mutex
	objects map[types.NamespacedName]string
	// unseen are those that a list which is under way hasn't had so far; nil without one.
	unseen map[types.NamespacedName]string
	// doubtful are objects that can be decoded, and would end a watch that isn't lenient.
	doubtful sets.Set[types.NamespacedName]
}

func newRecords(report func(*metav1.PartialObjectMetadata, string)) *records {
	return &records{report: report, noted: lru.New[types.UID, string](remembered)}
}

func (r *records) of(kind schema.GroupKind) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	added := &record{of: r, kind: kind, objects: map[types.NamespacedName]string{}, doubtful: sets.New[types.NamespacedName]()}
	r.all = append(r.all, added)
	return added
}

// note logs an object and reports it, once for each reason. An empty why is one that can be decoded.
func (r *records) note(object *metav1.PartialObjectMetadata, why string) {
	if why == "" {
		r.noted.Remove(object.UID)
		return
	}
	r.mu.Lock()
	last, _ := r.noted.Get(object.UID)
	r.noted.Add(object.UID, why)
	r.mu.Unlock()
	if last == why {
		return
	}
	log.Log.WithName("lenient").Error(nil, "object can't be decoded", "kind", object.Kind, "namespace", object.Namespace, "name", object.Name, "why", why)
	r.report(object, why)
}

// begin starts a pass that sees all objects, until end.
func (r *record) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unseen = maps.Clone(r.objects)
	r.doubtful.Clear()
}

func (r *record) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.unseen {
		delete(r.objects, key)
	}
	r.unseen = nil
}

// see records an object; an empty why is one that can be decoded.
func (r *record) see(object *metav1.PartialObjectMetadata, why string) {
	key := client.ObjectKeyFromObject(object)
	r.mu.Lock()
	delete(r.unseen, key)
	r.doubtful.Delete(key)
	if why == "" {
		delete(r.objects, key)
	} else {
		r.objects[key] = why
	}
	r.mu.Unlock()
	r.of.note(object, why)
}

// doubt records an object that can be decoded, and would end a watch that isn't lenient.
func (r *record) doubt(object *metav1.PartialObjectMetadata) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubtful.Insert(client.ObjectKeyFromObject(object))
}

// settled reports whether a watch may be strict.
func (r *record) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.objects) == 0 && len(r.doubtful) == 0
}

func (r *record) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.objects)
}

// Collector counts the objects that Decoders can't decode, by kind, under a metric's name. Kinds without any have no series.
func Collector(name string, decoders ...*Decoder) prometheus.Collector {
	return collector{decoders, prometheus.NewDesc(name, "Objects that the API server admitted and Go can't decode, of those that are watched.", []string{"kind"}, nil)}
}

type collector struct {
	decoders []*Decoder
	desc     *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	counts := map[string]int{}
	for _, decoder := range c.decoders {
		for _, record := range decoder.records.informers() {
			if count := record.count(); count > 0 {
				counts[record.kind.Kind] += count
			}
		}
	}
	for kind, count := range counts {
		metrics <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count), kind)
	}
}

func (r *records) informers() []*record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// callKey is the key of a call in a context.
type callKey struct{}

// call is one request of an informer's.
type call struct {
	record *record
	// lenient: decode the answer's objects one by one.
	lenient bool
	// whole is set once the answer has been read to its end, doubtful when it contains a number that takes too long to decode.
	whole, doubtful bool
}

func callOf(ctx context.Context) *call {
	made, _ := ctx.Value(callKey{}).(*call)
	return made
}
