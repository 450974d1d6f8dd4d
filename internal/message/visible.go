// SPDX-License-Identifier: Apache-2.0

package message

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Visible escapes characters that a terminal would obey instead of showing: control characters but for line feeds and tabs, and characters
// that reverse the direction of text. The escapes are those of JSON, and what isn't UTF-8 becomes \x9b.
func Visible(text string) string { return escape(text, "\n\t") }

// Line is Visible for a text within a line or a cell of a table: it escapes line feeds and tabs, too.
func Line(text string) string { return escape(text, "") }

func escape(text, allowed string) string {
	first := strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || obeyed(r) })
	if first < 0 {
		return text
	}
	var b strings.Builder
	b.WriteString(text[:first])
	for rest := text[first:]; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, rest[0])
		case obeyed(r) && !strings.ContainsRune(allowed, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(rest[:size])
		}
		rest = rest[size:]
	}
	return b.String()
}

// obeyed reports whether a terminal does something at a character. All are in Unicode's first plane.
func obeyed(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r < 0xa0: // C0, DEL and C1
		return true
	case r == 0x61c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // direction
		return true
	}
	return r == 0x2028 || r == 0x2029 // line and paragraph separators
}

// Writer writes Visible text to a terminal.
type Writer struct {
	To io.Writer

	begun []byte // of a character whose end isn't written yet
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	content := append(w.begun, p...)
	w.begun = nil
	for i := 1; i < utf8.UTFMax && i <= len(content); i++ {
		if last := content[len(content)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				w.begun = append([]byte(nil), last...)
				content = content[:len(content)-i]
			}
			break
		}
	}
	if _, err := io.WriteString(w.To, Visible(string(content))); err != nil {
		return 0, err
	}
	return len(p), nil
}
