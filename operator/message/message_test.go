// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/operator/message"
)

func TestMessage(t *testing.T) {
	long := strings.Repeat("ä", 5000)

	t.Run("When text is longer than a condition's message may be, it should be cut between characters", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(len(message.Cut(long))).To(BeNumerically("<=", message.Limit))
		g.Expect(message.Cut(long)).To(HaveSuffix("ä…"))
		g.Expect(message.Cut("short")).To(Equal("short"))
		g.Expect(message.Cut("two\nlines\x1b[31m\xff")).To(Equal("two; lines [31m "))
	})

	t.Run("When others' words are long or no plain text, they should be quoted and escaped", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(message.Quote("nodeclaims.karpenter.sh \"a\" not found")).To(Equal("nodeclaims.karpenter.sh \"a\" not found"))
		g.Expect(message.Quote("a\nb")).To(Equal(`"a\nb"`))
		g.Expect(message.Quote("a\xff")).To(Equal(`"a?"`))
		g.Expect(len(message.Quote(strings.Repeat("x", 1<<20)))).To(BeNumerically("<=", message.QuoteLimit+2))
		g.Expect(utf8.ValidString(message.Quote(long))).To(BeTrue())
	})

	t.Run("When an error reports too much, it should say less and still be that error", func(t *testing.T) {
		g := NewWithT(t)
		cause := errors.New("cause")
		err := message.Error(fmt.Errorf("%s: %w", long, cause))
		g.Expect(err).To(MatchError(cause))
		g.Expect(len(err.Error())).To(BeNumerically("<=", message.QuoteLimit+2))
		g.Expect(message.Error(nil)).To(Succeed())
		g.Expect(message.Error(cause)).To(BeIdenticalTo(cause))
	})

	t.Run("When something long is logged, the line should stay short", func(t *testing.T) {
		g := NewWithT(t)
		var line string
		logger := message.Logger(funcr.New(func(prefix, args string) { line = prefix + args }, funcr.Options{Verbosity: 1}))
		giant := strings.Repeat("x", 1<<20)
		logger.WithValues("a", giant, "b", errors.New(giant), "c", 1).WithName("n").Error(errors.New(giant), giant, "d", giant)
		g.Expect(len(line)).To(BeNumerically("<", 6*message.Limit))
		g.Expect(line).To(ContainSubstring(`"c"=1`))
		logger.V(1).Info(giant, "a", giant)
		g.Expect(len(line)).To(BeNumerically("<", 3*message.Limit))
	})
}
