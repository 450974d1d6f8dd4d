// SPDX-License-Identifier: Apache-2.0

package store

import (
	"reflect"
	"time"
)

var instant = reflect.TypeFor[time.Time]()

// entry is the memory of a map's entry beside its key and value.
const entry = 32

// Size returns about how much memory a value takes, in bytes, with all that it refers to.
func Size(value any) int {
	v := reflect.ValueOf(value)
	if !v.IsValid() {
		return 0
	}
	return int(v.Type().Size()) + beyond(v)
}

// beyond is the memory that a value refers to.
func beyond(v reflect.Value) (size int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return int(v.Elem().Type().Size()) + beyond(v.Elem())
		}
	case reflect.Slice:
		size = v.Cap() * int(v.Type().Elem().Size())
		if refers(v.Type().Elem().Kind()) {
			for i := range v.Len() {
				size += beyond(v.Index(i))
			}
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		size = 48
		for entries := v.MapRange(); entries.Next(); {
			size += entry + int(v.Type().Key().Size()+v.Type().Elem().Size()) + beyond(entries.Key()) + beyond(entries.Value())
		}
	case reflect.Struct:
		if v.Type() == instant { // all of a place share its time zone
			return 0
		}
		for i := range v.NumField() {
			if refers(v.Type().Field(i).Type.Kind()) {
				size += beyond(v.Field(i))
			}
		}
	}
	return size
}

// refers reports whether values of a kind may refer to other memory.
func refers(kind reflect.Kind) bool {
	switch kind {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Struct, reflect.Array:
		return true
	}
	return false
}
