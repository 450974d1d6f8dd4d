// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var (
	quoted   = regexp.MustCompile("`([^` ]+)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
)

// TestPaths keeps pages from naming what has moved.
func TestPaths(t *testing.T) {
	g := NewWithT(t)
	var folders []string
	tests := map[string]bool{}
	g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && filepath.Dir(path) == filepath.Clean(root):
			if strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "dist" {
				return filepath.SkipDir
			}
			folders = append(folders, entry.Name())
		case strings.HasSuffix(path, "_test.go"):
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, found := range testFunc.FindAllStringSubmatch(string(source), -1) {
				tests[found[1]] = true
			}
		}
		return nil
	})).To(Succeed())
	t.Run("When a page names a file, a folder or a test of this repository, it should exist", func(t *testing.T) {
		for _, p := range documentation(t) {
			if p.path == "CHANGELOG.md" || slices.Contains(generated, p.path) {
				continue
			}
			for i, line := range p.prose {
				for _, name := range quoted.FindAllStringSubmatch(line, -1) {
					top, below, isPath := strings.Cut(name[1], "/")
					switch {
					case testName.MatchString(top):
						if !tests[top] {
							t.Errorf("%s:%d: there is no test %s", p.path, i+1, top)
						}
					case isPath && slices.Contains(folders, top) && !strings.ContainsAny(below, "{<$"):
						if found, err := filepath.Glob(filepath.Join(root, strings.TrimSuffix(name[1], "/..."))); err != nil || len(found) == 0 {
							t.Errorf("%s:%d: there is no %s", p.path, i+1, name[1])
						}
					}
				}
			}
		}
	})
}
