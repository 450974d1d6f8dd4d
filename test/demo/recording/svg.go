// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Picture is what a terminal looks like that plays a recording.
type Picture struct {
	// Title is what the picture is of, for those who don't see it.
	Title string
	// Columns and Rows of the terminal. Longer lines go on in the next row.
	Columns, Rows int
	// LongestWait between two lines: longer ones are shortened to it.
	LongestWait time.Duration
	// Hold is how long the end is shown, before it begins again.
	Hold time.Duration
}

// Sizes in pixels. Each line is stretched to its number of columns, so that they line up in any font.
const (
	columnWidth = 8.4
	rowHeight   = 20
	margin      = 16
	baseline    = 15 // within a row
)

// What the demo prints, by its form: a heading, a command, and parts of other lines.
var (
	heading = regexp.MustCompile(`^\d+  \S`)
	command = regexp.MustCompile(`^ +\$ `)
	part    = regexp.MustCompile(`✓|[█▉▊▋▌▍▎▏░]+`)
)

const style = `
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9; white-space: pre; }
.h { fill: #ffffff; font-weight: bold; }
.c { fill: #79c0ff; }
.done { fill: #3fb950; }
.bar { fill: #58a6ff; }
`

// SVG draws the lines of a recording. Where people prefer less motion, it shows the last lines, and doesn't move.
func (p Picture) SVG(lines []Line) []byte {
	width, height := float64(p.Columns)*columnWidth+2*margin, p.Rows*rowHeight+2*margin
	rows := p.wrap(lines)
	steps, length := p.play(rows)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s", escape(p.Title), style)
	p.animate(&b, steps, length)
	b.WriteString("</style>\n")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>`+"\n")
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%.0f" height="%d">`+"\n", margin, margin, float64(p.Columns)*columnWidth, p.Rows*rowHeight)
	// Where nothing moves, the end is shown.
	fmt.Fprintf(&b, `<g class="lines" transform="translate(0 %d)">`+"\n", p.scrolled(len(rows)))
	for i, row := range rows {
		row.draw(&b, i)
	}
	b.WriteString("</g>\n")
	// It covers what is still to be printed.
	fmt.Fprintf(&b, `<rect class="cover" transform="translate(0 %d)" width="100%%" height="%d" fill="#0d1117"/>`+"\n", p.printed(len(rows)), p.Rows*rowHeight)
	b.WriteString("</svg>\n</svg>\n")
	return []byte(b.String())
}

// row of the terminal: a line or a part of one. Its class is the whole line's.
type row struct {
	Line
	class string
}

// wrap breaks lines into rows, as a terminal does.
func (p Picture) wrap(lines []Line) (rows []row) {
	for _, line := range lines {
		class := ""
		switch {
		case heading.MatchString(line.Text):
			class = ` class="h"`
		case command.MatchString(line.Text):
			class = ` class="c"`
		}
		text := []rune(line.Text)
		for ; len(text) > p.Columns; text = text[p.Columns:] {
			rows = append(rows, row{Line{At: line.At, Text: string(text[:p.Columns])}, class})
		}
		rows = append(rows, row{Line{At: line.At, Text: string(text)}, class})
	}
	return rows
}

// step is a moment after which that many rows have been printed.
type step struct {
	at   time.Duration
	rows int
}

// play shortens waits, and joins what is printed at once. It returns the length of all.
func (p Picture) play(rows []row) (steps []step, length time.Duration) {
	const once = 50 * time.Millisecond // less than people see
	var before time.Duration
	for i, row := range rows {
		wait := row.At - before
		before = row.At
		if len(steps) > 0 && wait < once {
			steps[len(steps)-1].rows = i + 1
			continue
		}
		length += min(wait, p.LongestWait)
		steps = append(steps, step{length, i + 1})
	}
	return steps, length + p.Hold
}

// printed is how much of the terminal has text after that many rows, and scrolled how far the text has moved.
func (p Picture) printed(rows int) int  { return min(rows, p.Rows) * rowHeight }
func (p Picture) scrolled(rows int) int { return -max(rows-p.Rows, 0) * rowHeight }

// animate moves the cover down until the terminal is full, and the lines up from then on.
func (p Picture) animate(b *strings.Builder, steps []step, length time.Duration) {
	for _, moved := range []struct {
		class string
		by    func(rows int) int
	}{{"cover", p.printed}, {"lines", p.scrolled}} {
		last := moved.by(0)
		fmt.Fprintf(b, ".%s { animation: %[1]s %.2fs step-end infinite; }\n", moved.class, length.Seconds())
		fmt.Fprintf(b, "@keyframes %s {\n  0%% { transform: translateY(%dpx); }\n", moved.class, last)
		for _, step := range steps {
			if by := moved.by(step.rows); by != last {
				fmt.Fprintf(b, "  %.3f%% { transform: translateY(%dpx); }\n", 100*step.at.Seconds()/length.Seconds(), by)
				last = by
			}
		}
		fmt.Fprintf(b, "  100%% { transform: translateY(%dpx); }\n}\n", last)
	}
	b.WriteString("@media (prefers-reduced-motion: reduce) { .cover, .lines { animation: none; } }\n")
}

// draw draws the text of the row at that place.
func (r row) draw(b *strings.Builder, at int) {
	text := r.Text
	if strings.TrimSpace(text) == "" {
		return
	}
	fmt.Fprintf(b, `<text y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs" xml:space="preserve"%s>`,
		at*rowHeight+baseline, float64(utf8.RuneCountInString(text))*columnWidth, r.class)
	drawn := 0
	for _, found := range part.FindAllStringIndex(text, -1) {
		of := "bar"
		if text[found[0]:found[1]] == "✓" {
			of = "done"
		}
		fmt.Fprintf(b, `%s<tspan class="%s">%s</tspan>`, escape(text[drawn:found[0]]), of, text[found[0]:found[1]])
		drawn = found[1]
	}
	b.WriteString(escape(text[drawn:]) + "</text>\n")
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder doesn't fail
	return b.String()
}
