// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTerminal(t *testing.T) {
	show := func(to io.Writer) error {
		table := NewTable(to, "NODE", "STATE")
		table.Row("web-1", "draining (Drifted), 2 pods left")
		Line(to, "2 nodes, $0.149 an hour; 2 pods")
		return table.Flush()
	}
	const whole = "2 nodes, $0.149 an hour; 2 pods\nNODE   STATE\nweb-1  draining (Drifted), 2 pods left\n"
	t.Run("When output goes to a terminal, rows should be cut, and other lines be left to it", func(t *testing.T) {
		g, out := NewWithT(t), &bytes.Buffer{}
		g.Expect(show(terminal{out, 20})).To(Succeed())
		g.Expect(out.String()).To(Equal("2 nodes, $0.149 an hour; 2 pods\nNODE   STATE\nweb-1  draining (Dr…\n"))
	})
	t.Run("When output goes to a pipe or a file, nothing should be cut, in any format", func(t *testing.T) {
		g := NewWithT(t)
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		g.Expect(err).NotTo(HaveOccurred())
		defer file.Close()
		for _, format := range []string{"", "wide"} {
			var out bytes.Buffer
			g.Expect(Print(&out, format, nil, show)).To(Succeed())
			g.Expect(out.String()).To(Equal(whole))
			g.Expect(Print(file, format, nil, show)).To(Succeed())
		}
		g.Expect(os.ReadFile(file.Name())).To(BeEquivalentTo(whole + whole))
	})
}
