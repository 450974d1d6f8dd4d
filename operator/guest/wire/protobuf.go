// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/autonode-io/autonode/lenient/exponent"
)

// CheckProtobuf is CheckJSON for the protobuf of a message, without the envelope that Kubernetes puts around an object.
func (t *Type) CheckProtobuf(data []byte, limit int) (Checked, error) {
	m := messages{limit: limit}
	_, err := m.message(nil, data, t)
	return m.Checked, err
}

// FilterProtobuf is FilterJSON for the protobuf of a message.
func (t *Type) FilterProtobuf(dst, data []byte, limit int) ([]byte, Checked, error) {
	m := messages{limit: limit, writes: true}
	dst, err := m.message(dst, data, t)
	return dst, m.Checked, err
}

type messages struct {
	Checked
	limit, depth int
	path         []string
	writes       bool
}

func (m *messages) pay(bytes int) error {
	if m.Cost += bytes; m.Cost > m.limit {
		return ErrTooLarge
	}
	return nil
}

// message reads the fields of a structure.
func (m *messages) message(out, data []byte, t *Type) ([]byte, error) {
	if m.depth == 0 {
		m.Cost = t.size
	}
	return m.fields(out, data, func(number protowire.Number) (*Type, string) { return t.numbers[int(number)], t.names[int(number)] })
}

func (m *messages) fields(out, data []byte, of func(protowire.Number) (*Type, string)) ([]byte, error) {
	if m.depth++; m.depth > maxDepth {
		return out, ErrTooLarge
	}
	defer func() { m.depth-- }()
	for len(data) > 0 {
		number, wireType, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return out, ErrMalformed
		}
		n := protowire.ConsumeFieldValue(number, wireType, data[tag:])
		if n < 0 {
			return out, ErrMalformed
		}
		whole, value := data[:tag+n], data[tag:tag+n]
		data = data[tag+n:]
		field, name := of(number)
		switch {
		case field == nil:
		case wireType != protowire.BytesType:
			if err := m.pay(8); err != nil {
				return out, err
			}
			out = m.write(out, whole)
		default:
			content, _ := protowire.ConsumeBytes(value)
			path := m.path
			if name != "" {
				m.path = append(m.path, name)
			}
			var err error
			out, err = m.value(out, whole[:tag], content, field)
			m.path = path
			if err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func (m *messages) write(out, raw []byte) []byte {
	if m.writes {
		out = append(out, raw...)
	}
	return out
}

// nested writes a message whose length is known only afterwards.
func (m *messages) nested(out, tag []byte, read func(out []byte) ([]byte, error)) ([]byte, error) {
	if !m.writes {
		return read(out)
	}
	start := len(out)
	out = append(out, tag...)
	content := len(out)
	out, err := read(out)
	if err != nil {
		return out[:start], err
	}
	size := protowire.AppendVarint(nil, uint64(len(out)-content))
	return slices.Insert(out, content, size...), nil
}

// value reads a value of a type with its tag.
func (m *messages) value(out, tag, content []byte, t *Type) ([]byte, error) {
	switch t.form {
	case quantity:
		// The decoder parses each of a repeated field.
		usable, found := true, []byte(nil)
		if err := each(content, 1, func(text []byte) {
			if usable {
				usable, found = exponent.Bounded(string(text)), text
			}
		}); err != nil {
			return out, err
		}
		if !usable {
			if len(m.Faults) >= maxFaults {
				return out, ErrFaults
			}
			m.Faults = append(m.Faults, Fault{Path: excerpt(strings.Join(m.path, ".")), Problem: excerpt(string(found)) + " " + notQuantity})
			return out, nil
		}
	case structure:
		return m.nested(out, tag, func(out []byte) ([]byte, error) { return m.message(out, content, t) })
	case list: // one of its elements: protobuf repeats the field
		if err := m.pay(2 * t.elem.size); err != nil {
			return out, err
		}
		if t.elem.form == list { // whose Go type is a message of its own
			return m.nested(out, tag, func(out []byte) ([]byte, error) {
				return m.fields(out, content, func(protowire.Number) (*Type, string) { return t.elem, "" })
			})
		}
		return m.value(out, tag, content, t.elem)
	case dictionary:
		return m.entry(out, tag, content, t)
	case either:
		if err := m.pay(len(content) / 2 * t.elem.size); err != nil {
			return out, err
		}
	}
	size := len(content)
	if t.goType != nil && t.goType.Kind() >= reflect.Bool && t.goType.Kind() <= reflect.Float64 {
		size *= 8 // packed numbers
	}
	if err := m.pay(size); err != nil {
		return out, err
	}
	if m.writes {
		out = append(out, tag...)
		out = protowire.AppendBytes(out, content)
	}
	return out, nil
}

// entry reads one entry of a dictionary.
func (m *messages) entry(out, tag, content []byte, t *Type) ([]byte, error) {
	key, err := last(content, 1)
	if err != nil {
		return out, err
	}
	if t.keys != nil && !t.keys[string(key)] {
		return out, nil
	}
	if err := m.pay(entry + 2*t.elem.size + len(key)); err != nil {
		return out, err
	}
	m.path = append(m.path, string(key[:min(len(key), 64)]))
	defer func() { m.path = m.path[:len(m.path)-1] }()
	faults := len(m.Faults)
	before := len(out)
	out, err = m.nested(out, tag, func(out []byte) ([]byte, error) {
		return m.fields(out, content, func(number protowire.Number) (*Type, string) {
			switch number {
			case 1:
				return &text, ""
			case 2:
				if t.elem.form == list { // whose Go type is a message of its own
					return &Type{form: structure, numbers: map[int]*Type{1: t.elem}}, ""
				}
				return t.elem, ""
			}
			return nil, ""
		})
	})
	if len(m.Faults) > faults {
		return out[:before], err
	}
	return out, err
}

var text = Type{form: plain, size: 16}

// each calls do for each value of a field that has a length.
func each(message []byte, wanted protowire.Number, do func(value []byte)) error {
	for len(message) > 0 {
		number, wireType, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return ErrMalformed
		}
		n := protowire.ConsumeFieldValue(number, wireType, message[tag:])
		if n < 0 {
			return ErrMalformed
		}
		if number == wanted && wireType == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[tag:])
			do(value)
		}
		message = message[tag+n:]
	}
	return nil
}

// last returns the value of a field that a decoder takes.
func last(message []byte, wanted protowire.Number) (value []byte, err error) {
	err = each(message, wanted, func(v []byte) { value = v })
	return value, err
}
