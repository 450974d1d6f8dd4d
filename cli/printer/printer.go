// SPDX-License-Identifier: Apache-2.0

// Package printer writes what commands print: text about a cluster that does nothing to a terminal, JSON and YAML.
package printer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/internal/message"
)

// Printf is fmt.Fprintf for text about a cluster. What others wrote, such as an event's message, stays within its line and its cell of a
// table, and does nothing to a terminal. It is for all output but help; the program's writers are a net below it.
func Printf(to io.Writer, format string, args ...any) { fmt.Fprintf(to, format, lines(args)...) }

// Line is Printf for one line.
func Line(to io.Writer, args ...any) { fmt.Fprintln(to, lines(args)...) }

// Error prints an error. It indents further lines of it, so that none passes for another one's.
func Error(to io.Writer, err error) {
	fmt.Fprintln(to, "error:", strings.ReplaceAll(message.Visible(err.Error()), "\n", "\n  "))
}

// lines returns arguments whose texts are each a part of one line.
func lines(args []any) []any {
	shown := make([]any, len(args))
	for i, arg := range args {
		shown[i] = arg
		if err, ok := arg.(error); ok {
			shown[i] = message.Line(err.Error())
		} else if value := reflect.ValueOf(arg); value.Kind() == reflect.String {
			shown[i] = message.Line(value.String())
		}
	}
	return shown
}

// Encode writes a view for a script: format is json or yaml.
func Encode(to io.Writer, format string, view any) error {
	marshal := YAML
	if format == "json" {
		marshal = toJSON
	}
	content, err := marshal(view)
	if err != nil {
		return err
	}
	_, err = to.Write(content)
	return err
}

// toJSON escapes what a terminal would obey, as JSON allows anywhere in a string.
func toJSON(view any) ([]byte, error) {
	content, err := json.MarshalIndent(view, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding as JSON: %w", err)
	}
	return append([]byte(message.Visible(string(content))), '\n'), nil
}

// YAML is yaml.Marshal. What a terminal would obey, it can't write or doesn't escape; then it is JSON, which is YAML too.
func YAML(view any) ([]byte, error) {
	content, err := json.Marshal(view)
	if err != nil {
		return nil, fmt.Errorf("encoding as YAML: %w", err)
	}
	if message.Visible(string(content)) != string(content) {
		return toJSON(view)
	}
	if content, err = yaml.JSONToYAML(content); err != nil {
		return nil, fmt.Errorf("encoding as YAML: %w", err)
	}
	return content, nil
}

// Print writes a view in the format of --output: as JSON, as YAML, as names, a line each, or as text, whose tables are cut at a
// terminal's width unless the format is wide.
func Print(to io.Writer, format string, view any, text func(io.Writer) error, names ...string) error {
	switch format {
	case "json", "yaml":
		return Encode(to, format, view)
	case "name":
		for _, name := range names {
			Line(to, name)
		}
		return nil
	case "":
		if width, ok := Terminal(to); ok {
			to = terminal{to, width}
		}
	}
	return text(to)
}

// Object is an object without its status.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              any `json:"spec"`
}

// Table has rows of cells. A cell shows its text on one line, and a dash for none unless it is the last of its row. Print cuts the rows.
type Table struct {
	to     io.Writer
	rows   strings.Builder
	writer *tabwriter.Writer
}

// NewTable returns a table with a header.
func NewTable(to io.Writer, header ...any) *Table {
	t := &Table{to: to}
	t.writer = tabwriter.NewWriter(&t.rows, 0, 0, 2, ' ', 0)
	t.Row(header...)
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...any) {
	for i, cell := range cells {
		text := message.Line(fmt.Sprint(cell))
		if last := i == len(cells)-1; last {
			text += "\n"
		} else {
			text = cmp.Or(text, "-") + "\t"
		}
		fmt.Fprint(t.writer, text)
	}
}

// Flush writes the table.
func (t *Table) Flush() error {
	err := t.writer.Flush()
	screen, _ := t.to.(terminal)
	for row := range strings.Lines(t.rows.String()) {
		if err == nil {
			_, err = io.WriteString(t.to, Cut(row, screen.width))
		}
	}
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// Documents writes objects as documents of YAML.
func Documents[T any](to io.Writer, objects ...T) error {
	for _, object := range objects {
		content, err := YAML(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to, "---\n%s", content); err != nil {
			return err
		}
	}
	return nil
}

// Formats are the values of --output in every command that has the flag. Without it, a command prints text.
var Formats = []string{"json", "yaml", "name", "wide"}

// AddFlag adds --output. own are further formats of the command.
func AddFlag(cmd *cobra.Command, value *string, own ...string) {
	command.AddChoice(cmd, value, "output", "o", "format, instead of text; wide is text with uncut tables", slices.Concat(Formats, own)...)
}

// Dollars is a price or an amount; NaN is one that isn't known.
func Dollars(price float64) string {
	if math.IsNaN(price) {
		return "-"
	}
	return fmt.Sprintf("$%.3f", price)
}
