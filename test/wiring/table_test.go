// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/mutants/mutant"
)

const root = "../.."

// source is an expression as run.go has it, without what it is called with: garbagecollection.New.
func source(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return source(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return source(e.Fun)
	case *ast.IndexExpr:
		return source(e.X)
	default:
		return "?"
	}
}

// listed is what a program's run.go runs: our controllers, what is appended to Karpenter core's and what it wraps these with, or the steps and
// what is added to the manager.
func listed(t *testing.T, program string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, program, "run.go"), nil, 0)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := map[string]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			name := source(n.Fun)
			switch {
			case name == "append" && len(n.Args) > 0 && source(n.Args[0]) == "k.controllers" && !n.Ellipsis.IsValid():
				for _, arg := range n.Args[1:] {
					found[source(arg)] = true
				}
			case name == "mgr.Add":
				found[source(n.Args[0])] = true
			case name == "capacityaccount.New":
				found[name] = true
			case slices.Contains([]string{"leadership.Gate", "terminatefirst.Guest", "terminatefirst.Methods", "ondemand.Methods", "reclaim.Methods", "leadership.Guest", "leadership.Hold", "refusal.BackOff", "shutdown.Promptly", "reconciler.IgnoreNodePoolGone", "declaredlabels.Guest", "zones.Guest", "uninitialized.Guest", "providerid.Guest", "nodelock.Guest", "deadlines.Extend", "ownwrites.Guest", "ownwrites.Await", "ownwrites.AwaitNode", "departure.Follow", "ownwrites.Clock", "expiration.NewController", "launching.Pace", "launching.Ignore", "statusonly.Guest", "static.Launches", "static.Provisioning", "unlaunched.Settle", "requests.SetUp", "machines.New", "instancetypecatalog.New"}, name):
				found[name] = true
			}
		case *ast.CompositeLit:
			if list, ok := n.Type.(*ast.ArrayType); ok && source(list.Elt) == "controller.Controller" {
				for _, element := range n.Elts {
					found[strings.TrimPrefix(source(element), "p.")] = true
				}
			}
		case *ast.KeyValueExpr:
			if source(n.Key) == "Step" {
				found[source(n.Value)] = true
			}
		}
		return true
	})
	var names []string
	for name := range found {
		names = append(names, program+": "+name)
	}
	slices.Sort(names)
	return names
}

var row = regexp.MustCompile("^\\| (\\w+) \\| `([\\w.]+)` \\| `([\\w/]+)`: `(Test\\w+)` \\|")

// mutates reports whether a mutant leaves out, or replaces, what a program's run.go lists, and names the test of a package.
func mutates(m mutant.Mutant, program, listed, pkg, test string) bool {
	leavesOut := regexp.MustCompile(`\b` + regexp.QuoteMeta(listed) + `\b`)
	return m.Package == "./"+pkg && m.Run == test && slices.ContainsFunc(m.Edits, func(e mutant.Edit) bool {
		return e.Folder == program && leavesOut.MatchString(e.Replace)
	})
}

func TestTable(t *testing.T) {
	t.Run("When a program's run.go lists something, docs/testing.md should name a test that fails without it", func(t *testing.T) {
		g := NewWithT(t)
		docs, err := os.ReadFile(root + "/docs/testing.md")
		g.Expect(err).NotTo(HaveOccurred())
		var rows []string
		mutants, err := mutant.Read(filepath.Join(root, "test", "mutants"))
		g.Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(string(docs)) {
			match := row.FindStringSubmatch(line)
			if match == nil {
				continue
			}
			rows = append(rows, match[1]+": "+match[2])
			files, err := filepath.Glob(filepath.Join(root, match[3], "*_test.go"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(slices.ContainsFunc(files, func(path string) bool {
				content, err := os.ReadFile(path)
				return err == nil && strings.Contains(string(content), "func "+match[4]+"(")
			})).To(BeTrue(), "%s has no %s", match[3], match[4])
			g.Expect(slices.ContainsFunc(mutants, func(m mutant.Mutant) bool { return mutates(m, match[1], match[2], match[3], match[4]) })).To(
				BeTrue(), "no mutant leaves %s out of %s/run.go and names %s of %s", match[2], match[1], match[4], match[3])
		}
		slices.Sort(rows)
		if diff := cmp.Diff(append(listed(t, "karpenter"), listed(t, "operator")...), rows); diff != "" {
			t.Errorf("run.go and the table differ (-run.go +docs/testing.md):\n%s", diff)
		}
	})
}
