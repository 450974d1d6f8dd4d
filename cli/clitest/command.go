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

// Watch is a command with --watch, until it is interrupted.
type Watch struct {
	Out       *gbytes.Buffer
	ended     chan error
	interrupt context.CancelFunc
}

// Watch starts a command with --watch on the server.
func (s *Server) Watch(t *testing.T, cmd *cobra.Command) *Watch {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	w := &Watch{Out: gbytes.NewBuffer(), ended: make(chan error, 1), interrupt: interrupt}
	go func() {
		root := Command(cmd, "--watch", "--kubeconfig", s.Kubeconfig)
		root.SetOut(w.Out)
		w.ended <- root.ExecuteContext(ctx)
	}()
	return w
}

// Prints waits for a text after those that were waited for before.
func (w *Watch) Prints(t *testing.T, pattern string) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		g.Expect(w.ended).To(gomega.BeEmpty(), "it has ended")
		g.Expect(w.Out).To(gbytes.Say(pattern))
	}).Should(gomega.Succeed())
}

// EndsInterrupted interrupts it, which is no error.
func (w *Watch) EndsInterrupted(t *testing.T) {
	t.Helper()
	w.interrupt()
	gomega.NewWithT(t).Eventually(w.ended).Should(gomega.Receive(gomega.Not(gomega.HaveOccurred())))
}
