// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

func TestPatches(t *testing.T) {
	paths, err := filepath.Glob("*.patch")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no patch beside this test: %v", err)
	}
	for _, path := range paths {
		t.Run("When the code has changed, it should still be possible to apply "+path, func(t *testing.T) {
			if _, err := read(path); err != nil {
				t.Error(err)
			}
			if _, err := git(t.Context(), filepath.Join("..", ".."), "apply", "--check", filepath.Join("test", "mutants", path)); err != nil {
				t.Error(err)
			}
		})
	}
}
