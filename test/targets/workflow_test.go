// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

var (
	made = regexp.MustCompile(`\bmake ([a-z0-9-]+)`)
	// checks are the targets of the Makefile that find what is wrong, and that no other of them runs.
	checks = regexp.MustCompile(`(?m)^(test|site|e2e-[a-z]+):`)
)

func TestWorkflow(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(root, ".github", "workflows", "ci.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var workflow struct {
		Jobs map[string]struct {
			Name  string
			Steps []struct{ Run string }
		}
	}
	g.Expect(yaml.Unmarshal(content, &workflow)).To(Succeed())
	ran := map[string]string{} // the job of each target
	for job, of := range workflow.Jobs {
		for _, step := range of.Steps {
			run := step.Run
			if run == ".ci/run" {
				script, err := os.ReadFile(filepath.Join(root, run))
				g.Expect(err).NotTo(HaveOccurred())
				run = string(script)
			}
			for _, target := range made.FindAllStringSubmatch(run, -1) {
				ran[target[1]] = job
			}
		}
	}

	t.Run("When a target of the Makefile is a check, a job of CI should run it", func(t *testing.T) {
		g := NewWithT(t)
		makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
		g.Expect(err).NotTo(HaveOccurred())
		found := checks.FindAllStringSubmatch(string(makefile), -1)
		g.Expect(len(found)).To(BeNumerically(">=", 5))
		for _, target := range found {
			g.Expect(ran).To(HaveKey(target[1]))
		}
	})
	t.Run("When a job of CI runs a target, it should have its name, and the Makefile the target", func(t *testing.T) {
		g := NewWithT(t)
		for target, job := range ran {
			g.Expect(workflow.Jobs[job].Name).To(Equal("make " + target))
			output(t, "make", "--dry-run", target)
		}
	})
}
