// SPDX-License-Identifier: Apache-2.0

package message

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestVisible(t *testing.T) {
	for name, test := range map[string]struct{ text, visible, line string }{
		"When it has no control characters, it should stay":             {"größer ≥ 東京 🚀", "größer ≥ 東京 🚀", "größer ≥ 東京 🚀"},
		"When it sets a terminal's title, it should be shown":           {"\x1b]0;owned\x07", `\u001b]0;owned\u0007`, `\u001b]0;owned\u0007`},
		"When it returns to the line's beginning, it should be shown":   {"a\rb\bc", `a\u000db\u0008c`, `a\u000db\u0008c`},
		"When it has DEL or a control character of C1, it should too":   {"\x7f\u009b2J\u0085", `\u007f\u009b2J\u0085`, `\u007f\u009b2J\u0085`},
		"When it reverses the direction of text, it should be shown":    {"a\u202eb\u2066c\u200f", `a\u202eb\u2066c\u200f`, `a\u202eb\u2066c\u200f`},
		"When it has a byte of C1 that isn't UTF-8, it should be shown": {"a\x9b2J", `a\x9b2J`, `a\x9b2J`},
		"When it has lines and columns, those should stay in a text":    {"a\n\tb", "a\n\tb", `a\u000a\u0009b`},
		"When it has the replacement character, it should stay":         {"a\ufffdb", "a\ufffdb", "a\ufffdb"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(Visible(test.text)).To(Equal(test.visible))
			g.Expect(Line(test.text)).To(Equal(test.line))
			// Whatever the pieces are that it is written in.
			for size := 1; size <= len(test.text); size++ {
				var b strings.Builder
				w := &Writer{To: &b}
				for rest := test.text; rest != ""; {
					n := min(size, len(rest))
					g.Expect(w.Write([]byte(rest[:n]))).To(Equal(n))
					rest = rest[n:]
				}
				g.Expect(b.String()).To(Equal(test.visible))
			}
		})
	}
}
