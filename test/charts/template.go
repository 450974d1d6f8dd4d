// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// template is an object that becomes a template. What Helm fills in stands as a mark in the YAML until that is written.
type template struct {
	*yaml.RNode
	marks []string // what each mark stands for
	err   error    // the first
}

// openBraces stand for two opening braces of the object itself, such as those of an alert's message, until the YAML is written.
const openBraces = "OPENBRACES"

func (t *template) mark(expression string) string {
	t.marks = append(t.marks, expression)
	return fmt.Sprintf("MARK%03d", len(t.marks)-1)
}

// at returns the node at a path, which exists.
func (t *template) at(path ...string) *yaml.RNode {
	found, err := t.Pipe(yaml.Lookup(path...))
	if err == nil && found == nil {
		err = fmt.Errorf("no field %s", strings.Join(path, "."))
	}
	if err != nil {
		if t.err == nil {
			t.err = err
		}
		return yaml.NewMapRNode(nil)
	}
	return found
}

// value replaces the value at a path by an expression.
func (t *template) value(expression string, path ...string) {
	node := t.at(path...).YNode()
	comment := node.LineComment
	*node = yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Value: t.mark(expression), LineComment: comment}
}

// lines adds lines at the end of the mapping or the list at a path. Each %d is the number of spaces before its entries, and %i that of what is in
// them.
func (t *template) lines(text string, path ...string) {
	node := t.at(path...).YNode()
	entry := t.entry(text)
	if node.Kind == yaml.SequenceNode {
		entry = entry[:1]
	}
	node.Content = append(node.Content, entry...)
}

// around puts lines before and after a field of the mapping at a path.
func (t *template) around(field, before, after string, path ...string) {
	node := t.at(path...).YNode()
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].Value == field {
			node.Content = slices.Concat(node.Content[:i], t.entry(before), node.Content[i:i+2], t.entry(after), node.Content[i+2:])
			return
		}
	}
	if t.err == nil {
		t.err = fmt.Errorf("no field %s in %s", field, strings.Join(path, "."))
	}
}

// entry is a mark as an entry of a mapping, without a value.
func (t *template) entry(text string) []*yaml.Node {
	return []*yaml.Node{
		{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Value: t.mark(text)},
		{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Style: yaml.DoubleQuotedStyle},
	}
}

// scalars calls f with each scalar value below a node.
func scalars(node *yaml.Node, f func(*yaml.Node)) {
	if node.Kind == yaml.ScalarNode {
		f(node)
	}
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		scalars(child, f)
	}
}

var (
	markedLine = regexp.MustCompile(`(?m)^( *)(?:- )?MARK(\d{3})(?:: "")?$`)
	marked     = regexp.MustCompile(`MARK(\d{3})`)
)

// text writes the template.
func (t *template) text() (string, error) {
	if t.err != nil {
		return "", t.err
	}
	written, err := t.String()
	if err != nil {
		return "", fmt.Errorf("writing YAML: %w", err)
	}
	if strings.Contains(written, "{{") {
		return "", fmt.Errorf("braces outside of values, which Helm would take for its own")
	}
	expression := func(number string) string {
		var i int
		_, _ = fmt.Sscanf(number, "%d", &i) // of digits
		return t.marks[i]
	}
	written = markedLine.ReplaceAllStringFunc(written, func(line string) string {
		match := markedLine.FindStringSubmatch(line)
		indents := strings.NewReplacer("%d", fmt.Sprint(len(match[1])), "%i", fmt.Sprint(len(match[1])+2))
		var lines []string
		for part := range strings.SplitSeq(strings.TrimSuffix(expression(match[2]), "\n"), "\n") {
			lines = append(lines, match[1]+indents.Replace(part))
		}
		return strings.Join(lines, "\n")
	})
	written = marked.ReplaceAllStringFunc(written, func(mark string) string { return expression(strings.TrimPrefix(mark, "MARK")) })
	return strings.ReplaceAll(written, openBraces, `{{ "{{" }}`), nil
}
