// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// bounded fails when too much is read without a mark. It counts lines.
type bounded struct {
	io.Reader
	since, lines int
}

func (b *bounded) Read(into []byte) (int, error) {
	if b.since > maxValue {
		return 0, fmt.Errorf("a value has more than %d bytes", maxValue)
	}
	n, err := b.Reader.Read(into)
	b.since, b.lines = b.since+n, b.lines+bytes.Count(into[:n], []byte("\n"))
	return n, err
}

// stream reads JSON value by value, so that a file of any size needs the memory of its largest value.
type stream struct {
	*json.Decoder
	from *bounded
}

func newStream(from io.Reader) *stream {
	b := &bounded{Reader: from}
	s := &stream{json.NewDecoder(b), b}
	s.UseNumber()
	return s
}

// documents calls each for every document of a file: tools append the pages of an answer.
func (s *stream) documents(each func(json.Token) error) error {
	for {
		token, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = each(token)
		}
		if err != nil {
			rest, _ := io.ReadAll(s.Buffered())
			rest = bytes.TrimLeft(rest, ",: \t\r\n") // before the value
			return fmt.Errorf("line %d: %w", 1+s.from.lines-bytes.Count(rest, []byte("\n")), err)
		}
	}
}

// pages calls each for each item of a file: of a list, or of the field of an object; an empty field is none. Documents are pages of an
// answer.
func (s *stream) pages(field string, each func(i int) error) error {
	found := false
	err := s.documents(func(token json.Token) error {
		switch {
		case token == json.Delim('['):
			found = true
			return s.items(each)
		case token == json.Delim('{') && field != "":
			return s.fields(func(key string) error {
				if !strings.EqualFold(key, field) {
					return s.skip()
				}
				found = true
				return s.list(key, each)
			})
		}
		return errors.New("not a list")
	})
	if err == nil && !found {
		err = fmt.Errorf("it has no %s", cmp.Or(field, "list"))
	}
	return err
}

func (s *stream) next() (json.Token, error) {
	s.from.since = 0
	return s.Token()
}

// raw returns the next value.
func (s *stream) raw() (json.RawMessage, error) {
	s.from.since = 0
	var raw json.RawMessage
	err := s.Decode(&raw)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return raw, err
}

// fields calls each with each key of an object whose brace was read. each has to read the value.
func (s *stream) fields(each func(key string) error) error {
	for s.More() {
		token, err := s.next()
		if err != nil {
			return err
		}
		key, _ := token.(string) // as the decoder has checked
		if err := each(key); err != nil {
			return err
		}
	}
	return s.end()
}

// items calls each for each item of a list whose bracket was read. each has to read the item.
func (s *stream) items(each func(i int) error) error {
	for i := 0; s.More(); i++ {
		if err := each(i); err != nil {
			return err
		}
	}
	return s.end()
}

func (s *stream) end() error {
	_, err := s.next()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// object is fields of the next value, and reports another value than an object.
func (s *stream) object(each func(key string) error) error {
	token, err := s.next()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return errors.New("not an object")
	}
	return s.fields(each)
}

// list is items of the next value, which a field has.
func (s *stream) list(field string, each func(i int) error) error {
	token, err := s.next()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return fmt.Errorf("%s has to be a list", field)
	}
	return s.items(each)
}

// skip reads the next value token by token, however large it is.
func (s *stream) skip() error {
	for depth := 0; ; {
		token, err := s.next()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}
