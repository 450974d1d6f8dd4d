// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

const (
	// clearScreen moves a terminal's cursor home and clears what follows.
	clearScreen = "\x1b[H\x1b[2J"
	bold        = "\x1b[1m"
	red         = "\x1b[31m"
	plain       = "\x1b[0m"
)

// screen is what a table is drawn on.
type screen struct {
	terminal, colour bool
	// width is the number of columns of a terminal; zero if it isn't known.
	width int
}

// screenOf returns what a writer writes to. A terminal gets no colours if NO_COLOR is set (https://no-color.org).
func screenOf(to io.Writer) screen {
	file, ok := unwrapped(to).(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return screen{}
	}
	s := screen{terminal: true, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil {
		s.width = width
	}
	return s
}

// draw returns what to write for a table, whose text does nothing to a terminal, below a line about the cluster, which may be a warning.
func (s screen) draw(about string, warning bool, table string) string {
	if !s.terminal {
		return about + "\n" + table
	}
	lines := strings.SplitAfter(about+"\n"+table, "\n")
	for i, line := range lines {
		lines[i] = s.cut(line)
		if s.colour && i < 2 && lines[i] != "" {
			colour := bold
			if i == 0 && warning {
				colour = red
			}
			lines[i] = colour + strings.TrimSuffix(lines[i], "\n") + plain + "\n"
		}
	}
	return clearScreen + strings.Join(lines, "")
}

// cut returns a line that fits on a terminal: a line that wraps would tear the table.
func (s screen) cut(line string) string {
	text := []rune(strings.TrimRight(line, " \n"))
	if s.width < 2 || len(text) <= s.width {
		return line
	}
	return string(text[:s.width-1]) + "…\n"
}
