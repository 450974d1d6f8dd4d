// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestUsage(t *testing.T) {
	t.Run("When a process runs, it should report its memory and CPU time", func(t *testing.T) {
		g := NewWithT(t)
		first, err := UsageOf(os.Getpid())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(first.Resident).To(BeNumerically(">", 1<<20))
		g.Expect(first.Peak).To(BeNumerically(">=", first.Resident))
		g.Eventually(func(g Gomega) { // asking takes time
			now, err := UsageOf(os.Getpid())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now.CPU).To(BeNumerically(">", first.CPU))
		}, 10*time.Minute, time.Microsecond).Should(Succeed())
	})

	t.Run("When the peak is reset, it should begin again with what the process has", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(ResetPeak(os.Getpid())).To(Succeed())
		now, err := UsageOf(os.Getpid())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Peak).To(BeNumerically("<", now.Resident+64<<20))
	})
}
