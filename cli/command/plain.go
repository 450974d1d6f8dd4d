// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// plainError has the text of an error without what only a programmer understands.
type plainError struct {
	error
	text string
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.error }

// internals are what Go's libraries write about values that they can't read, and what that means.
var internals = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`error converting YAML to JSON: `), ""},
	{regexp.MustCompile(`error unmarshall?ing JSON: (while decoding JSON: )?`), ""},
	{regexp.MustCompile(`(^|\s)yaml: (?:unmarshal errors:\s*)?`), "$1"},
	{regexp.MustCompile(`json: cannot unmarshal (\w+)(?: [^ ]+)? into Go struct field [^ .]*\.?([^ ]*) of type [^\s;,)]+`),
		"field $2 has the wrong type, $1"},
	{regexp.MustCompile(`json: cannot unmarshal (\w+)(?: [^ ]+)? into Go value of type [^\s;,)]+( \{\})?`), "it has the wrong type, $1"},
	{regexp.MustCompile(`json: cannot unmarshal (\w+) into \.?(\S+) of type [^\s;,)]+`), "field $2 has the wrong type, $1"},
	{regexp.MustCompile("cannot unmarshal !!(\\w+) (`[^`]*`) into [^\\s;,)]+"), "$2 can't be there"},
	{regexp.MustCompile(`json: unknown field`), "unknown field"},
	{regexp.MustCompile(`strict decoding error: `), ""},
	{regexp.MustCompile(`cannot restore (\w+) from:? ?(\w+)`), "must be a $1, not a $2"},
	{regexp.MustCompile(`strconv\.ParseBool: parsing ("[^"]*"): invalid syntax`), "$1 is neither true nor false"},
	{regexp.MustCompile(`strconv\.\w+: parsing ("[^"]*"): (invalid syntax|value out of range)`), "$1 isn't a number that fits"},
	{regexp.MustCompile(`time: (invalid duration|unknown unit|missing unit in duration)`), "$1"},
	{regexp.MustCompile(`\*?\b(v1beta1|v1alpha1|v1)\.([A-Z]\w+)`), "$2"},
}

// plain rewrites what Go's libraries say in the words of what a person wrote.
func plain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, internal := range internals {
		text = internal.pattern.ReplaceAllString(text, internal.text)
	}
	if text == err.Error() {
		return err
	}
	return &plainError{err, text}
}

// forms are what the values of flags look like, by the flag's type.
var forms = map[string]string{
	"bool": "true or false", "int": "a whole number", "int32": "a whole number", "int64": "a whole number", "float64": "a number",
	"duration": "a duration, such as 90s or 5m", "stringToString": "KEY=VALUE",
}

// flagError reports what is wrong with a flag, and where its use is explained.
func flagError(path string, err error) error {
	var choice choiceError
	if errors.As(err, &choice) {
		return choice.error
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		if want := forms[flag.Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: must be %s; see `%s --help`", flag.Name, invalid.GetValue(), want, path)
		}
	}
	return fmt.Errorf("%s; see `%s --help`", strings.TrimSpace(plain(err).Error()), path)
}
