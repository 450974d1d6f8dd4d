// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
)

// Update has tests write golden files, and the documentation's blocks.
var Update = flag.Bool("update", false, "write the golden files and the documentation's blocks")

// Shown compares the output of a command with the block of a page, a path from the repository's root, that shows it behind "$ " and the
// command. A line "…" of the block stands for any lines.
func Shown(t *testing.T, page, command, output string) {
	t.Helper()
	g := gomega.NewWithT(t)
	path := page
	for range 5 {
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join("..", path)
		}
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	before, rest, shows := strings.Cut(string(content), "\n$ "+command+"\n")
	shown, after, _ := strings.Cut(rest, "```\n")
	g.Expect(shows).To(gomega.BeTrue(), "%s has no block with $ %s", page, command)
	wanted := elided(output, shown)
	if *Update {
		g.Expect(os.WriteFile(path, []byte(before+"\n$ "+command+"\n"+wanted+"```\n"+after), 0o600)).To(gomega.Succeed())
	} else if diff := cmp.Diff(strings.SplitAfter(shown, "\n"), strings.SplitAfter(wanted, "\n")); diff != "" {
		t.Errorf("%s shows other output of `%s`; run the test with -update if the new one is meant (-page +command):\n%s", page, command, diff)
	}
}

// elided replaces lines of an output by "…" where the block has it.
func elided(output, shown string) string {
	head, tail, elides := strings.Cut(shown, "…\n")
	lines := slices.Collect(strings.Lines(output))
	first, last := strings.Count(head, "\n"), strings.Count(tail, "\n")
	if !elides || len(lines) < first+last {
		return output
	}
	return strings.Join(lines[:first], "") + "…\n" + strings.Join(lines[len(lines)-last:], "")
}
