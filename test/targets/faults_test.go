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

// faultTest is how docs/reference/faults.md names an end-to-end test, or a part of one; other packages' tests have theirs before them.
var faultTest = regexp.MustCompile("(`[\\w/]+`: )?`(Test\\w+)(?:/(\\w+))?`")

// ends are what a test of a fault calls for each guest that it acquires.
var ends = map[string]bool{"endsSettled": true, "endsOff": true}

func TestFaults(t *testing.T) {
	t.Run("When docs/reference/faults.md names an end-to-end test, it should end with what has to hold after every fault", func(t *testing.T) {
		g := NewWithT(t)
		calls := callsOf(t, filepath.Join(root, "test", "e2e"))
		docs, err := os.ReadFile(filepath.Join(root, "docs", "reference", "faults.md"))
		g.Expect(err).NotTo(HaveOccurred())
		named := 0
		for _, match := range faultTest.FindAllStringSubmatch(string(docs), -1) {
			if match[1] != "" {
				continue
			}
			name := match[2]
			if match[3] != "" {
				name = strings.ToLower(match[3][:1]) + match[3][1:]
			}
			if name == "TestFaults" {
				continue // its parts are named, too
			}
			called, ok := calls[name]
			g.Expect(ok).To(BeTrue(), "there is no test %s%s", match[2], match[3])
			ended, guests := 0, max(1, called["acquireCluster"]+called["acquireClusters"])
			for end := range ends {
				ended += called[end]
			}
			g.Expect(ended).To(Equal(guests), "%s: calls of endsSettled and endsOff, for the guests that it acquires", name)
			named++
		}
		g.Expect(named).To(BeNumerically(">", 10), "end-to-end tests that docs/reference/faults.md names")
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
