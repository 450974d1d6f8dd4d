// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/autonode-io/autonode/lenient/exponent"
)

var (
	quantityType    = reflect.TypeFor[resource.Quantity]()
	timeType        = reflect.TypeFor[metav1.Time]()
	microTimeType   = reflect.TypeFor[metav1.MicroTime]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

// pruning makes a JSON value that a Go type can hold of one that it can't.
type pruning struct {
	now time.Time
	// problems are the values that were left out or replaced, and why.
	problems []string
}

// value returns the part of a JSON value that the type can hold, and whether there is any.
func (p *pruning) value(path string, value any, of reflect.Type) (any, bool) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if value == nil || of.Kind() == reflect.Interface {
		return value, true
	}
	switch {
	case of == quantityType:
		if text, ok := value.(string); ok && !exponent.Bounded(text) {
			p.problem(path, fmt.Errorf("quantity %.32q: an exponent may have %d digits, and a quantity %d bytes", text, exponent.MaxDigits, exponent.MaxLength))
			return nil, false
		}
		return p.leaf(path, value, of)
	case of == timeType || of == microTimeType:
		return p.time(path, value, of)
	case reflect.PointerTo(of).Implements(unmarshalerType):
		return p.leaf(path, value, of)
	}
	switch of.Kind() {
	case reflect.Struct:
		if object, ok := value.(map[string]any); ok {
			p.object(path, object, of)
			return value, true
		}
	case reflect.Map:
		if object, ok := value.(map[string]any); ok {
			for _, key := range slices.Sorted(maps.Keys(object)) {
				p.keep(path, object, key, of.Elem())
			}
			return value, true
		}
	case reflect.Slice, reflect.Array:
		if list, ok := value.([]any); ok {
			kept := make([]any, 0, len(list))
			for i, element := range list {
				if element, ok := p.value(path+"["+strconv.Itoa(i)+"]", element, of.Elem()); ok {
					kept = append(kept, element)
				}
			}
			return kept, true
		}
	}
	return p.leaf(path, value, of)
}

func (p *pruning) object(path string, object map[string]any, of reflect.Type) {
	fields := map[string]reflect.Type{}
	fieldsOf(of, fields)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if field, known := fields[key]; known {
			p.keep(path, object, key, field)
		}
	}
}

func (p *pruning) keep(path string, object map[string]any, key string, of reflect.Type) {
	if value, ok := p.value(strings.TrimPrefix(path+"."+key, "."), object[key], of); ok {
		object[key] = value
	} else {
		delete(object, key)
	}
}

// fieldsOf adds a struct's fields by their names in JSON; those of an outer struct hide those of embedded ones.
func fieldsOf(of reflect.Type, fields map[string]reflect.Type) {
	var inline []reflect.Type
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
			embedded := field.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			if embedded.Kind() == reflect.Struct {
				inline = append(inline, embedded)
			}
		case name == "":
			fields[field.Name] = field.Type
		default:
			fields[name] = field.Type
		}
	}
	for _, embedded := range inline {
		inner := map[string]reflect.Type{}
		fieldsOf(embedded, inner)
		for name, of := range inner {
			if _, hidden := fields[name]; !hidden {
				fields[name] = of
			}
		}
	}
}

// time keeps a time that Go can read once its letters are uppercase, which RFC 3339 leaves open. Any other becomes the present: no
// deadline that is counted from it has passed, and nothing is due to happen in the future.
func (p *pruning) time(path string, value any, of reflect.Type) (any, bool) {
	err := decode(value, of)
	if err == nil {
		return value, true
	}
	p.problem(path, err)
	if text, ok := value.(string); ok && decode(strings.ToUpper(text), of) == nil {
		return strings.ToUpper(text), true
	}
	if of == microTimeType {
		return p.now.UTC().Format(metav1.RFC3339Micro), true
	}
	return p.now.UTC().Format(time.RFC3339), true
}

func (p *pruning) leaf(path string, value any, of reflect.Type) (any, bool) {
	if err := decode(value, of); err != nil {
		p.problem(path, err)
		return nil, false
	}
	return value, true
}

func (p *pruning) problem(path string, err error) {
	p.problems = append(p.problems, path+": "+err.Error())
}

// decode reports why a type can't hold a JSON value, as the decoder of API machinery does.
func decode(value any, of reflect.Type) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return decodeRaw(raw, of)
}

func decodeRaw(raw []byte, of reflect.Type) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(of).Interface())
}

// parse reads a JSON object as it stands: numbers are text.
func parse(raw []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	return object, nil
}
