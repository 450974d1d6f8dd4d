// SPDX-License-Identifier: Apache-2.0

// Package message limits the length of texts that the operator writes and logs. Much of it quotes a guest's API server or a
// registry, which may send any amount at any rate.
package message

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-logr/logr"

	"github.com/autonode-io/autonode/internal/message"
)

const (
	// Limit of a condition's message and of a value in a log line, in bytes. It is the API's limit of an event's note,
	// too.
	Limit = 1024
	// QuoteLimit is the limit of quoted text, in bytes.
	QuoteLimit = 200
)

// Cut returns text on one line, truncated to Limit.
func Cut(text string) string { return CutUpTo(text, Limit) }

// CutUpTo is Cut with another limit, in bytes.
func CutUpTo(text string, limit int) string {
	return message.Cut(clean(strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")), limit) // which separate errors that were joined
}

// Quote returns quoted text unchanged if it is short and plain, otherwise truncated, in quotation marks and escaped.
func Quote(text string) string { return QuoteUpTo(text, QuoteLimit) }

// QuoteUpTo is Quote with another limit, in bytes.
func QuoteUpTo(text string, limit int) string {
	if len(text) <= limit && plain(text) {
		return text
	}
	return quoted(text, limit)
}

// Quoted returns text truncated, in quotation marks and escaped.
func Quoted(text string) string { return quoted(text, QuoteLimit) }

func quoted(text string, limit int) string {
	return strconv.Quote(message.Cut(strings.ToValidUTF8(text, "?"), limit))
}

// Error returns an error with the text of Quote. errors.As finds the errors that err wraps.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if quoted := Quote(text); quoted != text {
		return &quotedError{text: quoted, err: err}
	}
	return err
}

type quotedError struct {
	text string
	err  error
}

func (e *quotedError) Error() string { return e.text }
func (e *quotedError) Unwrap() error { return e.err }

// clean returns text on one line.
func clean(text string) string {
	if plain(text) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

func plain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Logger limits each message and each text value of a log line.
func Logger(logger logr.Logger) logr.Logger { return logr.New(sink{logger.GetSink()}) }

type sink struct{ logr.LogSink }

func (s sink) Info(level int, text string, keysAndValues ...any) {
	s.LogSink.Info(level, logged(text), boundedValues(keysAndValues)...)
}

func (s sink) Error(err error, text string, keysAndValues ...any) {
	if err != nil && len(err.Error()) > Limit {
		err = &quotedError{text: logged(err.Error()), err: nil} // whose encoder may look behind it otherwise
	}
	s.LogSink.Error(err, logged(text), boundedValues(keysAndValues)...)
}

func (s sink) WithValues(keysAndValues ...any) logr.LogSink {
	return sink{s.LogSink.WithValues(boundedValues(keysAndValues)...)}
}

func (s sink) WithName(name string) logr.LogSink { return sink{s.LogSink.WithName(name)} }

// boundedValues copies only if a value is too large, which is rare.
func boundedValues(keysAndValues []any) []any {
	var copied []any
	for i, value := range keysAndValues {
		var text string
		switch v := value.(type) {
		case string:
			text = v
		case error:
			text = v.Error()
		default:
			continue
		}
		if len(text) <= Limit {
			continue
		}
		if copied == nil {
			copied = append(copied, keysAndValues...)
		}
		copied[i] = logged(text)
	}
	if copied == nil {
		return keysAndValues
	}
	return copied
}

// logged keeps line breaks, which the encoders escape.
func logged(text string) string { return message.Cut(text, Limit) }
