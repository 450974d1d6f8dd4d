// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// described begins the comment of a value that the README lists.
const described = "# -- "

// Value is one of values.yaml.
type Value struct {
	// Path of the value, with dots: "image.repository".
	Path string
	// Default is JSON on one line.
	Default string
	// Description is Markdown on one line.
	Description string
}

// Values are those of a chart that have a description, in order. A value without one, which has no described values below it, is an error.
func Values(chart string) ([]Value, error) {
	content, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, err
	}
	parsed, err := yaml.Parse(string(content))
	if err != nil {
		return nil, fmt.Errorf("reading values.yaml: %w", err)
	}
	return values(parsed.YNode(), "")
}

func values(mapping *yaml.Node, prefix string) ([]Value, error) {
	var found []Value
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		if description, ok := describe(key.HeadComment); ok {
			var decoded any
			if err := value.Decode(&decoded); err != nil {
				return nil, fmt.Errorf("default of %s: %w", path, err)
			}
			encoded, err := json.Marshal(decoded)
			if err != nil {
				return nil, fmt.Errorf("default of %s: %w", path, err)
			}
			found = append(found, Value{Path: path, Default: string(encoded), Description: description})
			continue
		}
		if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
			return nil, errors.New(path + " has no comment that begins with " + strings.TrimSpace(described))
		}
		below, err := values(value, path+".")
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}

// describe returns the description in a comment.
func describe(comment string) (string, bool) {
	_, text, ok := strings.Cut(comment, described)
	if !ok {
		return "", false
	}
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
	}
	return strings.Join(words, " "), true
}

// readme makes a chart's README.
func readme(chart string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	var about struct{ Name, Description string }
	if err := yaml.Unmarshal(content, &about); err != nil {
		return nil, fmt.Errorf("reading Chart.yaml: %w", err)
	}
	list, err := Values(chart)
	if err != nil {
		return nil, err
	}
	var page strings.Builder
	fmt.Fprintf(&page, "# Chart %s\n\n%s.\n[Install](../../docs/install.md#install-with-helm) has examples.\n\n", about.Name, about.Description)
	page.WriteString("`make generate` makes this page of `values.yaml`.\n\n| value | default | meaning |\n| --- | --- | --- |\n")
	for _, value := range list {
		fmt.Fprintf(&page, "| `%s` | `%s` | %s |\n", value.Path, value.Default, strings.ReplaceAll(value.Description, "|", `\|`))
	}
	return []byte(page.String()), nil
}
