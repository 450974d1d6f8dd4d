// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/lenient/exponent"
	"github.com/autonode-io/autonode/message"
)

const (
	listSuffix = "List"
	// maxWhy bounds the description of one object, in bytes.
	maxWhy = 512
)

// Message returns what is wrong with an object, and what to do.
func Message(why string) string {
	return "Go can't decode this object, although the API server admitted it; what can't be decoded counts as absent: " + why +
		". Correct the value, or delete the object"
}

// Config configures a Decoder.
type Config struct {
	// Scheme has the types. Kinds that are built into Kubernetes are left alone.
	Scheme *runtime.Scheme
	// Report gets an object that can't be decoded, once for each reason. It must not wait.
	Report func(object *metav1.PartialObjectMetadata, why string)
	Clock  clock.PassiveClock
}

// Decoder decodes custom resources one by one where they can't be decoded together.
type Decoder struct {
	Config
	groups  sets.Set[string]
	records *records
}

// New returns a Decoder of one cluster's objects.
func New(config Config) *Decoder {
	d := &Decoder{Config: config, groups: sets.New[string]()}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Report == nil {
		d.Report = func(*metav1.PartialObjectMetadata, string) {}
	}
	builtIn := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(builtIn); err != nil {
		panic(err) // client-go's own scheme
	}
	for _, version := range d.Scheme.PrioritizedVersionsAllGroups() {
		if !builtIn.IsGroupRegistered(version.Group) {
			d.groups.Insert(version.Group)
		}
	}
	d.records = newRecords(d.Report)
	return d
}

// typeOf returns the Go type of a kind of custom resources; nil for others.
func (d *Decoder) typeOf(gvk schema.GroupVersionKind) reflect.Type {
	if !d.groups.Has(gvk.Group) {
		return nil
	}
	of, known := d.Scheme.AllKnownTypes()[gvk]
	if !known {
		return nil
	}
	return of
}

// typeMeta is the kind of an object or a list.
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func (t typeMeta) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
}

// list is a list of objects that aren't decoded yet.
type list struct {
	typeMeta `json:",inline"`
	Metadata json.RawMessage   `json:"metadata"`
	Items    []json.RawMessage `json:"items"`
}

// event is one of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// object returns an object that its type can hold, and the fields that were left out of it. One of which nothing was left out is doubtful
// if some of its text looks as if it took too long to decode, such as the label 1e9999.
func (d *Decoder) object(raw json.RawMessage, gvk schema.GroupVersionKind, of reflect.Type) (kept json.RawMessage, why string, doubtful bool) {
	doubtful = exponent.Found(raw)
	if !doubtful && decodeRaw(raw, of) == nil {
		return raw, "", false
	}
	object, err := parse(raw)
	if err != nil {
		return raw, "", doubtful // no JSON object: whoever decodes it reports it
	}
	pruned := &pruning{now: d.Clock.Now()}
	pruned.object("", object, of)
	if len(pruned.problems) == 0 {
		return raw, "", doubtful
	}
	why = message.Cut(strings.Join(pruned.problems, "; "), maxWhy)
	kept, err = json.Marshal(object)
	if err == nil {
		err = decodeRaw(kept, of)
	}
	if err != nil { // which no known type does: keep kind and metadata
		why = message.Cut(why+"; "+err.Error(), maxWhy)
		bare := map[string]any{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind, "metadata": object["metadata"]}
		kept, _ = json.Marshal(bare)
	}
	return kept, why, false
}

// list decodes a list's objects one by one. It returns nil if all can be decoded, or none are of a known type. It calls doubted with objects
// that can be decoded and have text that looks as if it couldn't, such as the label 1e9999.
func (d *Decoder) list(raw []byte, found func(*metav1.PartialObjectMetadata, string), doubted func(*metav1.PartialObjectMetadata)) (replaced []byte, next string, err error) {
	var of list
	if err := json.Unmarshal(raw, &of); err != nil {
		return nil, "", fmt.Errorf("reading a list: %w", err)
	}
	metadata := &metav1.ListMeta{}
	if len(of.Metadata) > 0 {
		if err := json.Unmarshal(of.Metadata, metadata); err != nil {
			return nil, "", fmt.Errorf("reading a list: %w", err)
		}
	}
	gvk := of.gvk()
	gvk.Kind = strings.TrimSuffix(gvk.Kind, listSuffix)
	item := d.typeOf(gvk)
	if item == nil || gvk.Kind == of.Kind {
		return nil, metadata.Continue, nil
	}
	changed := false
	for i := range of.Items {
		kept, why, doubtful := d.object(of.Items[i], gvk, item)
		if doubtful {
			doubted(identity(kept, gvk))
		}
		if why == "" {
			continue
		}
		of.Items[i], changed = kept, true
		found(identity(kept, gvk), why)
	}
	if !changed {
		return nil, metadata.Continue, nil
	}
	replaced, err = json.Marshal(of)
	return replaced, metadata.Continue, err
}

// frame decodes a watch's event. It returns it as it was unless its object can't be decoded.
func (d *Decoder) frame(raw json.RawMessage, found func(change event, object *metav1.PartialObjectMetadata, why string, doubtful bool)) json.RawMessage {
	var change event
	if err := json.Unmarshal(raw, &change); err != nil {
		return raw
	}
	var kind typeMeta
	if err := json.Unmarshal(change.Object, &kind); err != nil {
		return raw
	}
	of := d.typeOf(kind.gvk())
	if of == nil {
		return raw
	}
	kept, why, doubtful := d.object(change.Object, kind.gvk(), of)
	found(change, identity(kept, kind.gvk()), why, doubtful)
	if why == "" {
		return raw
	}
	change.Object = kept
	replaced, err := json.Marshal(change)
	if err != nil {
		return raw
	}
	return replaced
}

// identity returns the kind and metadata of an object.
func identity(raw []byte, gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	_ = json.Unmarshal(raw, object) // fields that metadata can't hold are left out of it by now
	object.SetGroupVersionKind(gvk)
	return object
}

// single decodes an object. It returns nil if it can be decoded.
func (d *Decoder) single(raw []byte, gvk schema.GroupVersionKind, found func(*metav1.PartialObjectMetadata, string)) []byte {
	kept, why, _ := d.object(raw, gvk, d.typeOf(gvk))
	if why == "" {
		return nil
	}
	found(identity(kept, gvk), why)
	return kept
}
