// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/autonode-io/autonode/lenient/exponent"
	"github.com/autonode-io/autonode/message"
)

const (
	// maxDepth limits how deep values are nested: some unmarshalers parse their content once for each level.
	maxDepth = 128
	// maxFaults limits the values of one text that are dropped. A text with more isn't used at all.
	maxFaults = 16
	// entry is the memory of a dictionary's entry beside its key and value, and anything of a value of any type.
	entry = 64
)

const notQuantity = "isn't a quantity with an exponent of at most three digits and 256 bytes"

var (
	// ErrTooLarge is the error of a text that would need more memory than allowed.
	ErrTooLarge = errors.New("it would need too much memory")
	// ErrMalformed is the error of a text that isn't JSON or protobuf.
	ErrMalformed = errors.New("it is malformed")
	// ErrFaults is the error of a text with too many values that can't be used.
	ErrFaults = errors.New("too many of its values can't be used")
)

// Fault is a value that can't be decoded, or whose decoding would take too long.
type Fault struct {
	// Path of the value, and its Problem. Both quote the input, and are of bounded length.
	Path, Problem string
}

func (f Fault) String() string { return f.Path + ": " + f.Problem }

// Checked is the result of checking a text.
type Checked struct {
	// Cost is an upper bound of the memory for the decoded values, in bytes.
	Cost int
	// Faults are the values that can't be used.
	Faults []Fault
}

// CheckJSON measures JSON, and returns the quantities that must not be decoded. It returns an error if the JSON is
// malformed or costs more than the limit.
func (t *Type) CheckJSON(data []byte, limit int) (Checked, error) {
	s := scanner{data: data, limit: limit}
	err := s.run(t)
	return s.Checked, err
}

// FilterJSON is CheckJSON that appends to dst the JSON of the fields that the Type reads, without the values that can't be used.
// Fields that the Type lacks cost nothing.
func (t *Type) FilterJSON(dst, data []byte, limit int) ([]byte, Checked, error) {
	s := scanner{data: data, limit: limit, writes: true, out: dst}
	err := s.run(t)
	return s.out, s.Checked, err
}

// Decode decodes JSON that the Type has filtered. If that fails it tries each value, and leaves those out that can't be
// decoded. It returns them.
func (t *Type) Decode(data []byte, limit int, into any) ([]Fault, error) {
	err := kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	if err == nil {
		return nil, nil
	}
	s := scanner{data: data, limit: limit, writes: true, tries: true}
	if failed := s.run(t); failed != nil || len(s.Faults) == 0 {
		return s.Faults, errors.Join(ErrMalformed, err)
	}
	reflect.ValueOf(into).Elem().SetZero()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(s.out, into); err != nil {
		return s.Faults, errors.Join(ErrMalformed, err)
	}
	return s.Faults, nil
}

type scanner struct {
	Checked
	data  []byte
	pos   int
	limit int
	depth int
	path  [][]byte
	// writes: out receives the fields that are read. tries: each plain value is decoded.
	writes, tries bool
	out           []byte
}

func (s *scanner) run(t *Type) error {
	s.Cost = t.size
	usable, err := s.value(t)
	if s.space(); err == nil && s.pos != len(s.data) {
		err = ErrMalformed
	}
	if err == nil && !usable {
		err = ErrMalformed
	}
	return err
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) next() (byte, error) {
	s.space()
	if s.pos >= len(s.data) {
		return 0, ErrMalformed
	}
	return s.data[s.pos], nil
}

func (s *scanner) pay(bytes int) error {
	if s.Cost += bytes; s.Cost > s.limit {
		return ErrTooLarge
	}
	return nil
}

// fault records that the value from start to here can't be used.
func (s *scanner) fault(start int, problem string) error {
	if len(s.Faults) >= maxFaults {
		return ErrFaults
	}
	path := string(bytes.Join(s.path, []byte(".")))
	s.Faults = append(s.Faults, Fault{Path: excerpt(path), Problem: fmt.Sprintf("%s %s", excerpt(string(s.data[start:s.pos])), problem)})
	return nil
}

// excerpt quotes text unless it is plain, and truncates it.
func excerpt(text string) string {
	const limit = 64
	text = message.Cut(text, limit)
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r > 0x7e && r != '…' }) {
		return fmt.Sprintf("%+q", text)
	}
	return text
}

// value reads a value of a type, and reports whether it can be used. Unusable values aren't written.
func (s *scanner) value(t *Type) (usable bool, err error) {
	first, err := s.next()
	if err != nil {
		return false, err
	}
	start := s.pos
	if first == 'n' { // null is the zero value of everything
		return true, s.leaf(start)
	}
	switch {
	case t.form == either && first == '[':
		return true, s.each(t.elem)
	case t.form == either && first == '{':
		if err := s.pay(t.elem.size); err != nil {
			return false, err
		}
		return s.value(t.elem)
	case t.form == structure && first == '{':
		return true, s.object(t, 0)
	case t.form == dictionary && first == '{':
		return true, s.object(t, entry+2*t.elem.size)
	case t.form == list && first == '[':
		return true, s.each(t.elem)
	case t.form == list && first == '{' && t.goType.Kind() == reflect.Pointer: // see of
		if err := s.pay(t.elem.size); err != nil {
			return false, err
		}
		return s.value(t.elem)
	case t.form == verbatim, t.form == free, t.form == either, t.custom && (first == '{' || first == '['):
		cost := s.Cost
		if err := s.skip(true); err != nil {
			return false, err
		}
		if t.form == verbatim {
			s.Cost = cost + s.pos - start
		}
		s.write(start)
		return true, s.pay(0)
	}
	if t.form == plain && first != '{' && first != '[' || t.form == quantity {
		return s.plain(t, start, first)
	}
	if t.form == list && t.goType.Kind() == reflect.Slice && t.goType.Elem().Kind() == reflect.Uint8 && first == '"' {
		return true, s.leaf(start)
	}
	if err := s.skip(false); err != nil {
		return false, err
	}
	return false, s.fault(start, "has another type than is expected")
}

func (s *scanner) plain(t *Type, start int, first byte) (usable bool, err error) {
	if err := s.skip(false); err != nil {
		return false, err
	}
	raw := s.data[start:s.pos]
	switch {
	case t.form == quantity && !exponent.Bounded(string(bytes.Trim(raw, `" `))):
		return false, s.fault(start, notQuantity)
	case s.tries:
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(t.goType).Interface()); err != nil {
			return false, s.fault(start, "can't be decoded")
		}
	}
	s.write(start)
	if first == '"' {
		return true, s.pay(len(raw))
	}
	return true, nil
}

// leaf reads a value that nothing has to be known of.
func (s *scanner) leaf(start int) error {
	if err := s.skip(false); err != nil {
		return err
	}
	s.write(start)
	return s.pay(s.pos - start)
}

func (s *scanner) write(start int) {
	if s.writes {
		s.out = append(s.out, s.data[start:s.pos]...)
	}
}

// field returns the type of a field of a structure, or an entry of a dictionary; nil if it isn't read.
func (t *Type) field(key []byte) *Type {
	if t.form == structure {
		return t.fields[string(key)]
	}
	if t.keys != nil && !t.keys[string(key)] {
		return nil
	}
	return t.elem
}

// each reads an array.
func (s *scanner) each(elem *Type) error {
	return s.nested('[', ']', func(first bool) error {
		if err := s.pay(2 * elem.size); err != nil { // growing slices are copied
			return err
		}
		if s.writes && !first {
			s.out = append(s.out, ',')
		}
		usable, err := s.value(elem)
		if err == nil && !usable && s.writes {
			s.out = append(s.out, "null"...)
		}
		return err
	})
}

// object reads a structure or a dictionary, of which each entry costs so much.
func (s *scanner) object(t *Type, each int) error {
	written := false
	return s.nested('{', '}', func(bool) error {
		start := s.pos
		key, err := s.key()
		if err != nil {
			return err
		}
		raw := s.data[start:s.pos]
		if c, err := s.next(); err != nil || c != ':' {
			return ErrMalformed
		}
		s.pos++
		field := t.field(key)
		if field == nil {
			if !s.writes { // the text may be decoded as something else, too
				return s.skip(true)
			}
			return s.skip(false)
		}
		if each > 0 {
			if err := s.pay(each + len(key)); err != nil {
				return err
			}
		}
		rest := len(s.out)
		if s.writes {
			if written {
				s.out = append(s.out, ',')
			}
			s.out = append(append(s.out, raw...), ':')
		}
		s.path = append(s.path, raw[1:len(raw)-1])
		usable, err := s.value(field)
		s.path = s.path[:len(s.path)-1]
		if !usable {
			s.out = s.out[:rest]
		}
		written = written || usable
		return err
	})
}

// nested reads the values between brackets.
func (s *scanner) nested(opened, closed byte, read func(first bool) error) error {
	if s.depth++; s.depth > maxDepth {
		return ErrTooLarge
	}
	defer func() { s.depth-- }()
	s.pos++
	if s.writes {
		s.out = append(s.out, opened)
	}
	for first := true; ; first = false {
		c, err := s.next()
		switch {
		case err != nil:
			return err
		case c == closed && first:
		default:
			if err := read(first); err != nil {
				return err
			}
			if c, err = s.next(); err != nil {
				return err
			}
		}
		s.pos++
		switch c {
		case ',':
			if _, err := s.next(); err != nil {
				return err
			}
		case closed:
			if s.writes {
				s.out = append(s.out, closed)
			}
			return nil
		default:
			return ErrMalformed
		}
	}
}

// key reads a text and returns it unquoted.
func (s *scanner) key() ([]byte, error) {
	start := s.pos
	if s.data[s.pos] != '"' {
		return nil, ErrMalformed
	}
	if err := s.text(); err != nil {
		return nil, err
	}
	raw := s.data[start:s.pos]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	var key string
	if err := json.Unmarshal(raw, &key); err != nil {
		return nil, ErrMalformed
	}
	return []byte(key), nil
}

func (s *scanner) text() error {
	for s.pos++; ; s.pos++ {
		n := bytes.IndexByte(s.data[s.pos:], '"')
		if n < 0 {
			return ErrMalformed
		}
		from := s.pos
		s.pos += n
		escapes := 0
		for end := s.pos - 1; end >= from && s.data[end] == '\\'; end-- {
			escapes++
		}
		if escapes%2 == 0 {
			s.pos++
			return nil
		}
	}
}

// skip passes over a value. It counts the value's cost as one of any type, if it is counted.
func (s *scanner) skip(counts bool) error {
	if _, err := s.next(); err != nil {
		return err
	}
	data, start, pos, opened, values := s.data, s.pos, s.pos, 0, 0
	for {
		if pos >= len(data) {
			return ErrMalformed
		}
		switch data[pos] {
		case ' ', '\n', '\t', '\r':
			pos++
			continue
		case '"':
			s.pos = pos
			if err := s.text(); err != nil {
				return err
			}
			pos = s.pos
		case '{', '[':
			values++
			pos++
			if opened++; s.depth+opened > maxDepth {
				return ErrTooLarge
			}
			continue
		case '}', ']':
			if opened == 0 {
				return ErrMalformed
			}
			pos++
			opened--
		case ',', ':':
			if opened == 0 {
				return ErrMalformed
			}
			values++
			pos++
			continue
		default:
			for pos < len(data) && !ends(data[pos]) {
				pos++
			}
		}
		if opened == 0 {
			break
		}
	}
	if s.pos = pos; counts {
		return s.pay(pos - start + values*entry)
	}
	return nil
}

// ends reports whether a byte ends a number or a constant.
func ends(c byte) bool {
	switch c {
	case ' ', '\n', '\t', '\r', ',', ':', ']', '}', '[', '{', '"':
		return true
	}
	return false
}
