// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/process"
)

func TestTail(t *testing.T) {
	for content, tails := range map[string][]string{
		"a\nb\nc\n": {"", "c\n", "b\nc\n", "a\nb\nc\n", "a\nb\nc\n"},
		"a\nb\nc":   {"", "c", "b\nc", "a\nb\nc", "a\nb\nc"},
		"":          {"", ""},
	} {
		for lines, want := range tails {
			t.Run(fmt.Sprintf("When %d lines of %q are wanted, it should be %q", lines, content, want), func(t *testing.T) {
				g, path := NewWithT(t), filepath.Join(t.TempDir(), "log")
				g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
				g.Expect(process.Tail(path, lines, 100)).To(Equal(want))
			})
		}
	}
	t.Run("When there is more than the bytes wanted, it should be cut", func(t *testing.T) {
		g, path := NewWithT(t), filepath.Join(t.TempDir(), "log")
		g.Expect(os.WriteFile(path, []byte("first\nsecond\n"), 0o600)).To(Succeed())
		g.Expect(process.Tail(path, 5, 4)).To(Equal("ond\n"))
	})
	t.Run("When there is no log, it should say so", func(t *testing.T) {
		_, err := process.Tail(filepath.Join(t.TempDir(), "none"), 5, 4)
		NewWithT(t).Expect(err).To(MatchError(os.ErrNotExist))
	})
}
