// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
)

// watch is the program with --watch, until it is interrupted.
type watch struct {
	out       *gbytes.Buffer
	ended     chan error
	interrupt context.CancelFunc
}

// watching starts a command with --watch on the management cluster.
func watching(t *testing.T, command string) *watch {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	w := &watch{out: gbytes.NewBuffer(), ended: make(chan error, 1), interrupt: interrupt}
	go func() {
		cmd := newCommand("autonode")
		cmd.SetOut(w.out)
		cmd.SetArgs([]string{command, "--watch", "--kubeconfig", managementCluster.kubeconfig})
		w.ended <- cmd.ExecuteContext(ctx)
	}()
	return w
}

// prints waits for a text after those that were waited for before.
func (w *watch) prints(t *testing.T, pattern string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(w.ended).To(BeEmpty(), "it has ended")
		g.Expect(w.out).To(gbytes.Say(pattern))
	}).Should(Succeed())
}

// endsInterrupted interrupts it, which is no error.
func (w *watch) endsInterrupted(t *testing.T) {
	t.Helper()
	w.interrupt()
	NewWithT(t).Eventually(w.ended).Should(Receive(Not(HaveOccurred())))
}
