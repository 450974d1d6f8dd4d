// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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

// altering are the functions that alter Karpenter core.
var altering = regexp.MustCompile(`^(guestclient\.New|leadership\.(Gate|Hold|Refuse)|methods\.(Limit|OnDemand|TerminateFirst)|k\.static\.(Launches|Provisioning)|reconciler\.(Ignore\w+|Savings|Settle|Recount\w*|Extend|Pace|Await\w*|Wake|NodeLimit|BackOff))$`)

// constructor matches the controllers of an extension.
var constructor = regexp.MustCompile(`^(capacitylease|wanted)\.New$`)

// listed is what a program's run.go runs: our controllers and the alterations of Karpenter core's, which core.go lists, or the steps and
// what is added to the manager.
func listed(t *testing.T, program string) []string {
	t.Helper()
	found, core := map[string]bool{}, false
	inspect := func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			name := source(n.Fun)
			switch {
			case name == "mgr.Add":
				found[source(n.Args[0])] = true
			case name == "extend" || program == "fleet/karpenter" && constructor.MatchString(name):
				found[name] = true
			case altering.MatchString(name), slices.Contains([]string{"requests.SetUp", "machines.New", "instancetypecatalog.New"}, name):
				found[name] = true
			}
		case *ast.CompositeLit:
			if list, ok := n.Type.(*ast.ArrayType); ok && source(list.Elt) == "controller.Controller" && !core {
				for _, element := range n.Elts {
					if call, ok := element.(*ast.CallExpr); ok && source(call) == "reconciler.Wrap" {
						element = call.Args[0]
					}
					found[strings.TrimPrefix(source(element), "p.")] = true
				}
			}
		case *ast.KeyValueExpr:
			if source(n.Key) == "Step" {
				found[source(n.Value)] = true
			}
		}
		return true
	}
	for _, name := range map[string][]string{"karpenter": {"run.go", "core.go"}, "operator": {"run.go"}, "fleet/karpenter": {"karpenter.go"}}[program] {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, program, name), nil, 0)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		core = name == "core.go" // whose list is compared with Karpenter core's: TestControllers
		ast.Inspect(file, inspect)
	}
	return slices.Sorted(maps.Keys(found))
}

// mutated reports whether a mutant leaves out, or replaces, an entry of a program's run.go.
func mutated(mutants []mutant.Mutant, program, entry string) bool {
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(entry) + `\b`)
	return slices.ContainsFunc(mutants, func(m mutant.Mutant) bool {
		return slices.ContainsFunc(m.Edits, func(e mutant.Edit) bool { return e.Folder == program && name.MatchString(e.Replace) })
	})
}

func TestEntries(t *testing.T) {
	t.Run("When a program's run.go lists something, a mutant should leave it out", func(t *testing.T) {
		g := NewWithT(t)
		mutants, err := mutant.Read(filepath.Join(root, "test", "mutants"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, program := range []string{"fleet/karpenter", "karpenter", "operator"} {
			entries := listed(t, program)
			g.Expect(entries).NotTo(BeEmpty(), program)
			for _, entry := range entries {
				g.Expect(mutated(mutants, program, entry)).To(BeTrue(), "no mutant leaves %s out of %s", entry, program)
			}
		}
	})
}
