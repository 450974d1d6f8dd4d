// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// story is how docs/faults.md names one, or a chapter of one; tests of a package have that before them.
var story = regexp.MustCompile("(`[\\w/]+`: )?`(Test\\w+)(?:/(\\w+))?`")

// ends are what a story of a fault calls for each guest that it takes.
var ends = map[string]bool{"endsSettled": true, "endsOff": true}

func TestFaultStories(t *testing.T) {
	t.Run("When docs/faults.md names a story, it should end with what has to hold after every fault", func(t *testing.T) {
		g := NewWithT(t)
		calls := callsOf(t, filepath.Join(root, "test", "e2e"))
		docs, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
		g.Expect(err).NotTo(HaveOccurred())
		stories := 0
		for _, match := range story.FindAllStringSubmatch(string(docs), -1) {
			if match[1] != "" {
				continue
			}
			name := match[2]
			if match[3] != "" {
				name = strings.ToLower(match[3][:1]) + match[3][1:]
			}
			if name == "TestFaults" {
				continue // its chapters are named, too
			}
			called, ok := calls[name]
			g.Expect(ok).To(BeTrue(), "there is no story %s%s", match[2], match[3])
			ended, guests := 0, max(1, called["take"]+called["takeOff"])
			for end := range ends {
				ended += called[end]
			}
			g.Expect(ended).To(Equal(guests), "%s: calls of endsSettled and endsOff, for the guests that it takes", name)
			stories++
		}
		g.Expect(stories).To(BeNumerically(">", 10), "stories that docs/faults.md names")
	})
}

// callsOf counts what each function of a package calls, by the names of both.
func callsOf(t *testing.T, folder string) map[string]map[string]int {
	t.Helper()
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	g.Expect(err).NotTo(HaveOccurred())
	calls := map[string]map[string]int{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		g.Expect(err).NotTo(HaveOccurred())
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			called := map[string]int{}
			ast.Inspect(function, func(node ast.Node) bool {
				if call, ok := node.(*ast.CallExpr); ok {
					switch name := call.Fun.(type) {
					case *ast.Ident:
						called[name.Name]++
					case *ast.SelectorExpr:
						called[name.Sel.Name]++
					}
				}
				return true
			})
			calls[function.Name.Name] = called
		}
	}
	return calls
}
