// SPDX-License-Identifier: Apache-2.0

package mutant

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// span is a part of a file, in bytes.
type span struct{ from, to int }

// find finds the declaration of a symbol in the files of a package and of its tests.
func find(root, folder, symbol string, read func(path string) ([]byte, error)) (file string, where span, err error) {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		return "", span{}, err
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		name := path.Join(folder, entry.Name())
		content, err := read(name)
		if err != nil {
			return "", span{}, err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
		if err != nil {
			return "", span{}, err
		}
		for declared, node := range declarations(parsed) {
			if declared != symbol {
				continue
			}
			if file != "" {
				return "", span{}, fmt.Errorf("%s and %s declare %s", file, name, symbol)
			}
			file, where = name, span{from: files.Position(node.Pos()).Offset, to: files.Position(node.End()).Offset}
		}
	}
	if file == "" {
		return "", span{}, fmt.Errorf("%s declares no %s", folder, symbol)
	}
	return file, where, nil
}

// declarations yields what a file declares. The positions of these nodes leave out their comments.
func declarations(file *ast.File) func(yield func(string, ast.Node) bool) {
	return func(yield func(string, ast.Node) bool) {
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if !yield(receiver(d)+d.Name.Name, d) {
					return
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if !yield(s.Name.Name, s) {
							return
						}
					case *ast.ValueSpec:
						for _, name := range s.Names {
							if !yield(name.Name, s) {
								return
							}
						}
					}
				}
			}
		}
	}
}

// receiver returns the type that a method belongs to, and a dot.
func receiver(function *ast.FuncDecl) string {
	if function.Recv == nil || len(function.Recv.List) == 0 {
		return ""
	}
	of := function.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "."
		default:
			return ""
		}
	}
}

// version is the last part of an import path that isn't the package's name.
var version = regexp.MustCompile(`^v\d+$`)

// withoutUnused removes the imports that were used before an edit and aren't any more: the compiler would reject them.
func withoutUnused(before, after []byte) ([]byte, error) {
	_, was, err := used(before)
	if err != nil {
		return nil, err
	}
	file, is, err := used(after)
	if err != nil {
		return nil, err
	}
	for _, spec := range slices.Backward(file.Imports) {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		name := path.Base(imported)
		if version.MatchString(name) {
			name = path.Base(path.Dir(imported))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if was[name] && !is[name] {
			after = slices.Concat(after[:spec.Pos()-1], after[spec.End()-1:])
		}
	}
	return after, nil
}

// used parses a file, and returns the names before a dot in it. Positions are offsets plus one.
func used(content []byte) (*ast.File, map[string]bool, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", content, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if name, ok := selector.X.(*ast.Ident); ok {
				names[name.Name] = true
			}
		}
		return true
	})
	return file, names, nil
}
