// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// read returns a file of the repository.
func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestTiers(t *testing.T) {
	g := NewWithT(t)
	listed := regexp.MustCompile(`(?m)^TIERS = (.+)$`).FindStringSubmatch(read(t, "Makefile"))
	g.Expect(listed).NotTo(BeNil())
	tiers := strings.Fields(listed[1])
	g.Expect(len(tiers)).To(BeNumerically(">=", 5))

	t.Run("When the Makefile has a tier of tests, a job of CI should run it, and no job another", func(t *testing.T) {
		g := NewWithT(t)
		var workflow struct {
			Jobs map[string]struct {
				Strategy struct {
					Matrix struct{ Include []struct{ Tier, Run string } }
				}
			}
		}
		g.Expect(yaml.Unmarshal([]byte(read(t, ".github", "workflows", "ci.yaml")), &workflow)).To(Succeed())
		var jobs []string
		for _, job := range workflow.Jobs["tier"].Strategy.Matrix.Include {
			jobs = append(jobs, job.Tier)
			run := job.Run
			if run == ".ci/run" {
				run = read(t, ".ci", "run")
			}
			g.Expect(strings.Fields(run)).To(ContainElements("make", job.Tier))
		}
		g.Expect(jobs).To(ConsistOf(tiers))
	})
	t.Run("When the Makefile has a tier of tests, docs/internals/testing.md should say what it runs", func(t *testing.T) {
		g := NewWithT(t)
		_, section, _ := strings.Cut(read(t, "docs", "internals", "testing.md"), "\n## Tiers\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, tier := range tiers {
			g.Expect(section).To(ContainSubstring("| `make " + tier + "` |"))
		}
	})
	t.Run("When make test plays the main job, the test of that name should exist", func(t *testing.T) {
		g := NewWithT(t)
		output := output(t, "make", "--dry-run", "lifecycle")
		name := regexp.MustCompile(`-run '\^(\w+)\$'`).FindStringSubmatch(output)
		g.Expect(name).NotTo(BeNil())
		files, err := filepath.Glob(filepath.Join(root, "test", "e2e", "*_test.go"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(slices.ContainsFunc(files, func(file string) bool {
			content, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(content), "func "+name[1]+"(t *testing.T)")
		})).To(BeTrue(), name[1])
	})
}
