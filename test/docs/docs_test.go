// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// languages that a block may be in. Blocks in a language that isn't named here can't be checked.
var languages = []string{"", "go", "goat", "json", "promql", "sh", "text", "yaml"}

// played are pages whose commands are run one after the other, with the objects that the page shows.
const played = "docs/start/"

// check returns what is wrong with a page's blocks.
func (p page) check(ctx context.Context, dir string, known []string) (problems []error) {
	s := &shell{dir: dir, plays: strings.HasPrefix(p.path, played)}
	if s.plays {
		var err error
		if p, err = p.filled(); err != nil {
			problems = append(problems, err)
		}
	}
	var objects shown
	for _, b := range p.blocks {
		for _, key := range unknownKeys(b.text, known) {
			problems = append(problems, b.errorf("no label or annotation is called %s", key))
		}
		switch {
		case !slices.Contains(languages, b.language):
			problems = append(problems, b.errorf("blocks in %q aren't checked; use one of %q", b.language, languages))
		case b.language == "yaml":
			found, more := b.yaml(ctx, dir)
			objects.Objects, problems = append(objects.Objects, found...), append(problems, more...)
			if err := s.save(b); err != nil {
				problems = append(problems, err)
			}
		case b.language == "json":
			if !json.Valid([]byte(b.text)) {
				problems = append(problems, b.errorf("it isn't JSON"))
			}
		case b.language == "" || b.language == "sh":
			commands, more := b.commands()
			problems = append(problems, more...)
			for _, c := range commands {
				if err := s.check(ctx, c.words); err != nil && !b.prints(c, "error: ") {
					problems = append(problems, fmt.Errorf("%s:%d: %w", b.page, c.line, err))
				}
			}
		}
	}
	if slices.Contains(infrastructures, p.path) { // the local world has objects that its page doesn't show
		if err := objects.leadsToNode(ctx); err != nil {
			problems = append(problems, fmt.Errorf("%s doesn't lead to a node: %w", p.path, err))
		}
	}
	return problems
}

// prints reports whether the line after a command begins so: the page shows what a mistake leads to.
func (b block) prints(c command, text string) bool {
	lines := strings.Split(b.text, "\n")
	next := c.line - b.line + 1
	return next < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[next]), text)
}

func TestPages(t *testing.T) {
	known := keys(t)
	for _, p := range documentation(t) {
		if len(p.blocks) == 0 || p.path == firstNode { // whose steps the infrastructures' pages complete
			continue
		}
		t.Run("When a reader follows "+p.path+", it should work as shown", func(t *testing.T) {
			if !strings.HasPrefix(p.path, played) { // those use the same names
				t.Parallel()
			}
			for _, problem := range p.check(t.Context(), t.TempDir(), known) {
				t.Error(problem)
			}
		})
	}
}

func TestLinks(t *testing.T) {
	pages := map[string]page{}
	for _, p := range documentation(t) {
		pages[p.path] = p
	}
	t.Run("When a page links to another, the file and the heading should exist", func(t *testing.T) {
		for _, p := range pages {
			for _, problem := range p.links(pages) {
				t.Error(problem)
			}
		}
	})
	t.Run("When a page is in docs, the README or a page that it links to should link to it", func(t *testing.T) {
		g := NewWithT(t)
		reached := map[string]bool{}
		var follow func(path string)
		follow = func(path string) {
			if reached[path] {
				return
			}
			reached[path] = true
			for _, line := range pages[path].prose {
				for _, found := range link.FindAllStringSubmatch(line, -1) {
					target, _, _ := strings.Cut(found[1], "#")
					if next := filepath.ToSlash(filepath.Join(filepath.Dir(path), target)); strings.HasSuffix(next, ".md") {
						follow(next)
					}
				}
			}
		}
		follow("README.md")
		for path := range pages {
			if strings.HasPrefix(path, "docs/") {
				g.Expect(reached).To(HaveKey(path))
			}
		}
	})
}

// key is a label or an annotation in our groups, or the Cluster Autoscaler's.
var key = regexp.MustCompile(`(?:^|[^\w.-])((?:karpenter\.cluster\.x-k8s\.io|autonode\.io|capacity\.cluster-autoscaler\.kubernetes\.io)/[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?)`)

// userKeys are labels that users choose.
var userKeys = []string{"autonode.io/shard", "autonode.io/template-pool"}

func unknownKeys(text string, known []string) (unknown []string) {
	for _, found := range key.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(known, found[1]) && !slices.Contains(userKeys, found[1]) {
			unknown = append(unknown, found[1])
		}
	}
	return unknown
}

// keys are those that the code has constants of, and the versions of its groups.
func keys(t *testing.T) []string {
	t.Helper()
	g := NewWithT(t)
	found := []string{v1beta1.Group + "/v1beta1", v1beta1.Group + "/v1alpha1", "karpenter.cluster.x-k8s.io/v1alpha1"}
	packages := imports{}
	for _, folder := range []string{"api/v1beta1", "api/karpenter/v1alpha1", "karpenter/providers/template", "karpenter/core/wellknown", "karpenter/providers/instancetype"} {
		paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		g.Expect(err).NotTo(HaveOccurred())
		set := token.NewFileSet()
		var files []*ast.File
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(set, path, nil, 0)
			g.Expect(err).NotTo(HaveOccurred())
			files = append(files, file)
		}
		// Of other packages only the keys' groups are needed, so that errors don't matter.
		config := types.Config{Error: func(error) {}, Importer: packages}
		checked, _ := config.Check(folder, set, files, nil)
		packages[module+folder] = checked
		for _, name := range checked.Scope().Names() {
			if c, ok := checked.Scope().Lookup(name).(*types.Const); ok && c.Val().Kind() == constant.String {
				found = append(found, constant.StringVal(c.Val()))
			}
		}
	}
	g.Expect(len(found)).To(BeNumerically(">", 50), "constants")
	return found
}

// module is the repository's.
const module = "github.com/autonode-io/autonode/"

// imports are the packages that have been read, by their import paths.
type imports map[string]*types.Package

// Import implements types.Importer.
func (i imports) Import(path string) (*types.Package, error) {
	if found, ok := i[path]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("%s isn't needed", path)
}
