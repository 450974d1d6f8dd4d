// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
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
		t.Run("When the code has changed, it should still be possible to break it by "+m.Name, func(t *testing.T) {
			if _, err := m.Edited("../.."); err != nil {
				t.Error(err)
			}
		})
	}
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
