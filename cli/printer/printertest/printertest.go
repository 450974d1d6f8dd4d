// SPDX-License-Identifier: Apache-2.0

// Package printertest checks that commands do nothing to the terminal of who looks, whatever others may write in a cluster: events,
// conditions and names.
package printertest

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/autonode-io/autonode/internal/message"
)

// Hostile sets a terminal's title, clears it, writes its clipboard, reverses text and forges a line and a cell.
const Hostile = "x\x1b]0;owned\x07\x1b[2J\x1b]52;c;cm0gLXJmIC8=\x07\u009b31m\u202e\x7f\b\rx\nFORGED\tx"

// YAML is Hostile in a file of YAML, without DEL and C1, which the parser rejects.
var YAML = func() string {
	quoted, err := json.Marshal(strings.NewReplacer("\u009b", "", "\x7f", "").Replace(Hostile))
	if err != nil {
		panic(err)
	}
	return message.Visible(string(quoted))
}()

// Harmless runs a test of what a command prints of Hostile.
func Harmless(t *testing.T, command string, show func(io.Writer) error) {
	t.Helper()
	t.Run("When `autonode "+command+"` shows what a stranger wrote, it should do nothing to a terminal", func(t *testing.T) {
		g := gomega.NewWithT(t)
		var out bytes.Buffer
		g.Expect(show(&out)).To(gomega.Succeed())
		g.Expect(out.String()).To(gomega.ContainSubstring("owned"), "it shows it")
		g.Expect(out.String()).To(gomega.Equal(message.Visible(out.String())))
		for line := range strings.Lines(out.String()) {
			g.Expect(line).NotTo(gomega.HavePrefix("FORGED"))
		}
	})
}
