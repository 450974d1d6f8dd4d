// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

const (
	// maxWhole bounds a file that is read as a whole, in bytes: a table or YAML.
	maxWhole = 64 << 20
	// maxValue bounds one value of a JSON file, in bytes: a product, or the answer of one request. A list has any size.
	maxValue = 16 << 20
)

// source is a file that is read once. It is empty for none.
type source struct {
	reader *bufio.Reader
	isJSON bool
}

// open looks at the beginning of a file. PowerShell writes UTF-16 and spreadsheets a byte order mark.
func open(from io.Reader) (*source, error) {
	if from == nil {
		return &source{}, nil
	}
	reader := bufio.NewReaderSize(transform.NewReader(from, unicode.BOMOverride(transform.Nop)), 64<<10)
	for {
		next, err := reader.Peek(1)
		switch {
		case errors.Is(err, io.EOF):
			return &source{}, nil
		case err != nil:
			return nil, err
		case bytes.ContainsAny(next, " \t\r\n"):
			_, _ = reader.Discard(1) // which was peeked
		default:
			return &source{reader, next[0] == '{' || next[0] == '['}, nil
		}
	}
}

func (f *source) isEmpty() bool { return f.reader == nil }

// whole reads all of a file.
func (f *source) whole() ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f.reader, maxWhole+1))
	if err == nil && len(content) > maxWhole {
		err = fmt.Errorf("it has more than %d bytes", maxWhole)
	}
	return content, err
}

// stream reads JSON value by value, so that a file of any size needs the memory of its largest value.
type stream struct {
	*jsontext.Decoder
	from        io.Reader
	read, lines int64
}

func newStream(from io.Reader) *stream {
	s := &stream{from: from}
	s.Decoder = jsontext.NewDecoder(s, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return s
}

// Read is for the decoder. It fails in a value that is too large, and counts lines.
func (s *stream) Read(into []byte) (int, error) {
	if s.read-s.InputOffset() > maxValue {
		return 0, fmt.Errorf("a value has more than %d bytes", maxValue)
	}
	n, err := s.from.Read(into)
	s.read, s.lines = s.read+int64(n), s.lines+int64(bytes.Count(into[:n], []byte("\n")))
	return n, err
}

// documents calls each for every document of a file, which it has to read: tools append the pages of an answer.
func (s *stream) documents(each func(jsontext.Kind) error) error {
	for {
		kind := s.PeekKind()
		var err error
		if kind == jsontext.KindInvalid {
			_, err = s.ReadToken() // which returns why
		} else {
			err = each(kind)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			rest := bytes.TrimLeft(s.UnreadBuffer(), ",: \t\r\n") // before the value
			line := 1 + s.lines - int64(bytes.Count(rest, []byte("\n")))
			return fmt.Errorf("line %d: %w", line, cmp.Or(errors.Unwrap(err), err)) // without the decoder's own position
		}
	}
}

// fields calls each with each key of the next value, which is an object. each has to read the key's value.
func (s *stream) fields(each func(key string) error) error {
	if s.PeekKind() != jsontext.KindBeginObject {
		return cmp.Or(s.SkipValue(), errors.New("not an object"))
	}
	return s.inside(func(int) error {
		token, err := s.ReadToken()
		if err != nil {
			return err
		}
		return each(token.String())
	})
}

// items calls each for each item of the next value, which is a list. each has to read the item.
func (s *stream) items(field string, each func(i int) error) error {
	if s.PeekKind() != jsontext.KindBeginArray {
		return cmp.Or(s.SkipValue(), fmt.Errorf("%s has to be a list", field))
	}
	return s.inside(each)
}

// inside calls each until the next value, an object or a list, has no more.
func (s *stream) inside(each func(i int) error) error {
	_, err := s.ReadToken()
	for i := 0; err == nil; i++ {
		if next := s.PeekKind(); next == jsontext.KindEndObject || next == jsontext.KindEndArray {
			_, err = s.ReadToken()
			return err
		}
		err = each(i)
	}
	return err
}

// problemOf reports something at a place of a file.
type problemOf func(where, format string, args ...any)

// list adds each item of a list, or of the field of an object; an empty field is none. Documents are pages of an answer.
func list[T any](file *source, field, what string, problem problemOf, add func(where string, item *T) error) error {
	s, found := newStream(file.reader), false
	items := func() error {
		found = true
		return s.items(field, func(i int) error { return next(s, fmt.Sprintf("%s[%d]", field, i), problem, add) })
	}
	err := s.documents(func(kind jsontext.Kind) error {
		switch {
		case kind == jsontext.KindBeginArray:
			return items()
		case kind == jsontext.KindBeginObject && field != "":
			return s.fields(func(key string) error {
				if strings.EqualFold(key, field) {
					return items()
				}
				return s.SkipValue()
			})
		}
		return errors.New("not a list")
	})
	if err == nil && !found {
		err = fmt.Errorf("it has no %s", cmp.Or(field, "list"))
	}
	if err != nil {
		return fmt.Errorf("not %s: %w", what, err)
	}
	return nil
}

// next decodes and adds the next value.
func next[T any](s *stream, where string, problem problemOf, add func(where string, item *T) error) error {
	raw, err := s.ReadValue()
	if err != nil {
		return err
	}
	return decodeItem(where, raw, problem, add)
}

// decodeItem decodes and adds one item. One that isn't as expected spoils no other.
func decodeItem[T any](where string, raw []byte, problem problemOf, add func(where string, item *T) error) error {
	item := new(T)
	if err := decode(raw, item); err != nil {
		problem(named(where, raw), "%s", err)
		return nil
	}
	return add(where, item)
}

// named is a machine type that can't be decoded, by its index and its name if it has one.
func named(where string, item []byte) string {
	name := struct{ Name, InstanceType string }{}
	_ = json.Unmarshal(item, &name) // the fields that it can
	return strings.TrimSpace(where + " " + shown(cmp.Or(name.InstanceType, name.Name)))
}

// jsonKinds are what a value of a Go type is in JSON.
var jsonKinds = map[reflect.Kind]string{
	reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object", reflect.String: "text", reflect.Bool: "true or false",
	reflect.Int64: "a number", reflect.Float64: "a number",
}

// decode decodes JSON. An error about a value of the wrong type names its field rather than the Go type that it doesn't fit.
func decode(raw []byte, into any) error {
	err := json.Unmarshal(raw, into)
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return err
	}
	return fmt.Errorf("%s has to be %s, not %s", cmp.Or(strings.TrimPrefix(mismatch.Field, "."), "the file"),
		cmp.Or(jsonKinds[mismatch.Type.Kind()], "another value"), mismatch.Value)
}
