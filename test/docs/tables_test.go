// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// tables checks kubectl's tables in a page: their columns, and the messages that the product writes into them.
type tables struct {
	definitions []apiextensionsv1.CustomResourceDefinition
	// texts are the string literals of the product, split where a value comes between.
	texts [][]string
}

var (
	columns = regexp.MustCompile(`  +`)
	// event is a line of kubectl describe.
	event = regexp.MustCompile(`^(Normal|Warning)  `)
	// kinded is a name with its kind, as in a table of several kinds.
	kinded   = regexp.MustCompile(`(?:^|  )([a-z]+)\.[a-z.]+/`)
	inQuotes = regexp.MustCompile(`"[^"]*"`)
	// verb is where a value comes, in Go's formats and in expressions of admission policies.
	verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]| \+ [\w.]+ \+ '|'$`)
)

// check returns what is wrong with the tables and messages of a block.
func (ts tables) check(b block) (problems []error) {
	asked := map[int]string{}
	if commands, _ := b.commands(); strings.HasPrefix(b.text, "$ ") {
		for _, c := range commands {
			asked[c.line+1] = strings.Join(c.words, " ")
		}
	}
	lines := strings.Split(strings.TrimSuffix(b.text, "\n"), "\n")
	var header []string
	for i, line := range lines {
		at, message := b.line+i, ""
		problem := func(err error) {
			if err != nil {
				problems = append(problems, fmt.Errorf("%s:%d: %w", b.page, at, err))
			}
		}
		answer, _, _ := strings.Cut(strings.Join(lines[i:], " "), " $ ")
		cells := columns.Split(strings.TrimSpace(line), -1)
		switch {
		case strings.Contains(asked[at], ".reason}") && !slices.ContainsFunc(ts.texts, func(text []string) bool { return slices.Equal(text, []string{answer}) }):
			problem(fmt.Errorf("the product has no reason %s", answer))
		case strings.Contains(asked[at], ".message}"):
			message = answer
		case strings.Contains(answer, " denied request: ") && asked[at] != "":
			_, message, _ = strings.Cut(answer, " denied request: ")
		case slices.Contains(cells, "NAME"):
			header = cells
			problem(ts.header(strings.Fields(asked[at]), cells, lines[min(i+1, len(lines)-1)]))
		case slices.Contains(cells, "MESSAGE"):
			header = cells
		case line == "" || strings.Contains(line, "$ "):
			header = nil
		case event.MatchString(line), len(header) > 0 && header[len(header)-1] == "MESSAGE" && len(cells) == len(header):
			message = cells[len(cells)-1]
		}
		if words := ts.unwritten(message); len(words) > 0 {
			problem(fmt.Errorf("the product writes no such message: %q has other words", words))
		}
	}
	return problems
}

// header compares the columns of a table with those of its kind. Built-in kinds are Kubernetes' own.
func (ts tables) header(asked, shown []string, row string) error {
	name, wide, namespaced := "", slices.Contains(asked, "wide"), slices.Contains(asked, "-A")
	var labels []string
	if at := slices.Index(asked, "get"); at >= 0 {
		name = asked[at+1]
	} else if found := kinded.FindStringSubmatch(row); found != nil {
		name, namespaced = found[1], shown[0] == "NAMESPACE"
	}
	if at := slices.Index(asked, "-L"); at >= 0 {
		for key := range strings.SplitSeq(asked[at+1], ",") {
			labels = append(labels, strings.ToUpper(key[strings.LastIndex(key, "/")+1:]))
		}
	}
	for _, definition := range ts.definitions {
		names := definition.Spec.Names
		if name != names.Plural && name != names.Singular && !slices.Contains(names.ShortNames, name) {
			continue
		}
		want := []string{"NAME"}
		if namespaced {
			want = []string{"NAMESPACE", "NAME"}
		}
		served := slices.MaxFunc(definition.Spec.Versions, func(a, b apiextensionsv1.CustomResourceDefinitionVersion) int {
			return apiversion.CompareKubeAwareVersionStrings(a.Name, b.Name)
		})
		for _, column := range served.AdditionalPrinterColumns {
			if column.Priority == 0 || wide {
				want = append(want, strings.ToUpper(column.Name))
			}
		}
		if want = append(want, labels...); !slices.Equal(want, shown) {
			return fmt.Errorf("kubectl prints the columns %s, and the page shows %s", strings.Join(want, "  "), strings.Join(shown, "  "))
		}
	}
	return nil
}

// unwritten are the words of a message that no text of the product has in such a sentence. Words with capitals, digits or punctuation may
// be values.
func (ts tables) unwritten(message string) (words []string) {
	message = inQuotes.ReplaceAllString(message, `""`)
	written := make([]bool, len(message))
	for _, text := range ts.texts {
		for from := 0; ; {
			spans := find(message, text, from)
			if spans == nil {
				break
			}
			for _, span := range spans {
				for i := span[0]; i < span[1]; i++ {
					written[i] = true
				}
			}
			from = spans[0][1]
		}
	}
	at := 0
	for word := range strings.FieldsSeq(message) {
		at += strings.Index(message[at:], word)
		bare := strings.Trim(word, `;:,.()"`)
		isWord := bare != "" && strings.IndexFunc(bare, func(r rune) bool { return !unicode.IsLower(r) && r != '\'' }) < 0
		if isWord && slices.Contains(written[at:at+len(word)], false) && !slices.Contains(values, bare) {
			words = append(words, bare)
		}
		at += len(word)
	}
	return words
}

// values in messages that look like words, and plurals.
var values = []string{"default", "gpu", "small", "a", "pods"}

// find returns where the parts of a text are in a message, one after the other; nil if they aren't.
func find(message string, parts []string, from int) (spans [][2]int) {
	for _, part := range parts {
		at := -1
		for at < 0 {
			next := strings.Index(message[from:], part)
			switch {
			case next < 0 && strings.HasSuffix(message, "…"): // the page leaves the rest out
				return spans
			case next < 0:
				return nil
			}
			from += next
			before, _ := utf8.DecodeLastRuneInString(message[:from])
			after, _ := utf8.DecodeRuneInString(message[from+len(part):])
			first, _ := utf8.DecodeRuneInString(part)
			last, _ := utf8.DecodeLastRuneInString(part)
			if unicode.IsLetter(before) && unicode.IsLetter(first) || unicode.IsLetter(after) && unicode.IsLetter(last) {
				from++ // within a word
				continue
			}
			at = from
		}
		from += len(part)
		spans = append(spans, [2]int{at, from})
	}
	return spans
}

// literals returns the texts of the product's code.
func literals(t *testing.T) (texts [][]string) {
	t.Helper()
	g := NewWithT(t)
	seen := map[string]bool{}
	for _, folder := range []string{"api", "fleet", "karpenter", "operator", "internal", "catalog"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				expression, ok := node.(ast.Expr)
				if text := literal(expression); ok && !seen[text] {
					seen[text] = true
					parts := slices.DeleteFunc(verb.Split(text, -1), func(part string) bool { return part == "" })
					if strings.ContainsFunc(text, unicode.IsLetter) && len(parts) > 0 {
						texts = append(texts, parts)
					}
				}
				return true
			})
			return nil
		})).To(Succeed())
	}
	return texts
}

// literal is a string, or several that are added, with a verb in place of each other value.
func literal(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		left, right := literal(e.X), literal(e.Y)
		if e.Op == token.ADD && left+right != "" {
			return verbs(left) + verbs(right)
		}
	}
	return ""
}

func verbs(text string) string {
	if text == "" {
		return "%s"
	}
	return text
}

func TestTables(t *testing.T) {
	g := NewWithT(t)
	ts := tables{texts: literals(t)}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	g.Expect(cluster.admin.List(t.Context(), list)).To(Succeed())
	for _, object := range list.Items {
		definition := apiextensionsv1.CustomResourceDefinition{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &definition)).To(Succeed())
		ts.definitions = append(ts.definitions, definition)
	}
	for _, p := range documentation(t) {
		if len(p.blocks) > 0 {
			t.Run("When "+p.path+" shows tables of kubectl, it should have their columns and the product's messages", func(t *testing.T) {
				for _, b := range p.blocks {
					for _, problem := range ts.check(b) {
						t.Error(problem)
					}
				}
			})
		}
	}
	for name, test := range map[string]struct{ block, want string }{
		"When a table lacks a column, it should name the columns": {
			"$ kubectl get capacityaccounts\nNAME   READY   AGE\na      True    5m", "kubectl prints the columns NAME  READY  CLUSTERS"},
		"When a message has other words than the product's, it should name them": {
			"$ kubectl get hostedclusters -A\nNAMESPACE  NAME  AUTONODE  VERSION  DESIRED  NODES  OUTDATED  AGE  MESSAGE\n" +
				"a  b  True  1  1  1  1  1h  nodes stay on 1.36.2 before the control plane is upgraded to 1.36.3", `["stay"`},
		"When an event has other words, it should name them": {
			"$ kubectl describe nodeclaim a\nWarning  NodeNameMismatch  Machine a wants node b", `["wants"`},
		"When a condition has another reason, it should name it": {
			"$ kubectl get capinc a -o jsonpath='{.status.conditions[0].reason}'\nNoReason", "no reason NoReason"},
	} {
		t.Run(name, func(t *testing.T) {
			var problems []error
			for _, b := range parse("docs/page.md", shellBlock(test.block)).blocks {
				problems = append(problems, ts.check(b)...)
			}
			NewWithT(t).Expect(errors.Join(problems...)).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

var (
	markup   = regexp.MustCompile(`<[^>]*>|\n`)
	headings = regexp.MustCompile(`d\.heading\("(.+[^:])"\)`)
)

func TestDemo(t *testing.T) {
	g := NewWithT(t)
	const recording, advice = "docs/images/demo.svg", "it lacks a line; record it again with `autonode-dev demo --svg`, and take the README's lines from it"
	picture, err := os.ReadFile(filepath.Join(root, recording))
	g.Expect(err).NotTo(HaveOccurred())
	_, rows, _ := strings.Cut(string(picture), `<g class="lines"`)
	printed := html.UnescapeString(markup.ReplaceAllString("<"+rows, ""))
	t.Run("When the README shows the demo as text, the recording should have the lines, in that order", func(t *testing.T) {
		rest := printed
		for line := range strings.Lines(blockOf(t, "README.md", "1  ")) {
			_, after, has := strings.Cut(rest, strings.TrimSpace(line))
			NewWithT(t).Expect(has).To(BeTrue(), "README.md shows %q, and %s: %s", line, recording, advice)
			rest = after
		}
	})
	t.Run("When the demo has acts, the recording should show each", func(t *testing.T) {
		code, err := os.ReadFile(filepath.Join(root, "test/demo/demo.go"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, act := range headings.FindAllStringSubmatch(string(code), -1) {
			g.Expect(printed).To(ContainSubstring(act[1]), "%s: %s", recording, advice)
		}
	})
}
