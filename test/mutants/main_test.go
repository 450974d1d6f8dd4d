// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/autonode-io/autonode/test/mutants/mutant"
)

func TestMutants(t *testing.T) {
	mutants, err := mutant.Read(".")
	if err != nil || len(mutants) == 0 {
		t.Fatalf("no mutants beside this test: %v", err)
	}
	for _, m := range mutants {
		t.Run("When tests have moved, those that find "+m.Name+" should be where it says", func(t *testing.T) {
			if found, err := tests(filepath.Join("../..", m.Package)); err != nil || !slices.ContainsFunc(found, chosen(m.Run)) {
				t.Errorf("%s has no test %s: %v", m.Package, m.Run, err)
			}
		})
		t.Run("When the code has changed, it should still be possible to break it by "+m.Name, func(t *testing.T) {
			if _, err := m.Edited("../.."); err != nil {
				t.Error(err)
			}
		})
	}
}

var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// tests returns the names of a package's tests.
func tests(folder string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, match := range declared.FindAllStringSubmatch(string(content), -1) {
			names = append(names, match[1])
		}
	}
	return names, err
}

// chosen reports whether go test -run chooses a test by its name.
func chosen(run string) func(name string) bool {
	first, _, _ := strings.Cut(run, "/")
	pattern := regexp.MustCompile(first)
	return pattern.MatchString
}

func TestEnd(t *testing.T) {
	start := func(dir string) *exec.Cmd {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "60")
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	folder := t.TempDir()
	inside, beside := start(filepath.Join(folder, "1", "operator")), start(filepath.Join(folder, "10", "operator"))

	end(filepath.Join(folder, "1"))

	t.Run("When a mutant's tests have left a program behind, it should be killed", func(t *testing.T) {
		_ = inside.Wait()
		if status := inside.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
			t.Errorf("it ended otherwise: %s", inside.ProcessState)
		}
	})
	t.Run("When a program is another mutant's, it should run on", func(t *testing.T) {
		if err := beside.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = beside.Wait()
		if status := beside.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
			t.Errorf("it ended otherwise: %s", beside.ProcessState)
		}
	})
}
