// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"regexp"
	"strings"
)

// fields are the values by which a resource can be filtered.
type fields map[string][]string

// add adds the filters that every resource with tags has.
func (f fields) tagged(tags Tags) fields {
	for key, value := range tags {
		f["tag:"+key] = []string{value}
		f["tag-key"] = append(f["tag-key"], key)
	}
	return f
}

// one is a field with one value.
func one(value string) []string { return []string{value} }

// matches reports whether a resource passes all filters of a request. A filter that isn't in fields is unknown, but one of a tag.
func matches(p Params, f fields) (bool, error) {
	passes := true
	for _, filter := range p.Structs("Filter") {
		name := filter.Get("Name")
		values, known := f[name]
		if !known && name != "tag-key" && !strings.HasPrefix(name, "tag:") {
			return false, unimplemented("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		if !anyMatches(filter.List("Value"), values) {
			passes = false
		}
	}
	return passes, nil
}

// anyMatches reports whether one of the patterns matches one of the values: * stands for any text, ? for a character.
func anyMatches(patterns, values []string) bool {
	for _, pattern := range patterns {
		quoted := regexp.QuoteMeta(pattern)
		quoted = strings.ReplaceAll(strings.ReplaceAll(quoted, `\*`, `.*`), `\?`, `.`)
		expression := regexp.MustCompile(`(?s)^` + quoted + `$`) // a quoted text is an expression
		for _, value := range values {
			if expression.MatchString(value) {
				return true
			}
		}
	}
	return false
}

// wanted reports whether an ID is one of those that a request names, or it names none.
func wanted(p Params, name, id string) bool {
	ids := p.List(name)
	if len(ids) == 0 {
		return true
	}
	for _, other := range ids {
		if other == id {
			return true
		}
	}
	return false
}

// known returns an error for the first ID of a request that doesn't exist.
func known[V any](p Params, name string, values map[string]V, code, format string) error {
	for _, id := range p.List(name) {
		if _, ok := values[id]; !ok {
			return &Error{Code: code, Message: strings.ReplaceAll(format, "%s", id)}
		}
	}
	return nil
}
