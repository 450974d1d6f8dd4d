// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"io"
	"os"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/cli/printer"
)

const (
	// clearScreen moves a terminal's cursor home and clears what follows.
	clearScreen = "\x1b[H\x1b[2J"
	bold        = "\x1b[1m"
	red         = "\x1b[31m"
	plain       = "\x1b[0m"
)

// passing are ages and times, which change by themselves.
var passing = regexp.MustCompile(`\b((\d+[ydhms])+|\d\d:\d\d:\d\d)\b`)

// changes returns the lines of a table that weren't in the one before, apart from ages and times, and the lines to compare the next with.
func changes(before sets.Set[string], table string) (changed string, now sets.Set[string]) {
	now = sets.New[string]()
	for line := range strings.Lines(table) {
		content := strings.Join(strings.Fields(passing.ReplaceAllString(line, "")), " ")
		if now.Insert(content); !before.Has(content) {
			changed += line
		}
	}
	return changed, now
}

// screen is what a table is drawn on.
type screen struct {
	terminal, colour bool
	// width is the number of columns of a terminal; zero if it isn't known.
	width int
}

// screenOf returns what a writer writes to. A terminal gets no colours if NO_COLOR is set (https://no-color.org).
func screenOf(to io.Writer) (s screen) {
	if s.width, s.terminal = printer.Terminal(to); s.terminal {
		s.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return s
}

// draw returns what to write to a terminal for a table, whose text does nothing to it, below a line about the cluster, which may be a
// warning.
func (s screen) draw(about string, warning bool, table string) string {
	lines := strings.SplitAfter(about+"\n"+table, "\n")
	for i, line := range lines {
		lines[i] = printer.Cut(line, s.width) // a line that wraps would tear the table
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
