// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	// maxTable bounds a table of prices, in bytes.
	maxTable = 64 << 20
	// maxValue bounds one value of a price list, in bytes: a product, or the answer of one request. A list has any size.
	maxValue = 16 << 20
)

// priceFile is a price list that is read once. It is empty for none.
type priceFile struct {
	reader *bufio.Reader
	isJSON bool
}

// open looks at the beginning of a file.
func open(from io.Reader) (*priceFile, error) {
	if from == nil {
		return &priceFile{}, nil
	}
	reader := bufio.NewReaderSize(from, 64<<10)
	for {
		next, err := reader.Peek(1)
		switch {
		case errors.Is(err, io.EOF):
			return &priceFile{}, nil
		case err != nil:
			return nil, fmt.Errorf("prices: %w", err)
		case bytes.ContainsAny(next, " \t\r\n"):
			_, _ = reader.Discard(1) // which was peeked
		default:
			return &priceFile{reader, next[0] == '{' || next[0] == '['}, nil
		}
	}
}

func (f *priceFile) isEmpty() bool { return f.reader == nil }

// table reads all of a table.
func (f *priceFile) table() ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f.reader, maxTable+1))
	if err == nil && len(content) > maxTable {
		err = fmt.Errorf("a table of prices has at most %d bytes", maxTable)
	}
	return content, err
}

// bounded fails when too much is read without a mark.
type bounded struct {
	io.Reader
	since int
}

func (b *bounded) Read(into []byte) (int, error) {
	if b.since > maxValue {
		return 0, fmt.Errorf("a value has more than %d bytes", maxValue)
	}
	n, err := b.Reader.Read(into)
	b.since += n
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
			return fmt.Errorf("byte %d: %w", s.InputOffset(), err)
		}
	}
}

// pages calls each for each item of a file: of a list, or of the field of an object. Documents are pages of an answer.
func (s *stream) pages(field string, each func(i int) error) error {
	found := false
	err := s.documents(func(token json.Token) error {
		switch token {
		case json.Delim('['):
			found = true
			return s.items(each)
		case json.Delim('{'):
			return s.fields(func(key string) error {
				if !strings.EqualFold(key, field) {
					return s.skip()
				}
				found = true
				return s.list(each)
			})
		}
		return errors.New("neither an object nor a list")
	})
	if err == nil && !found {
		err = fmt.Errorf("it has no %s", field)
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

// list is items of the next value.
func (s *stream) list(each func(i int) error) error {
	token, err := s.next()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return errors.New("not a list")
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
