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

// cookbook is the page whose NodePools are examples.
const cookbook = "docs/cluster-admins/node-pools.md"

// exampleFolders are those of the files that other pages show.
var exampleFolders = map[string]string{"docs/platform/catalog.md": "catalog"}

// examples are the files that pages show, by their path from the root: those of getting started and of exampleFolders, and the NodePools of
// the cookbook.
func examples(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, p := range documentation(t) {
		folder, hasFiles := strings.CutPrefix(strings.TrimSuffix(p.path, ".md"), played)
		if !hasFiles {
			folder, hasFiles = exampleFolders[p.path]
		}
		for _, b := range p.blocks {
			path := ""
			switch found := named.FindStringSubmatch(b.text); {
			case b.language != "yaml":
				continue
			case hasFiles && found != nil:
				path = "examples/" + folder + "/" + found[1]
			case p.path == cookbook:
				var object struct {
					Kind     string
					Metadata struct{ Name string }
				}
				if err := yaml.Unmarshal([]byte(b.text), &object); err != nil || object.Kind != "NodePool" {
					continue
				}
				path = "examples/nodepools/" + object.Metadata.Name + ".yaml"
			default:
				continue
			}
			NewWithT(t).Expect(files).NotTo(HaveKey(path), "two blocks of %s", p.path)
			files[path] = b.text
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
