// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"bufio"
	"bytes"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var unit = flag.Bool("unit", false, "also run the unit tests that don't need fleet/")

// registers are the files that register the fleet, in one line each.
var registers = []string{"karpenter/run.go", "operator/run.go", "cli/cli.go", "cli/why/simulation.go"}

func TestWithoutFleet(t *testing.T) {
	t.Run("When fleet/ is deleted with its tests beside other packages and its lines, the rest should build and its tests compile", func(t *testing.T) {
		g := NewWithT(t)
		rest := filepath.Join(t.TempDir(), "rest")
		copyWithoutFleet(g, "../..", rest)
		for _, name := range registers {
			path := filepath.Join(rest, name)
			source, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.WriteFile(path, unregistered(g, name, source), 0o600)).To(Succeed())
		}
		run := func(args ...string) {
			command := exec.CommandContext(t.Context(), "go", args...)
			command.Dir = rest
			output, err := command.CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(output))
		}
		run("vet", "./...")
		if *unit {
			run("test", "./...")
		}
	})
}

// copyWithoutFleet copies the module without its nested one of tests, without fleet/, and without the tests of others that need it.
func copyWithoutFleet(g *WithT, from, to string) {
	skipped := map[string]bool{".git": true, "bin": true, "fleet": true, "test": true, "tools": true}
	g.Expect(filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skipped[name]:
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		case !entry.Type().IsRegular() || strings.HasSuffix(name, "fleet_test.go"):
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, 0o600)
	})).To(Succeed())
}

var imports = regexp.MustCompile(`^\t(?:(\w+) )?"github\.com/autonode-io/autonode/fleet/(?:.*/)?(\w+)"$`)

// unregistered returns a file without the import of a package of the fleet, and without the one line that registers it.
func unregistered(g *WithT, name string, source []byte) []byte {
	var rest bytes.Buffer
	imported, registered := "", 0
	for lines := bufio.NewScanner(bytes.NewReader(source)); lines.Scan(); {
		line := lines.Text()
		switch match := imports.FindStringSubmatch(line); {
		case match != nil:
			g.Expect(imported).To(BeEmpty(), "%s imports more than one package of the fleet", name)
			imported = match[2]
			if match[1] != "" {
				imported = match[1]
			}
		case imported != "" && strings.HasPrefix(strings.TrimSpace(line), imported+"."):
			registered++
		default:
			rest.WriteString(line + "\n")
		}
	}
	g.Expect(registered).To(Equal(1), "%s registers the fleet in one line", name)
	return rest.Bytes()
}
