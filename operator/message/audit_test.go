// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestAudit finds each call in the operator that writes a status or gets an event recorder: none may bypass what bounds messages.
func TestAudit(t *testing.T) {
	g := NewWithT(t)
	var recorders, statuses []string
	fset := token.NewFileSet()
	g.Expect(filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "scopetest") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		var parents []ast.Node
		ast.Inspect(file, func(node ast.Node) bool {
			if node == nil {
				parents = parents[:len(parents)-1]
				return true
			}
			parents = append(parents, node)
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			where := filepath.ToSlash(strings.TrimPrefix(path, "../"))
			switch selector.Sel.Name {
			case "GetEventRecorder", "GetEventRecorderFor":
				if outer, ok := parents[len(parents)-2].(*ast.CallExpr); ok && fmt.Sprint(outer.Fun) == "&{message Recorder}" {
					where += " bounded"
				}
				recorders = append(recorders, where)
			case "Update", "Patch", "Apply", "Create":
				if on, ok := selector.X.(*ast.CallExpr); ok {
					if inner, ok := on.Fun.(*ast.SelectorExpr); ok && (inner.Sel.Name == "Status" || inner.Sel.Name == "SubResource") {
						statuses = append(statuses, where)
					}
				}
			}
			return true
		})
		return nil
	})).To(Succeed())
	slices.Sort(statuses)

	t.Run("When the operator gets an event recorder, it should be bounded", func(t *testing.T) {
		NewWithT(t).Expect(recorders).To(ConsistOf("run.go bounded"))
	})
	t.Run("When the operator writes a status, it should do so where conditions are cut", func(t *testing.T) {
		NewWithT(t).Expect(slices.Compact(statuses)).To(ConsistOf(
			"apply/status.go",             // cuts them
			"controllers/shard/shard.go",  // status.operator alone
			"controllers/csr/approver.go", // the approval of a request, of maxMessage bytes
			"steps/access/tokens.go",      // a TokenRequest
			"steps/nodeclass/stopped.go",  // texts of the operator's own
		))
	})
}
