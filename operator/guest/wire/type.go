// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// form is how a Go type is decoded.
type form int

const (
	// plain values hold nothing else: numbers, texts, times.
	plain form = iota
	quantity
	structure
	list
	dictionary
	// verbatim values stay JSON.
	verbatim
	// free values become maps and slices of any.
	free
	// either is one value of elem, several, or another value: the unions in a CRD's schema.
	either
)

// Type is the fields that a Go type reads of JSON and protobuf. It doesn't change, and may be shared.
type Type struct {
	form form
	// size of a value, in bytes.
	size int
	// elem is the type of a list's elements and a dictionary's values.
	elem *Type
	// fields of a structure, by their names in JSON and by their numbers in protobuf.
	fields  map[string]*Type
	numbers map[int]*Type
	// names of the fields with a number.
	names map[int]string
	// keys of a dictionary that are read; nil for all.
	keys   map[string]bool
	goType reflect.Type
	// custom: the Go type decodes JSON itself.
	custom bool
}

var (
	typesMu sync.Mutex
	types   = map[reflect.Type]*Type{}
)

// Of returns the Type of a Go type, such as reflect.TypeFor[corev1.Node]().
func Of(t reflect.Type) *Type {
	typesMu.Lock()
	defer typesMu.Unlock()
	return of(t)
}

// Only returns the Type with only these fields. A path consists of names in JSON and keys of dictionaries, separated
// by dots; elements of lists have no name. Paths without a field are ignored.
func (t *Type) Only(paths ...string) *Type {
	if len(paths) == 0 {
		return t
	}
	below := map[string][]string{}
	whole := map[string]bool{}
	for _, path := range paths {
		name, rest, more := strings.Cut(path, ".")
		if !more {
			whole[name] = true
		}
		below[name] = append(below[name], rest)
	}
	only := *t
	switch t.form {
	case list:
		only.elem = t.elem.Only(paths...)
	case dictionary:
		only.keys = map[string]bool{}
		for key := range below {
			only.keys[key] = true
		}
	case structure:
		only.fields, only.numbers = map[string]*Type{}, map[int]*Type{}
		for name, rest := range below {
			field, ok := t.fields[name]
			if !ok {
				continue
			}
			if !whole[name] {
				field = field.Only(rest...)
			}
			only.fields[name] = field
		}
		for number := range t.numbers {
			if field, ok := only.fields[t.names[number]]; ok {
				only.numbers[number] = field
			}
		}
	}
	return &only
}

// Without returns the Type without these fields.
func (t *Type) Without(paths ...string) *Type {
	without := *t
	switch t.form {
	case list, dictionary:
		without.elem = t.elem.Without(paths...)
	case structure:
		without.fields, without.numbers = map[string]*Type{}, map[int]*Type{}
		for name, field := range t.fields {
			without.fields[name] = field
		}
		for _, path := range paths {
			name, rest, more := strings.Cut(path, ".")
			switch field, ok := without.fields[name]; {
			case ok && more:
				without.fields[name] = field.Without(rest)
			case ok:
				delete(without.fields, name)
			}
		}
		for number := range t.numbers {
			if field, ok := without.fields[t.names[number]]; ok {
				without.numbers[number] = field
			}
		}
	}
	return &without
}

var (
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	special     = map[reflect.Type]form{
		reflect.TypeFor[resource.Quantity]():    quantity,
		reflect.TypeFor[runtime.RawExtension](): verbatim,
		reflect.TypeFor[metav1.FieldsV1]():      verbatim,
		reflect.TypeFor[apiextensionsv1.JSON](): verbatim,
		reflect.TypeFor[json.RawMessage]():      verbatim,
		reflect.TypeFor[[]byte]():               plain,
	}
	schema  = reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()
	schemas = map[reflect.Type]bool{
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray]():       true,
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():        true,
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray](): true,
	}
)

// isStatus reports whether a type is a status of this project's: its decoder reads its fields, and mends conditions.
func isStatus(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), "github.com/autonode-io/autonode/api/") {
		return false
	}
	conditions, ok := t.FieldByName("Conditions")
	return ok && conditions.Type.Kind() == reflect.Slice
}

func of(t reflect.Type) *Type {
	if known, ok := types[t]; ok {
		return known
	}
	made := &Type{size: int(t.Size()), goType: t}
	types[t] = made // before its fields: a type may contain itself
	if known, ok := special[t]; ok {
		made.form = known
		return made
	}
	if schemas[t] {
		made.form, made.elem = either, of(schema)
		return made
	}
	if t.Kind() != reflect.Pointer && (t.Implements(unmarshaler) || reflect.PointerTo(t).Implements(unmarshaler)) && !isStatus(t) {
		made.custom = true
		if made.form = plain; t.Kind() == reflect.Map || t.Kind() == reflect.Interface {
			made.form = free
		}
		return made
	}
	switch t.Kind() {
	case reflect.Pointer:
		pointed := *of(t.Elem())
		if pointed.form == structure && pointed.fields == nil { // it contains itself, and isn't complete yet
			made.form, made.elem = list, of(t.Elem()) // an object counts as the one element
			break
		}
		pointed.size += made.size
		*made = pointed
		made.goType = t
	case reflect.Slice, reflect.Array:
		made.form, made.elem = list, of(t.Elem())
	case reflect.Map:
		made.form, made.elem = dictionary, of(t.Elem())
		made.size = 48
	case reflect.Struct:
		made.form = structure
		fields, numbers, names := map[string]*Type{}, map[int]*Type{}, map[int]string{}
		inline(t, fields, numbers, names)
		made.fields, made.numbers, made.names = fields, numbers, names
	case reflect.Interface:
		made.form = free
	}
	return made
}

func inline(t reflect.Type, fields map[string]*Type, numbers map[int]*Type, names map[int]string) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		embedded := field.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case name == "-" && options == "", !field.IsExported() && !field.Anonymous:
			continue
		case field.Anonymous && name == "" && embedded.Kind() == reflect.Struct && !reflect.PointerTo(embedded).Implements(unmarshaler):
			inline(embedded, fields, map[int]*Type{}, map[int]string{}) // in protobuf it is a message of its own
			if number, ok := numberOf(&field); ok {
				numbers[number] = of(field.Type)
			}
			continue
		case name == "":
			name = field.Name
		}
		fields[name] = of(field.Type)
		if number, ok := numberOf(&field); ok {
			numbers[number], names[number] = fields[name], name
		}
	}
}

func numberOf(field *reflect.StructField) (int, bool) {
	tag := strings.Split(field.Tag.Get("protobuf"), ",")
	if len(tag) < 2 {
		return 0, false
	}
	number, err := strconv.Atoi(tag[1])
	return number, err == nil
}
