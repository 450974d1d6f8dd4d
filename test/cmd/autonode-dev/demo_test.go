// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDemo(t *testing.T) {
	t.Run("When the folder of the picture doesn't exist, it should say so before it starts a world", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		cmd := newDemoCommand()
		cmd.SetArgs([]string{"--dir", dir, "--svg", filepath.Join(dir, "images", "demo.svg")})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		g.Expect(cmd.ExecuteContext(t.Context())).To(MatchError(And(ContainSubstring("the picture's folder"), ContainSubstring("images"))))
		g.Expect(filepath.Glob(filepath.Join(dir, "*"))).To(BeEmpty())
	})
}
