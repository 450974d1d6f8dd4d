// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
)

var (
	// errTooLarge is the error of a value of more than maxText bytes.
	errTooLarge  = errors.New("it is too large")
	errMalformed = errors.New("it is malformed")
	// errPosition is the error of a resourceVersion or a continue token of more than maxPosition bytes.
	errPosition = errors.New("its resourceVersion or continue token is longer than a request may be")
)

// maxPosition is the longest resourceVersion or continue token that the next request repeats. etcd's are shorter than a name's limit.
const maxPosition = 1 << 10

// retained is the size of a buffer that a watch keeps between two events.
const retained = 4 << 10

// stream reads JSON value by value. It has up to twice maxText bytes in memory.
type stream struct {
	decoder *jsontext.Decoder
	body    io.LimitedReader
}

func newStream(body io.Reader) *stream {
	s := &stream{body: io.LimitedReader{R: body}}
	s.begin()
	return s
}

func (s *stream) begin() {
	s.decoder = jsontext.NewDecoder(&s.body, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// next returns the kind of the next token.
func (s *stream) next() jsontext.Kind {
	s.body.N = maxText
	return s.decoder.PeekKind()
}

// token reads a token of a kind.
func (s *stream) token(kind jsontext.Kind) (jsontext.Token, error) {
	if next := s.next(); next != kind && next != jsontext.KindInvalid {
		return jsontext.Token{}, errMalformed
	}
	token, err := s.decoder.ReadToken()
	return token, s.bounded(err)
}

// value reads a value, which is valid until the next call.
func (s *stream) value() (jsontext.Value, error) {
	s.body.N = maxText
	value, err := s.decoder.ReadValue()
	return value, s.bounded(err)
}

func (s *stream) bounded(err error) error {
	if err != nil && s.body.N <= 0 {
		return errTooLarge
	}
	return err
}

// listMeta is a list's metadata.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// readItems reads a list and calls do for each item, as soon as it was read. The item is valid until do returns.
func readItems(body io.Reader, do func(raw []byte) error) (found listMeta, err error) {
	s := newStream(body)
	if _, err := s.token(jsontext.KindBeginObject); err != nil {
		return found, err
	}
	for s.next() != jsontext.KindEndObject {
		token, err := s.token(jsontext.KindString)
		if err != nil {
			return found, err
		}
		switch name := token.String(); {
		case name == "items" && s.next() == jsontext.KindBeginArray:
			err = s.elements(do)
		default:
			var raw jsontext.Value
			if raw, err = s.value(); err == nil && name == "metadata" {
				err = json.Unmarshal(raw, &found, unread)
			}
			if max(len(found.ResourceVersion), len(found.Continue)) > maxPosition {
				return listMeta{}, errPosition
			}
		}
		if err != nil {
			return found, err
		}
	}
	_, err = s.token(jsontext.KindEndObject)
	return found, err
}

func (s *stream) elements(do func(raw []byte) error) error {
	if _, err := s.token(jsontext.KindBeginArray); err != nil {
		return err
	}
	for s.next() != jsontext.KindEndArray {
		raw, err := s.value()
		if err != nil {
			return err
		}
		if err := do(raw); err != nil {
			return err
		}
	}
	_, err := s.token(jsontext.KindEndArray)
	return err
}

// event reads an event of a watch. The object is valid until the next call. The error is io.EOF after the last event.
func (s *stream) event() (kind string, object []byte, err error) {
	if s.decoder.InputOffset() > retained && len(s.decoder.UnreadBuffer()) == 0 {
		s.begin() // which releases a large buffer
	}
	raw, err := s.value()
	if err != nil {
		return "", nil, err
	}
	var event struct {
		Type   string `json:"type"`
		Object extent `json:"object"`
	}
	err = json.Unmarshal(raw, &event, unread)
	return event.Type, raw[event.Object.start:event.Object.end], err
}

// extent is the place of a value within the JSON around it.
type extent struct{ start, end int }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (e *extent) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	value, err := decoder.ReadValue()
	e.end = int(decoder.InputOffset())
	e.start = e.end - len(value)
	return err
}
