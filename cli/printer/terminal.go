// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/autonode-io/autonode/internal/message"
)

// terminal is a writer to a terminal with a number of columns, which cuts tables. It wraps other lines itself.
type terminal struct {
	io.Writer
	width int
}

// Terminal reports whether a writer writes to a terminal, and the terminal's columns; 0 if they aren't known.
func Terminal(to io.Writer) (width int, ok bool) {
	if visible, wrapped := to.(*message.Writer); wrapped {
		to = visible.To
	}
	file, ok := to.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, _ = term.GetSize(int(file.Fd())) // 0 if it fails
	return width, true
}

// Cut cuts a line at a terminal's width; 0 for no terminal.
func Cut(line string, width int) string {
	text := []rune(strings.TrimRight(line, " \n"))
	if width < 2 || len(text) <= width {
		return line
	}
	return string(text[:width-1]) + "…\n"
}
