// SPDX-License-Identifier: Apache-2.0

package references

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:embed policy.yaml.tmpl
var policy string

const (
	// depth is how deep below spec the policy looks for fields that it doesn't know. A KubevirtMachine's affinity is the deepest that is known.
	depth = 18
	// suspicious matches the paths of fields that may refer to a Secret, or to what is as good as one.
	suspicious = `(?i)secret|serviceaccount|persistentvolumeclaim|hostdisk|bootstrapref|identityref|[.]source[.](pvc|snapshot)|^spec[.](userdata|metadata|networkdata)([.]|$)`
)

// Policy renders manifests/policy/references.yaml.
func Policy() ([]byte, error) {
	kinds, err := Embedded()
	if err != nil {
		return nil, err
	}
	parsed, err := template.New("policy").Parse(policy)
	if err != nil {
		return nil, fmt.Errorf("parsing the policy's template: %w", err)
	}
	var rendered bytes.Buffer
	err = parsed.Execute(&rendered, map[string]string{
		"Found": perKind(kinds, Kind.found), "Known": perKind(kinds, Kind.known), "Ignored": perKind(kinds, func(k Kind) string { return quoted(k.below()) }),
		"Unknown": unknown(), "Suspicious": "'" + suspicious + "'",
	})
	return rendered.Bytes(), err
}

// perKind is a CEL expression with a list for each kind, one line each.
func perKind(kinds Kinds, list func(Kind) string) string {
	of := map[string][]schema.GroupKind{}
	for name, kind := range kinds {
		if text := list(kind); text != "[]" {
			of[text] = append(of[text], name)
		}
	}
	names := map[string]string{}
	for text, same := range of {
		var conditions []string
		for _, kind := range same {
			conditions = append(conditions, fmt.Sprintf("'%s'", Name(kind)))
		}
		slices.Sort(conditions)
		names["variables.kind in ["+strings.Join(conditions, ", ")+"] ? "] = text
	}
	var b strings.Builder
	for _, condition := range slices.Sorted(maps.Keys(names)) {
		b.WriteString(condition + names[condition] + " :\n        ")
	}
	return b.String() + "[]"
}

// found is a list of the texts of a kind's references, as Reference.texts makes them.
func (k Kind) found() string {
	var lists []string
	for _, reference := range k.Compared {
		lists = append(lists, reference.found())
	}
	if len(lists) == 0 {
		return "[]"
	}
	return strings.Join(lists, " + ")
}

func (r Reference) found() string {
	before, after, passes := strings.Cut(r.Path, "[]")
	text := func(value string) string {
		if len(r.Fields) == 0 {
			return fmt.Sprintf("'%s=' + string(%s)", r.Path, value)
		}
		var parts []string
		for _, field := range r.Fields {
			parts = append(parts, fmt.Sprintf("string(%s.?%s.orValue(''))", value, field))
		}
		return fmt.Sprintf("'%s=' + %s", r.Path, strings.Join(parts, " + '/' + "))
	}
	if !passes {
		return fmt.Sprintf("(%s.hasValue() ? [%s] : [])", optional("object", before), text("object."+before))
	}
	if after == "" {
		return fmt.Sprintf("%s.orValue([]).map(e, %s)", optional("object", before), text("e"))
	}
	return fmt.Sprintf("%s.orValue([]).map(e, %s.hasValue(), %s)", optional("object", before), optional("e", after), text("e"+after))
}

// optional follows a path as far as it goes.
func optional(object, path string) string {
	return object + ".?" + strings.ReplaceAll(strings.TrimPrefix(path, "."), ".", ".?")
}

// known is a list of the paths of a kind's references and of what belongs to them, as far as they look like references.
func (k Kind) known() string {
	var paths []string
	for _, reference := range k.Compared {
		leaves := []string{reference.Path}
		for _, field := range reference.Fields {
			leaves = append(leaves, reference.Path+"."+field)
		}
		for _, leaf := range leaves {
			for end := range leaf {
				if leaf[end] == '.' || leaf[end] == '[' {
					paths = append(paths, leaf[:end])
				}
			}
			paths = append(paths, leaf)
		}
	}
	var known []string
	for _, path := range paths {
		if looks.MatchString(path) && !slices.Contains(known, path) {
			known = append(known, path)
		}
	}
	return quoted(known)
}

var looks = regexp.MustCompile(suspicious)

// below returns the paths of what isn't compared, with all below it.
func (k Kind) below() []string {
	paths := slices.Clone(k.Ignored)
	for _, reference := range k.Compared {
		for _, field := range reference.With {
			paths = append(paths, reference.Path+"."+field)
		}
	}
	return paths
}

func quoted(paths []string) string {
	quoted := make([]string, len(paths))
	for i, path := range paths {
		quoted[i] = "'" + path + "'"
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// unknown is a CEL expression: whether the object has a field that may refer to a Secret and that isn't known. CEL has no recursion, so there is one
// loop for each level. A node is a path and what is there.
func unknown() string {
	children := func(node string) string {
		return fmt.Sprintf("(type(%[1]s[1]) == map ? %[1]s[1].map(k, [dyn(string(%[1]s[0]) + '.' + k), %[1]s[1][k]]) : "+
			"type(%[1]s[1]) == list ? %[1]s[1].map(v, [dyn(string(%[1]s[0]) + '[]'), v]) : [])", node)
	}
	name := func(level int) string { return fmt.Sprintf("n%d", level) }
	expression := fmt.Sprintf("type(%[1]s[1]) == map || type(%[1]s[1]) == list", name(depth))
	for level := depth; level > 0; level-- {
		node := name(level)
		bad := fmt.Sprintf("string(%s[0]).matches(variables.suspicious) && !(string(%s[0]) in variables.known) && "+
			"!variables.ignored.exists(p, string(%s[0]) == p || string(%s[0]).startsWith(p + '.'))", node, node, node, node)
		expression = fmt.Sprintf("%s.exists(%s, %s || %s)", children(name(level-1)), node, bad, expression)
	}
	return fmt.Sprintf("[[dyn('spec'), object.?spec.orValue({})]].exists(n0,\n        %s)", strings.ReplaceAll(expression, ".exists(n", ".exists(\n        n"))
}
