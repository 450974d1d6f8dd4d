// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// linked lists the packages that a program links.
func linked(t *testing.T, program string) []string {
	t.Helper()
	return strings.Fields(output(t, "go", "list", "-deps", "./cmd/"+program))
}

func TestPrograms(t *testing.T) {
	// autonode-dev runs the world. What a user installs does not.
	for _, program := range []string{"autonode", "autonode-operator", "karpenter-clusterapi"} {
		t.Run("When a user installs "+program+", it should link nothing of test", func(t *testing.T) {
			g := NewWithT(t)
			const of = "github.com/autonode-io/autonode/"
			packages := linked(t, program)
			g.Expect(packages).To(ContainElement(of + "cmd/" + program))
			for _, name := range packages {
				g.Expect(strings.HasPrefix(name, of+"test/")).To(BeFalse(), "it links %s", name)
			}
		})
	}
	t.Run("When a program is in cmd, make build should build it", func(t *testing.T) {
		g := NewWithT(t)
		built := output(t, "make", "--dry-run", "build")
		var programs []string
		for _, module := range []string{".", "test"} {
			programs = append(programs, strings.Fields(output(t, "go", "list", "-C", module, "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, "./cmd/..."))...)
		}
		g.Expect(len(programs)).To(BeNumerically(">=", 4))
		for _, program := range programs {
			g.Expect(strings.Fields(built)).To(ContainElement("./cmd/" + path.Base(program)))
		}
	})
	const window = "github.com/autonode-io/autonode/internal/maintenance"
	for _, program := range []string{"autonode-operator", "karpenter-clusterapi"} {
		t.Run("When "+program+" reads maintenance windows, it should bring the time zones that its image lacks", func(t *testing.T) {
			g := NewWithT(t)
			packages := linked(t, program)
			g.Expect(slices.Contains(packages, window)).To(BeTrue(), "it links %s", window)
			g.Expect(slices.Contains(packages, "time/tzdata")).To(BeTrue(), "it links time/tzdata")
		})
	}
}
