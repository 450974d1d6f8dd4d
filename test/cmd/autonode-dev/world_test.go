// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWithKubeconfig(t *testing.T) {
	t.Run("When a shell has exported another KUBECONFIG, the world's should be the only one", func(t *testing.T) {
		g := NewWithT(t)
		environment := withKubeconfig([]string{"HOME=/root", "KUBECONFIG=/management", "KUBECONFIG_OTHER=x"}, "/blue")
		g.Expect(environment).To(Equal([]string{"HOME=/root", "KUBECONFIG_OTHER=x", "KUBECONFIG=/blue"}))
		// As a program sees it, which takes the first of two.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo $KUBECONFIG")
		cmd.Env = environment
		out, err := cmd.Output()
		g.Expect(string(out), err).To(Equal("/blue\n"))
	})
}
