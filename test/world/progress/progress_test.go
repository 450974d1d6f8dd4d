// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/progress"
)

// buffer may be written to and read at once.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func TestPrinter(t *testing.T) {
	t.Run("When the output is no terminal, it should print plain lines", func(t *testing.T) {
		g := NewWithT(t)
		out := &buffer{}
		task := progress.New(out).Task("Building", "cached")
		g.Expect(task.Run("etcd", func() error { return nil })).To(Succeed())
		g.Expect(task.Run("broken", func() error { return errors.New("no") })).NotTo(Succeed())
		task.End("built")
		g.Expect(out.String()).NotTo(ContainSubstring("\x1b"))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		g.Expect(lines).To(HaveExactElements(
			Equal("Building (cached)"), MatchRegexp(`^  etcd +✓ 0\.0 s$`), MatchRegexp(`^Building +built$`)))
	})

	t.Run("When a cluster's text would do something to the terminal, it should be shown", func(t *testing.T) {
		g := NewWithT(t)
		for _, live := range []bool{false, true} {
			out := &buffer{}
			printer := progress.New(out)
			if live {
				printer = progress.NewLive(out, 80)
			}
			task := printer.Task("Waiting for \x1b[2J", "")
			g.Expect(task.Run("a\rb", func() error {
				if live {
					g.Eventually(out.String).Should(ContainSubstring(`a\u000db`))
				}
				return nil
			})).To(Succeed())
			task.End("done")
			printer.Println("event:\t\x1b]0;owned\x07\u202e")
			g.Expect(out.String()).To(And(ContainSubstring("event:\t"+`\u001b]0;owned\u0007\u202e`), ContainSubstring(`Waiting for \u001b[2J`)))
			g.Expect(strings.ReplaceAll(out.String(), "\r\x1b[K", "")).NotTo(MatchRegexp("[\x07\x0d\x1b]"))
		}
	})

	t.Run("When the output is a terminal, it should redraw one line, no wider than the terminal, and leave the outcome", func(t *testing.T) {
		g := NewWithT(t)
		out := &buffer{}
		task := progress.NewLive(out, 40).Task("Starting", "")
		g.Expect(task.Run(strings.Repeat("long", 20), func() error {
			g.Eventually(out.String).Should(ContainSubstring("long"))
			for _, drawn := range strings.Split(out.String(), "\r\x1b[K") {
				g.Expect(len([]rune(drawn))).To(BeNumerically("<", 40))
			}
			return nil
		})).To(Succeed())
		task.End("ready")
		g.Expect(out.String()).To(MatchRegexp(`Starting +ready\n$`))
	})
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		400 * time.Millisecond: "0.4 s", 18 * time.Second: "18 s", 190 * time.Second: "3:10",
	} {
		t.Run("When a time is "+d.String()+", it should read as "+want, func(t *testing.T) {
			NewWithT(t).Expect(progress.Duration(d)).To(Equal(want))
		})
	}
}
