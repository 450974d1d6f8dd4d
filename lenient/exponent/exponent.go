// SPDX-License-Identifier: Apache-2.0

// Package exponent finds text of quantities that would take too long to parse, before anything parses it.
//
// resource.ParseQuantity computes a power of ten for the exponent: "1e-999999999" takes half an hour and gigabytes, and can't be cancelled.
// API servers admit it where a schema declares x-kubernetes-int-or-string, because their pattern is all that they check.
package exponent

import (
	"bytes"
	"strings"
)

const (
	// MaxDigits is how many digits an exponent may have. The largest suffix, Ei, is about 1e18, and the smallest, n, is 1e-9.
	MaxDigits = 3
	// MaxLength is how many bytes a quantity may have.
	MaxLength = 256
)

// Bounded reports whether parsing text as a quantity is cheap.
func Bounded(text string) bool {
	return len(text) <= MaxLength && !Found([]byte(strings.TrimSpace(text)))
}

// Found reports whether the text, such as a JSON document, contains a number or a string that is one, whose exponent or whose number of
// digits is too large. A string that goes on after the exponent, as a UID may, is no quantity, which its parser finds out first. It may
// report a string that isn't meant as a quantity: who needs to know decides by the string's type. It costs a few percent of decoding the
// JSON.
func Found(text []byte) bool { return found(text, true) }

// found does it for a whole text, in which a number may begin and end anywhere, and for a part of a stream, whose first and last number may
// have begun before and go on.
func found(text []byte, whole bool) bool {
	return scan(text, whole) || long(text) || escaped(text)
}

// scan looks for numbers with a large exponent. An exponent with too many digits has one at each stride.
func scan(text []byte, whole bool) bool {
	for at := MaxDigits; at < len(text); at += MaxDigits + 1 {
		if !isDigit(text[at]) {
			continue
		}
		first, end := at, at+1
		for first > 0 && isDigit(text[first-1]) {
			first--
		}
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		letter := first - 1
		if letter > 0 && (text[letter] == '-' || text[letter] == '+') {
			letter--
		}
		if end-first > MaxDigits && letter > 0 && text[letter]|0x20 == 'e' && numeric(text[letter-1]) && starts(text, letter-1, whole) && ends(text, end, whole) {
			return true
		}
		at += (end - at - 1) / (MaxDigits + 1) * (MaxDigits + 1) // the rest of the digits
	}
	return false
}

// starts reports whether the number that ends at last is the first that stands in a string or a JSON value, and not part of a word.
func starts(text []byte, last int, whole bool) bool {
	first := last
	for first >= 0 && numeric(text[first]) {
		first--
	}
	if first >= 0 && (text[first] == '-' || text[first] == '+') {
		first--
	}
	if first < 0 {
		return whole
	}
	switch text[first] {
	case '"', '[', ',', ' ', '\t', '\n', '\v', '\f', '\r':
		return true
	case ':': // after a key, not within a word such as sha256:1e1234
		return first == 0 || text[first-1] == '"' || text[first-1] == ' '
	}
	return text[first] >= 0x80 // the end of a character that is white space to Go, and cut off before a quantity is parsed
}

// ends reports whether the number before next is all of a string or a JSON value. White space is cut off before a quantity is parsed.
func ends(text []byte, next int, whole bool) bool {
	if next == len(text) {
		return whole // of a stream, whoever decodes it waits for the next part
	}
	switch text[next] {
	case '"', ',', '}', ']', ' ', '\t', '\n', '\v', '\f', '\r', '\\':
		return true
	}
	return text[next] >= 0x80
}

// long reports whether there is a number of more than MaxLength digits: it looks at one byte of each stretch of half that length.
func long(text []byte) bool {
	for at := MaxLength / 2; at < len(text); at += MaxLength / 2 {
		if !numeric(text[at]) {
			continue
		}
		first, end := at, at+1
		for first > 0 && numeric(text[first-1]) {
			first--
		}
		for end < len(text) && end-first <= MaxLength && numeric(text[end]) {
			end++
		}
		if end-first > MaxLength {
			return true
		}
	}
	return false
}

// escaped reports whether a JSON string escapes characters of numbers, which no API server does.
func escaped(text []byte) bool {
	for at := 0; ; {
		next := bytes.Index(text[at:], []byte(`\u00`))
		if next < 0 {
			return false
		}
		at += next + len(`\u00`)
		if at+1 >= len(text) {
			return false
		}
		switch high, low := text[at], text[at+1]|0x20; {
		case high == '3' && isDigit(text[at+1]), // digits
			(high == '4' || high == '6') && low == '5'|0x20,         // E, e
			high == '2' && (low == 'b' || low == 'd' || low == 'e'): // + - .
			return true
		}
	}
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func numeric(b byte) bool { return isDigit(b) || b == '.' }

// Reader looks for large exponents in a stream of JSON documents. It is cheap for a stream of any length.
type Reader struct {
	// kept is the end of earlier reads, which a number may begin in.
	kept []byte
}

// keep is longer than any number that isn't found by its length alone.
const keep = MaxLength + 16

// Found reports whether the function Found finds something in earlier reads and this one. Whoever reads a stream must not pass on this
// read if it does: the document that contains the number isn't complete then.
func (r *Reader) Found(read []byte) bool {
	all := append(r.kept, read...)
	found := found(all, false)
	r.kept = append(all[:0], all[max(0, len(all)-keep):]...) // the buffer is used again
	return found
}
