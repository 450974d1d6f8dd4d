// SPDX-License-Identifier: Apache-2.0

package port

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestClaims(t *testing.T) {
	t.Run("When a port is claimed, it should not be claimed again until it is given back", func(t *testing.T) {
		g := NewWithT(t)
		mine, others := New(), New()
		mine.dir = t.TempDir()
		others.dir = mine.dir
		t.Cleanup(func() { g.Expect(others.Close()).To(Succeed()) })

		port, err := mine.Next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(others.claim(port)).To(BeFalse())
		g.Expect(mine.Close()).To(Succeed())
		g.Expect(others.claim(port)).To(BeTrue())
	})
}
