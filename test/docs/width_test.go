// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest is the length of the longest line of prose, in characters.
const widest = 110

// generated pages are as their generators write them.
var generated = []string{"docs/reference/api-reference.md", "docs/internals/conformance-results.md"}

func TestWidth(t *testing.T) {
	t.Run("When a line is neither of a table nor of a block, it should be at most 110 columns wide", func(t *testing.T) {
		for _, p := range documentation(t) {
			if slices.Contains(generated, p.path) {
				continue
			}
			for i, line := range p.prose {
				text := strings.TrimSpace(line)
				breakable := strings.Contains(text, " ") // a long address has nowhere to break
				if breakable && !strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "#") && utf8.RuneCountInString(line) > widest {
					t.Errorf("%s:%d: %d columns, more than %d", p.path, i+1, utf8.RuneCountInString(line), widest)
				}
			}
		}
	})
}
