// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write examples/ from the documentation")

// cookbook has the pages whose NodePools are examples.
const cookbook = "docs/cluster-admins/"

// exampleFolders are those of the files that other pages show.
var exampleFolders = map[string]string{"docs/platform/import.md": "catalog"}

// exampleOf is the example that a block shows, as a path from the root: files of the first-node pages and of exampleFolders, and the NodePools
// of the cookbook.
func exampleOf(path string, b block) string {
	found := named.FindStringSubmatch(b.text)
	folder, isPlayed := strings.CutPrefix(strings.TrimSuffix(path, ".md"), played)
	switch {
	case b.language != "yaml":
	case path == firstNode && found != nil:
		return "examples/first-node/" + found[1]
	case isPlayed && found != nil:
		return "examples/" + folder + "/" + found[1]
	case exampleFolders[path] != "" && found != nil:
		return "examples/" + exampleFolders[path] + "/" + found[1]
	case strings.HasPrefix(path, cookbook):
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(b.text), &object); err == nil && object.Kind == "NodePool" {
			return "examples/nodepools/" + object.Metadata.Name + ".yaml"
		}
	}
	return ""
}

// examples are the files that pages show, or that they name and a test reads, by their path from the root.
func examples(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, p := range documentation(t) {
		for _, b := range p.blocks {
			if b.file != "" {
				files[b.file] = b.text
			}
		}
	}
	return files
}

func TestExamples(t *testing.T) {
	t.Run("When a page shows a file, examples should have it, and nothing else", func(t *testing.T) {
		g := NewWithT(t)
		want, got := examples(t), map[string]string{}
		g.Expect(len(want)).To(BeNumerically(">", 20))
		g.Expect(filepath.WalkDir(filepath.Join(root, "examples"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			relative, _ := filepath.Rel(root, path)
			got[filepath.ToSlash(relative)] = string(content)
			return err
		})).To(Succeed())
		if *update {
			for path := range got {
				g.Expect(os.Remove(filepath.Join(root, path))).To(Succeed())
			}
			for path, content := range want {
				g.Expect(os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755)).To(Succeed())
				g.Expect(os.WriteFile(filepath.Join(root, path), []byte(content), 0o644)).To(Succeed())
			}
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("run go test -C test ./docs -run TestExamples -update:\n%s", diff)
		}
	})
}
