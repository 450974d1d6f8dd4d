// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// tree maps the paths of a directory's files to their content; links are "-> target".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, _ := filepath.Rel(dir, path)
		if entry.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			found[relative] = "-> " + target
			return err
		}
		content, err := os.ReadFile(path)
		found[relative] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWriteAtomically(t *testing.T) {
	g, dir := NewWithT(t), t.TempDir()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}
	g.Expect(writeAtomically(dir, map[string]file{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}})).To(Succeed())
	g.Expect(read("a") + read("sub/b")).To(Equal("12"))
	first, err := os.Readlink(filepath.Join(dir, dataLink))
	g.Expect(err).NotTo(HaveOccurred())

	t.Run("When content, mode or names differ, it should show exactly the new files", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(writeAtomically(dir, map[string]file{"a": {[]byte("one"), 0o600}, "c": {nil, 0o644}})).To(Succeed())
		second, err := os.Readlink(filepath.Join(dir, dataLink))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).NotTo(Equal(first))
		g.Expect(tree(t, dir)).To(Equal(map[string]string{
			dataLink: "-> " + second, "a": "-> ..data/a", "c": "-> ..data/c", second + "/a": "one", second + "/c": "",
		}))
		info, err := os.Stat(filepath.Join(dir, "a"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	})
	for _, bad := range []string{"../x", "/x", "..x", "a/../../x"} {
		t.Run("When a name is "+bad+", it should refuse it", func(t *testing.T) {
			NewWithT(t).Expect(writeAtomically(dir, map[string]file{bad: {}})).To(HaveOccurred())
		})
	}
}
