// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

const root = "../.."

// output of a command in the repository's root. The Makefile's own variables, which a surrounding make exports, must not decide.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "MAKE") || strings.HasPrefix(variable, "MFLAGS=") || strings.HasPrefix(variable, "TESTFLAGS=")
	})
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s %s", name, strings.Join(args, " "))
	return string(out)
}

// runsTests matches a command that runs tests, and what it gets.
var runsTests = regexp.MustCompile(`(?:go test|--packages) (.+)`)

// folders of the packages whose tests a make target would run.
func folders(t *testing.T, target string) []string {
	t.Helper()
	args := []string{"list", "-f", "{{.Dir}}"}
	for line := range strings.Lines(output(t, "make", "--dry-run", target)) {
		if match := runsTests.FindStringSubmatch(line); match != nil {
			for _, word := range strings.Fields(match[1]) {
				if strings.HasPrefix(word, "./") || strings.HasPrefix(word, "github.com/") {
					args = append(args, word)
				}
			}
		}
	}
	NewWithT(t).Expect(len(args)).To(BeNumerically(">", 3), "make %s names no package", target)
	return strings.Fields(output(t, "go", args...))
}

func TestTargets(t *testing.T) {
	t.Run("When a folder has tests, one of make unit, e2e, e2e-aws and e2e-real should run them", func(t *testing.T) {
		g := NewWithT(t)
		targets := slices.Concat(folders(t, "unit"), folders(t, "e2e"), folders(t, "e2e-aws"), folders(t, "e2e-real"))
		tested := 0
		g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
				return fs.SkipDir // which the go command doesn't look into either
			}
			if !strings.HasSuffix(path, "_test.go") {
				return nil
			}
			folder, err := filepath.Abs(filepath.Dir(path))
			if err != nil {
				return err
			}
			tested++
			if !slices.Contains(targets, folder) {
				t.Errorf("no target runs %s", path)
			}
			return nil
		})).To(Succeed())
		g.Expect(tested).To(BeNumerically(">", 100), "files with tests")
	})
}
