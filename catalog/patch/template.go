// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// valueTemplate is a template that was checked.
type valueTemplate struct {
	tree      *parse.Tree
	variables map[string]bool
	images    []Image
}

// templateName begins the messages of text/template.
const templateName = "template"

// parseTemplate checks a template: its functions, its variables, and that its loops are over variables, one in depth.
func parseTemplate(source string) (*valueTemplate, error) {
	if len(source) > MaxTemplate {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", len(source), MaxTemplate)
	}
	trees, err := parse.Parse(templateName, source, "", "", allowed)
	if err != nil {
		return nil, err
	}
	t := &valueTemplate{tree: trees[templateName], variables: map[string]bool{}}
	if len(trees) != 1 || t.tree == nil {
		return nil, errors.New("define, block and template are not supported")
	}
	return t, t.checkList(t.tree.Root, scope{})
}

// scope is where a node stands.
type scope struct {
	// moved: dot is not the variables, because of a with or a range.
	moved bool
	// looped: inside a range.
	looped bool
}

func (t *valueTemplate) checkList(list *parse.ListNode, at scope) error {
	if list == nil {
		return nil
	}
	for _, node := range list.Nodes {
		if err := t.checkNode(node, at); err != nil {
			return err
		}
	}
	return nil
}

func (t *valueTemplate) checkNode(node parse.Node, at scope) error {
	switch n := node.(type) {
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode,
		*parse.StringNode, *parse.NumberNode, *parse.BoolNode, *parse.NilNode:
		return nil
	case *parse.ActionNode:
		return t.checkPipe(n.Pipe, at)
	case *parse.IfNode:
		return t.checkBranch(&n.BranchNode, at, at)
	case *parse.WithNode:
		return t.checkBranch(&n.BranchNode, at, scope{moved: true, looped: at.looped})
	case *parse.RangeNode:
		if at.looped {
			return errors.New("a range inside a range is not supported")
		}
		if !rangesOverVariable(n.Pipe, at) {
			return errors.New("a range must be over a variable that is a list or an object, such as .taintList")
		}
		return t.checkBranch(&n.BranchNode, at, scope{moved: true, looped: true})
	case *parse.PipeNode:
		return t.checkPipe(n, at)
	case *parse.ChainNode:
		return t.checkNode(n.Node, at)
	case *parse.DotNode:
		if !at.moved {
			return errors.New("refer to a variable by its name, such as .zone, and not to all of them")
		}
		return nil
	case *parse.FieldNode:
		if !at.moved {
			return t.refer(n.Ident[0])
		}
		return nil
	case *parse.VariableNode:
		switch {
		case n.Ident[0] != "$":
			return nil
		case len(n.Ident) == 1:
			return errors.New("refer to a variable by its name, such as $.zone, and not to all of them")
		}
		return t.refer(n.Ident[1])
	case *parse.IdentifierNode:
		if n.Ident == imageVariable {
			return errors.New(`write image with its infrastructure, and a region or a format, in quotes: {{ image "aws" "us-east-1" }}`)
		}
		return nil
	}
	return fmt.Errorf("%s is not supported", shorten(node.String()))
}

func (t *valueTemplate) checkBranch(n *parse.BranchNode, at, within scope) error {
	if err := t.checkPipe(n.Pipe, at); err != nil {
		return err
	}
	if err := t.checkList(n.List, within); err != nil {
		return err
	}
	return t.checkList(n.ElseList, scope{moved: at.moved, looped: at.looped})
}

func (t *valueTemplate) checkPipe(pipe *parse.PipeNode, at scope) error {
	if pipe == nil {
		return nil
	}
	for i, command := range pipe.Cmds {
		if image, ok := imageCall(command); ok && i == 0 {
			t.images = append(t.images, image)
			continue
		}
		for _, arg := range command.Args {
			if err := t.checkNode(arg, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// imageCall reads {{ image "aws" "us-east-1" }}: literals, so that the images that a patch needs are known without rendering it.
func imageCall(command *parse.CommandNode) (Image, bool) {
	if len(command.Args) < 2 || len(command.Args) > 3 {
		return Image{}, false
	}
	if function, ok := command.Args[0].(*parse.IdentifierNode); !ok || function.Ident != imageVariable {
		return Image{}, false
	}
	image := Image{}
	for i, target := range []*string{&image.Infrastructure, &image.Variant} {
		if i+1 == len(command.Args) {
			break
		}
		literal, ok := command.Args[i+1].(*parse.StringNode)
		if !ok {
			return Image{}, false
		}
		*target = literal.Text
	}
	return image, image.Infrastructure != ""
}

// rangesOverVariable keeps loops short: text/template also ranges over numbers.
func rangesOverVariable(pipe *parse.PipeNode, at scope) bool {
	if len(pipe.Cmds) != 1 || len(pipe.Cmds[0].Args) != 1 {
		return false
	}
	name := ""
	switch n := pipe.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		if !at.moved && len(n.Ident) == 1 {
			name = n.Ident[0]
		}
	case *parse.VariableNode:
		if len(n.Ident) == 2 && n.Ident[0] == "$" {
			name = n.Ident[1]
		}
	}
	kind, ok := types[name]
	return ok && (kind == list || kind == object)
}

func (t *valueTemplate) refer(name string) error {
	if _, ok := types[name]; !ok {
		return fmt.Errorf("unknown variable %q", shorten(name))
	}
	t.variables[name] = true
	return nil
}

// render executes the template.
func (t *valueTemplate) render(values Values) (string, error) {
	data, err := values.data()
	if err != nil {
		return "", err
	}
	b := &budget{remaining: maxSteps}
	functions := b.functions()
	functions[imageVariable] = func(infrastructure string, variant ...string) (string, error) {
		return values.image(Image{Infrastructure: infrastructure, Variant: strings.Join(variant, "")})
	}
	executable, err := template.New(templateName).Option("missingkey=error").Funcs(functions).AddParseTree(templateName, t.tree)
	if err != nil {
		return "", err
	}
	out := &strings.Builder{}
	if err := executable.Execute(limited{out}, data); err != nil {
		return "", err
	}
	return out.String(), nil
}

// limited refuses more than MaxValue bytes.
type limited struct{ to *strings.Builder }

func (l limited) Write(p []byte) (int, error) {
	if l.to.Len()+len(p) > MaxValue {
		return 0, errTooLong
	}
	return l.to.Write(p)
}

var _ io.Writer = limited{}

var errTooLong = fmt.Errorf("the value exceeds %d bytes", MaxValue)

// maxSteps bounds the function calls of one rendering, and the bytes that they return.
const maxSteps = 256 << 10

// budget is spent by the functions of one rendering.
type budget struct{ remaining int }

func (b *budget) spend(length int) error {
	if length > MaxValue {
		return errTooLong
	}
	if b.remaining -= length + 1; b.remaining < 0 {
		return errors.New("the template takes too many steps")
	}
	return nil
}

func (b *budget) text(result string) (string, error) { return result, b.spend(len(result)) }

// wide finds the widths that would make printf's result long.
var wide = regexp.MustCompile(`%[^a-zA-Z%]*(\*|[0-9]{4})`)

// functions that a template may call beside the comparisons of text/template. Names and arguments are those of sprig, which a
// ClusterClass has.
func (b *budget) functions() template.FuncMap {
	return template.FuncMap{
		"printf": func(format string, args ...any) (string, error) {
			if wide.MatchString(format) {
				return "", errors.New("printf supports widths of at most three digits")
			}
			return b.text(fmt.Sprintf(format, args...))
		},
		"default": func(fallback any, value ...any) any {
			if len(value) == 0 || isEmpty(value[0]) {
				return fallback
			}
			return value[0]
		},
		"quote": func(value any) (string, error) { return b.text(fmt.Sprintf("%q", fmt.Sprint(value))) },
		"toJson": func(value any) (string, error) {
			encoded, err := json.Marshal(value)
			if err != nil {
				return "", err
			}
			return b.text(string(encoded))
		},
		"join": func(separator string, items []any) (string, error) {
			texts, length := make([]string, len(items)), 0
			for i, item := range items {
				texts[i] = fmt.Sprint(item)
				length += len(texts[i]) + len(separator)
			}
			if length > MaxValue {
				return "", errTooLong
			}
			return b.text(strings.Join(texts, separator))
		},
		"replace": func(old, with, s string) (string, error) {
			if strings.Count(s, old)*len(with) > MaxValue {
				return "", errTooLong
			}
			return b.text(strings.ReplaceAll(s, old, with))
		},
		"indent":     b.indent,
		"nindent":    func(spaces int, s string) (string, error) { return b.indent(spaces, "\n"+s) },
		"lower":      func(s string) (string, error) { return b.text(strings.ToLower(s)) },
		"upper":      func(s string) (string, error) { return b.text(strings.ToUpper(s)) },
		"trim":       func(s string) (string, error) { return b.text(strings.TrimSpace(s)) },
		"trimPrefix": func(prefix, s string) (string, error) { return b.text(strings.TrimPrefix(s, prefix)) },
		"trimSuffix": func(suffix, s string) (string, error) { return b.text(strings.TrimSuffix(s, suffix)) },
		"contains":   func(part, s string) (bool, error) { return strings.Contains(s, part), b.spend(len(s)) },
		"hasPrefix":  func(prefix, s string) (bool, error) { return strings.HasPrefix(s, prefix), b.spend(len(prefix)) },
		"hasSuffix":  func(suffix, s string) (bool, error) { return strings.HasSuffix(s, suffix), b.spend(len(suffix)) },
	}
}

func (b *budget) indent(spaces int, s string) (string, error) {
	if spaces < 0 || spaces > 100 {
		return "", errors.New("indent supports 0 to 100 spaces")
	}
	if (strings.Count(s, "\n")+1)*spaces > MaxValue {
		return "", errTooLong
	}
	padding := strings.Repeat(" ", spaces)
	first, rest, multi := strings.Cut(s, "\n")
	if first != "" {
		first = padding + first
	}
	if multi {
		first += "\n" + padding + strings.ReplaceAll(rest, "\n", "\n"+padding)
	}
	return b.text(first)
}

// allowed are the functions that the parser accepts: those above and text/template's to compare and to look into values. The others of
// text/template (call, html, js, print, println, urlquery) are left out.
var allowed = func() map[string]any {
	functions := map[string]any{imageVariable: true}
	for name := range (&budget{}).functions() {
		functions[name] = true
	}
	for _, name := range []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "slice"} {
		functions[name] = true
	}
	return functions
}()

// toJSON reads one YAML or JSON document. Anchors and aliases are refused: a few bytes of them are megabytes of JSON.
func toJSON(text string, limit int) ([]byte, error) {
	decoder := yamlv3.NewDecoder(strings.NewReader(text))
	document := yamlv3.Node{}
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	if err := decoder.Decode(&yamlv3.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("not one YAML document")
	}
	if hasAlias(&document) {
		return nil, errors.New("YAML anchors and aliases are not supported")
	}
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	// An escape is six bytes of JSON at most.
	if len(raw) > 6*limit {
		return nil, errTooLong
	}
	return raw, nil
}

func hasAlias(node *yamlv3.Node) bool {
	return node.Kind == yamlv3.AliasNode || node.Anchor != "" || slices.ContainsFunc(node.Content, hasAlias)
}
