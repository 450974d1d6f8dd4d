// SPDX-License-Identifier: Apache-2.0

package references

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed policy.yaml.tmpl
var policy string

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
	varies := map[string][]string{}
	for kind := range maps.Values(kinds) {
		varies[quoted(kind.Varies)] = append(varies[quoted(kind.Varies)], Name(kind.GroupKind))
	}
	var perKind []string
	for list, names := range varies {
		slices.Sort(names)
		perKind = append(perKind, fmt.Sprintf("variables.kind in %s ? %s :\n        ", quoted(names), list))
	}
	slices.Sort(perKind)
	ranks := make([]string, maxKeys)
	for i := range ranks {
		ranks[i] = strconv.Itoa(i)
	}
	var rendered bytes.Buffer
	err = parsed.Execute(&rendered, map[string]string{
		"Varies": strings.Join(perKind, "") + "[]", "Ranks": "[" + strings.Join(ranks, ", ") + "]", "Text": encoded(0),
	})
	return rendered.Bytes(), err
}

func quoted(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = "'" + text + "'"
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// encoded is a CEL expression that does what Kind.encode does. CEL has no recursion, so there is one copy for each level, and can't sort, so a
// key's rank is the number of those before it. A node is a path, the value there, and the text before it. What Kind.encode rejects has a !
// where no template's text has one.
func encoded(level int) string {
	node, child := fmt.Sprintf("n%d", level), fmt.Sprintf("n%d", level+1)
	value := node + "[1]"
	if level == depth {
		return fmt.Sprintf("(type(%[1]s) == map || type(%[1]s) == list ? '!' : type(%[1]s) == string ? string(size(string(%[1]s))) + ':' + string(%[1]s) : string(%[1]s)) + ';'", value)
	}
	return fmt.Sprintf("(type(%[2]s) == map ? (size(%[2]s) > variables.ranks.size() ? '!' : '{') : type(%[2]s) == list ? '[' :\n        "+
		"type(%[2]s) == string ? string(size(string(%[2]s))) + ':' + string(%[2]s) : string(%[2]s)) +\n        "+
		"(type(%[2]s) == map ? [%[2]s.map(k, [dyn(%[2]s.filter(j, j < k).size()), k])].map(s, variables.ranks.filter(r, r < s.size()).map(r, string(s.filter(p, p[0] == r)[0][1])))[0]\n        "+
		".map(k, [dyn(string(%[1]s[0]) + '.' + k), %[2]s[k], dyn(string(size(k)) + ':' + k + '=')]) :\n        "+
		"type(%[2]s) == list ? %[2]s.map(v, [dyn(string(%[1]s[0]) + '[]'), v, dyn('')]) : [])\n        "+
		".filter(c, c[1] != null && !(string(c[0]) in variables.varies)).map(%[3]s, [string(%[3]s[0]), string(%[3]s[2]), %[4]s])\n        "+
		".filter(t, !(t[2] in ['{;', '[;'] && variables.varies.exists(p, p.startsWith(t[0] + '.') || p.startsWith(t[0] + '[]')))).map(t, t[1] + t[2]).join('') + ';'",
		node, value, child, encoded(level+1))
}
