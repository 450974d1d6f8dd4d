// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// TestMenu is what `make site` checks, too, where there is npm.
func TestMenu(t *testing.T) {
	t.Run("When a page is in docs, the site's menu should list it", func(t *testing.T) {
		g := NewWithT(t)
		content, err := os.ReadFile(filepath.Join(root, "site", "data", "menu.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		var sections []struct {
			Index, Folder string
			Pages         []struct{ File string }
		}
		g.Expect(yaml.Unmarshal(content, &sections)).To(Succeed())
		var listed []string
		for _, section := range sections {
			if section.Folder != "" {
				files, err := filepath.Glob(filepath.Join(root, section.Folder, "*.md"))
				g.Expect(err).NotTo(HaveOccurred())
				listed = append(listed, files...)
			}
			if section.Index != "" {
				listed = append(listed, filepath.Join(root, section.Index))
			}
			for _, page := range section.Pages {
				listed = append(listed, filepath.Join(root, page.File))
			}
		}
		for _, folder := range []string{"docs", "docs/*"} {
			files, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
			g.Expect(err).NotTo(HaveOccurred())
			for _, file := range files {
				g.Expect(slices.Contains(listed, file)).To(BeTrue(), "site/data/menu.yaml lacks %s", file)
			}
		}
		for _, file := range listed {
			g.Expect(file).To(BeAnExistingFile())
		}
	})
}
