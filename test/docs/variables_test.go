// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drone/envsubst/v2"
	. "github.com/onsi/gomega"
)

var (
	exported = regexp.MustCompile(`([A-Z][A-Z0-9_]*)=(\S+)`)
	referred = regexp.MustCompile(`\$\{?([A-Z][A-Z0-9_]*)\}?`)
)

// variables are those that a page exports, with their values.
func (p page) variables() map[string]string {
	values := map[string]string{}
	for _, b := range p.blocks {
		for line := range strings.SplitSeq(b.text, "\n") {
			if b.language != "" || !strings.HasPrefix(line, "export ") {
				continue
			}
			for _, found := range exported.FindAllStringSubmatch(line, -1) {
				values[found[1]] = referred.ReplaceAllStringFunc(found[2], func(name string) string { return values[strings.Trim(name, "${}")] })
			}
		}
	}
	return values
}

// filled is the page with values instead of the variables that it exports: in YAML with the library of clusterctl generate yaml, in commands as a
// shell does. A page that exports none stays as it is.
func (p page) filled() (page, error) {
	values := p.variables()
	if len(values) == 0 {
		return p, nil
	}
	var problems []error
	p.blocks = slices.Clone(p.blocks)
	for i, b := range p.blocks {
		value := func(name string) string {
			found, ok := values[name]
			if !ok {
				problems = append(problems, b.errorf("the page exports no %s", name))
			}
			return found
		}
		switch b.language {
		case "yaml":
			text, err := envsubst.Eval(b.text, value)
			if err != nil {
				problems = append(problems, b.errorf("%w", err))
			}
			p.blocks[i].text = text
		case "":
			p.blocks[i].text = referred.ReplaceAllStringFunc(b.text, func(name string) string { return value(strings.Trim(name, "${}")) })
		}
	}
	return p, errors.Join(problems...)
}

// generate checks clusterctl generate yaml, whose output the next command with -f - reads. The file is filled in already.
func (s *shell) generate(args []string) error {
	at := slices.Index(args, "--from")
	if at < 0 || at+1 == len(args) {
		return errors.New("clusterctl generate yaml needs --from")
	}
	if _, err := os.Stat(filepath.Join(s.dir, args[at+1])); err != nil {
		return fmt.Errorf("the page doesn't show %s", args[at+1])
	}
	s.generated = args[at+1]
	return nil
}

func TestVariables(t *testing.T) {
	t.Run("When a page of getting started exports a variable, something on the page should refer to it", func(t *testing.T) {
		g, pages := NewWithT(t), 0
		for _, p := range documentation(t) {
			if !strings.HasPrefix(p.path, played) || len(p.variables()) == 0 {
				continue
			}
			pages++
			var text strings.Builder
			for _, b := range p.blocks {
				text.WriteString(b.text)
			}
			for name := range p.variables() {
				g.Expect(text.String()).To(MatchRegexp(`\$\{?%s\b`, name), p.path)
			}
		}
		g.Expect(pages).To(BeNumerically(">=", 5))
	})
	for name, test := range map[string]struct{ content, want string }{
		"When YAML refers to a variable that the page doesn't export, it should name it": {
			shellBlock("export CLUSTER_NAME=blue") + yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"${CLUSTER}\"}"), "CLUSTER"},
		"When a command refers to one, it should name it": {
			shellBlock("export CLUSTER_NAME=blue\nkubectl get anhc $CLUSTER"), "the page exports no CLUSTER"},
		"When clusterctl reads a file that the page doesn't show, it should name it": {
			shellBlock("export CLUSTER_NAME=blue\nkubectl get nodes\nclusterctl generate yaml --from examples/page/$CLUSTER_NAME.yaml | kubectl apply -f -"),
			"the page doesn't show examples/page/blue.yaml"},
		"When what is filled in makes an unknown field, it should name the field": {
			shellBlock("export NAME=blue") + yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n${NAME}s: {a: b}"), `unknown field "blues"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.Join(parse(played+"page.md", test.content).check(t.Context(), t.TempDir(), nil)...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

// TestShared keeps the copies of a step alike. A site without copies would send its readers from page to page.
func TestShared(t *testing.T) {
	t.Run("When a step is the same on every infrastructure, the pages should describe it in the same words", func(t *testing.T) {
		g := NewWithT(t)
		kind := regexp.MustCompile(`kind: \w+MachineTemplate`)
		ends := map[string]string{"5": "\n### ", "6": "\n## ", "7": "30 minutes by default"}
		var first map[string]string
		for _, name := range []string{"vsphere", "kubevirt", "openstack", "aws", "metal3"} {
			content, err := os.ReadFile(filepath.Join(root, played, name+".md"))
			g.Expect(err).NotTo(HaveOccurred())
			text := kind.ReplaceAllString(strings.ReplaceAll(string(content), "examples/"+name, "examples/…"), "kind: …")
			steps := map[string]string{}
			for section := range strings.SplitSeq(text, "\n## ") {
				if end, ok := ends[section[:1]]; ok {
					steps[section[:1]], _, _ = strings.Cut(section, end)
				}
			}
			g.Expect(steps).To(HaveLen(len(ends)), name)
			if first == nil {
				first = steps
			}
			for step, words := range steps {
				g.Expect(strings.TrimSpace(words)).To(Equal(strings.TrimSpace(first[step])), "%s, step %s", name, step)
			}
		}
	})
}
