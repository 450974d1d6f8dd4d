// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
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

// lengths are the most words that a page may have, by the beginning of its path; the longest beginning counts.
var lengths = map[string]int{
	"docs/":                          3000,
	"docs/start/":                    1500,
	"docs/platform/":                 1500,
	"docs/cluster-admins/":           1500,
	"docs/internals/threat-model.md": 0, // a row for each attack
	"docs/start/README.md":           900,
	"docs/start/vsphere.md":          400,
	"docs/start/kubevirt.md":         400,
	"docs/start/openstack.md":        400,
	"docs/start/aws.md":              400,
	"docs/start/metal3.md":           400,
}

func TestLength(t *testing.T) {
	t.Run("When a page is longer than a reader has time for, it should be split or shortened", func(t *testing.T) {
		for _, p := range documentation(t) {
			limit, longest := 0, ""
			for beginning, words := range lengths {
				if strings.HasPrefix(p.path, beginning) && len(beginning) > len(longest) {
					limit, longest = words, beginning
				}
			}
			if limit == 0 || slices.Contains(generated, p.path) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(root, p.path))
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			if words := len(strings.Fields(string(content))); words > limit {
				t.Errorf("%s: %d words, more than %d", p.path, words, limit)
			}
		}
	})
}
