// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	kjson "sigs.k8s.io/json"
)

// Object is an object as an API server sends it: JSON, or protobuf without the envelope.
type Object struct {
	Raw      []byte
	Protobuf bool
}

// ListMeta is a list's metadata.
type ListMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// idle is the size of a buffer at rest; one of more than retained is released.
const (
	idle     = 1 << 10
	retained = 64 << 10
)

var envelope = []byte("k8s\x00")

// Items reads a list and calls do for each item, as soon as it was read. The item is valid until do returns. limit is
// that of an item, and Items has no more than twice as much of the list in memory.
func Items(r io.Reader, limit int, do func(Object) error) (ListMeta, error) {
	s := &source{r: r, limit: limit, growth: retained}
	if err := s.atLeast(len(envelope)); err != nil {
		return ListMeta{}, err
	}
	if bytes.HasPrefix(s.rest(), envelope) {
		s.start += len(envelope)
		return s.protobufItems(do)
	}
	return s.jsonItems(do)
}

func (s *source) jsonItems(do func(Object) error) (found ListMeta, err error) {
	err = s.members('{', '}', func() error {
		raw, err := s.value()
		if err != nil {
			return err
		}
		key, err := (&scanner{data: raw}).key()
		if err != nil {
			return err
		}
		isItems, isMeta := string(key) == "items", string(key) == "metadata" // what follows may move the buffer
		if c, err := s.peek(); err != nil || c != ':' {
			return errors.Join(ErrMalformed, err)
		}
		s.start++
		c, err := s.peek()
		switch {
		case err != nil:
			return err
		case isItems && c == '[':
			return s.members('[', ']', func() error {
				raw, err := s.value()
				if err != nil {
					return err
				}
				return do(Object{Raw: raw})
			})
		}
		if raw, err = s.value(); err != nil {
			return err
		}
		if isMeta {
			err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &found)
		}
		return err
	})
	return found, err
}

func (s *source) protobufItems(do func(Object) error) (found ListMeta, err error) {
	left := -1 // of the list; negative outside
	for {
		if left == 0 {
			return found, nil // what follows describes the content
		}
		before := s.read
		tag, err := s.varint()
		if errors.Is(err, io.EOF) && left < 0 {
			return found, io.ErrUnexpectedEOF
		}
		if err != nil {
			return found, err
		}
		number, wireType := protowire.DecodeTag(tag)
		if wireType != protowire.BytesType {
			return found, ErrMalformed
		}
		length, err := s.varint()
		if err != nil {
			return found, err
		}
		if left < 0 && number == 2 {
			left = int(min(length, 1<<40))
			continue
		}
		if length > uint64(s.limit) {
			return found, ErrTooLarge
		}
		if err := s.atLeast(int(length)); err != nil {
			return found, noEOF(err)
		}
		content := s.rest()[:length]
		s.advance(int(length))
		if left < 0 {
			continue
		}
		if left -= s.read - before; left < 0 {
			return found, ErrMalformed
		}
		switch number {
		case 1:
			version, err := last(content, 2)
			if err != nil {
				return found, err
			}
			next, err := last(content, 3)
			if err != nil {
				return found, err
			}
			found = ListMeta{ResourceVersion: string(version), Continue: string(next)}
		case 2:
			if err := do(Object{Raw: content, Protobuf: true}); err != nil {
				return found, err
			}
		}
	}
}

// Events splits a watch's stream.
type Events struct {
	source   source
	protobuf bool
	begun    bool
}

// NewEvents returns the Events of a watch. Its memory is limited by the limit of an event.
func NewEvents(r io.Reader, limit int) *Events {
	return &Events{source: source{r: r, limit: limit, growth: idle}}
}

// Next returns the next event's type and object, which are valid until the next call. Its error is io.EOF after the last
// event.
func (e *Events) Next() (kind string, object Object, err error) {
	if !e.begun {
		if err := e.source.atLeast(1); err != nil {
			return "", Object{}, err
		}
		// The length of an event takes four bytes, of which no event needs the first.
		e.begun, e.protobuf = true, e.source.rest()[0] == 0
	}
	if e.protobuf {
		return e.nextProtobuf()
	}
	if _, err := e.source.peek(); err != nil {
		return "", Object{}, err
	}
	raw, err := e.source.value()
	if err != nil {
		return "", Object{}, err
	}
	s := &scanner{data: raw}
	if raw[0] != '{' {
		return "", Object{}, ErrMalformed
	}
	err = s.nested('{', '}', func(bool) error {
		key, err := s.key()
		if err != nil {
			return err
		}
		if c, err := s.next(); err != nil || c != ':' {
			return ErrMalformed
		}
		s.pos++
		s.space()
		start := s.pos
		if err := s.skip(false); err != nil {
			return err
		}
		switch string(key) {
		case "type":
			kind = string(bytes.Trim(raw[start:s.pos], `"`))
		case "object":
			object.Raw = raw[start:s.pos]
		}
		return nil
	})
	return kind, object, err
}

func (e *Events) nextProtobuf() (kind string, object Object, err error) {
	s := &e.source
	if err := s.atLeast(4); err != nil {
		return "", Object{}, err
	}
	length := binary.BigEndian.Uint32(s.rest())
	if uint64(length) > uint64(s.limit) {
		return "", Object{}, ErrTooLarge
	}
	s.advance(4)
	if err := s.atLeast(int(length)); err != nil {
		return "", Object{}, noEOF(err)
	}
	event := s.rest()[:length]
	s.advance(int(length))
	name, err := last(event, 1)
	if err != nil {
		return "", Object{}, err
	}
	extension, err := last(event, 2)
	if err != nil {
		return "", Object{}, err
	}
	content, err := last(extension, 1)
	if err != nil {
		return "", Object{}, err
	}
	object, err = Unwrap(content)
	return string(name), object, err
}

// Unwrap removes the envelope of an object in protobuf. Content without one is JSON.
func Unwrap(content []byte) (Object, error) {
	wrapped, ok := bytes.CutPrefix(content, envelope)
	if !ok {
		return Object{Raw: content}, nil
	}
	raw, err := last(wrapped, 2)
	return Object{Raw: raw, Protobuf: true}, err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// source is a reader with a buffer of one value.
type source struct {
	r          io.Reader
	buffer     []byte
	start, end int
	limit      int
	growth     int // the least size of the buffer
	read       int // how many bytes were consumed by advance
}

func (s *source) rest() []byte { return s.buffer[s.start:s.end] }

func (s *source) advance(n int) {
	s.start += n
	s.read += n
}

// fill reads more.
func (s *source) fill() error {
	if s.start == s.end {
		if s.start, s.end = 0, 0; len(s.buffer) > max(retained, s.growth) || s.buffer == nil {
			s.buffer = make([]byte, s.growth)
		}
	}
	if s.start > 0 && s.end == len(s.buffer) {
		s.end = copy(s.buffer, s.rest())
		s.start = 0
	}
	if s.end == len(s.buffer) {
		if s.end > s.limit {
			return ErrTooLarge
		}
		s.buffer = append(s.buffer, make([]byte, len(s.buffer))...)
	}
	for range 100 {
		n, err := s.r.Read(s.buffer[s.end:])
		if s.end += n; n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// atLeast reads so many bytes.
func (s *source) atLeast(n int) error {
	for s.end-s.start < n {
		if err := s.fill(); err != nil {
			if errors.Is(err, io.EOF) && s.start < s.end {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

func (s *source) varint() (uint64, error) {
	for n := 1; ; n++ {
		if err := s.atLeast(n); err != nil {
			return 0, err
		}
		if s.rest()[n-1] < 0x80 {
			value, read := protowire.ConsumeVarint(s.rest())
			if read < 0 {
				return 0, ErrMalformed
			}
			s.advance(read)
			return value, nil
		}
		if n > 10 {
			return 0, ErrMalformed
		}
	}
}

// peek returns the next byte of JSON that isn't white space.
func (s *source) peek() (byte, error) {
	for {
		for ; s.start < s.end; s.start++ {
			switch c := s.buffer[s.start]; c {
			case ' ', '\n', '\t', '\r':
			default:
				return c, nil
			}
		}
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

// members calls read for each member of an object or an array.
func (s *source) members(opened, closed byte, read func() error) error {
	c, err := s.peek()
	if err != nil {
		return noEOF(err)
	}
	if c != opened {
		return ErrMalformed
	}
	s.start++
	for first := true; ; first = false {
		if c, err = s.peek(); err != nil {
			return noEOF(err)
		}
		if c != closed || !first {
			if err := read(); err != nil {
				return noEOF(err)
			}
			if c, err = s.peek(); err != nil {
				return noEOF(err)
			}
		}
		s.start++
		switch c {
		case closed:
			return nil
		case ',':
			if _, err := s.peek(); err != nil {
				return noEOF(err)
			}
		default:
			return ErrMalformed
		}
	}
}

// value reads one value of JSON.
func (s *source) value() ([]byte, error) {
	if _, err := s.peek(); err != nil {
		return nil, noEOF(err)
	}
	depth, inText, escaped := 0, false, false
	for n := 0; ; {
		for rest := s.rest(); n < len(rest); n++ {
			c := rest[n]
			switch {
			case escaped:
				escaped = false
				continue
			case inText && c == '\\':
				escaped = true
				continue
			case inText && c != '"':
				continue
			case inText:
				inText = false
			case c == '"':
				inText = true
				continue
			case c == '{' || c == '[':
				depth++
				continue
			case c == '}' || c == ']':
				if depth == 0 { // of what a number is in
					return s.taken(n)
				}
				depth--
			case depth == 0 && ends(c):
				return s.taken(n)
			default:
				continue
			}
			if depth == 0 {
				return s.taken(n + 1)
			}
		}
		if n > s.limit {
			return nil, ErrTooLarge
		}
		if err := s.fill(); err != nil {
			return nil, noEOF(err)
		}
	}
}

func (s *source) taken(n int) ([]byte, error) {
	if n == 0 {
		return nil, ErrMalformed
	}
	taken := s.rest()[:n]
	s.start += n
	return taken, nil
}
