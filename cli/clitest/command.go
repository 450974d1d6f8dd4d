// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"bytes"
	"context"
	"testing"

	"github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
)

// Command returns the program, with a command and the arguments for it.
func Command(cmd *cobra.Command, args ...string) *cobra.Command {
	root := command.Root(&cobra.Command{Use: "autonode"})
	root.AddCommand(cmd)
	root.SetArgs(append([]string{cmd.Name()}, args...))
	return root
}

// Run runs a command, and returns what it prints.
func Run(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := Command(cmd, args...)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// Watch starts a command with --watch on the server. It returns what it prints, and a function that interrupts it, which is no error.
func (s *Server) Watch(t *testing.T, cmd *cobra.Command) (out *gbytes.Buffer, interrupt func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = gbytes.NewBuffer()
	ended := make(chan error, 1)
	go func() {
		root := Command(cmd, "--watch", "--kubeconfig", s.Kubeconfig)
		root.SetOut(out)
		ended <- root.ExecuteContext(ctx)
	}()
	return out, func() {
		cancel()
		gomega.NewWithT(t).Eventually(ended).Should(gomega.Receive(gomega.Not(gomega.HaveOccurred())))
	}
}
