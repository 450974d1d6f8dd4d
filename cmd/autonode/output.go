// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/message"
)

// printf is fmt.Fprintf for text about a cluster. What others wrote, such as an event's message, stays within its line and its cell of a
// table, and does nothing to a terminal. It is for all output but help; the program's writers are a net below it.
func printf(to io.Writer, format string, args ...any) { fmt.Fprintf(to, format, lines(args)...) }

// printLine is printf for one line.
func printLine(to io.Writer, args ...any) { fmt.Fprintln(to, lines(args)...) }

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

// encode writes a view for a script: format is json or yaml.
func encode(to io.Writer, format string, view any) error {
	marshal := marshalYAML
	if format == "json" {
		marshal = marshalJSON
	}
	content, err := marshal(view)
	if err != nil {
		return err
	}
	_, err = to.Write(content)
	return err
}

// marshalJSON escapes what a terminal would obey, as JSON allows anywhere in a string.
func marshalJSON(view any) ([]byte, error) {
	content, err := json.MarshalIndent(view, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding as JSON: %w", err)
	}
	return append([]byte(message.Visible(string(content))), '\n'), nil
}

// marshalYAML is yaml.Marshal. What a terminal would obey, it can't write or doesn't escape; then it is JSON, which is YAML too.
func marshalYAML(view any) ([]byte, error) {
	content, err := json.Marshal(view)
	if err != nil {
		return nil, fmt.Errorf("encoding as YAML: %w", err)
	}
	if message.Visible(string(content)) != string(content) {
		return marshalJSON(view)
	}
	if content, err = yaml.JSONToYAML(content); err != nil {
		return nil, fmt.Errorf("encoding as YAML: %w", err)
	}
	return content, nil
}

// unwrapped is the writer below one that makes text visible.
func unwrapped(to io.Writer) io.Writer {
	if visible, ok := to.(*message.Writer); ok {
		return visible.To
	}
	return to
}

func isTerminal(to io.Writer) bool {
	file, ok := unwrapped(to).(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
