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
		t.Cleanup(others.Close)

		port, err := mine.Next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(others.claim(port)).To(BeFalse())
		mine.Close()
		g.Expect(others.claim(port)).To(BeTrue())
	})
	t.Run("When one port is released, it should be free and the others kept", func(t *testing.T) {
		g := NewWithT(t)
		mine, others := New(), New()
		mine.dir = t.TempDir()
		others.dir = mine.dir
		t.Cleanup(mine.Close)
		t.Cleanup(others.Close)
		released, err := mine.Next()
		g.Expect(err).NotTo(HaveOccurred())
		kept, err := mine.Next()
		g.Expect(err).NotTo(HaveOccurred())

		mine.Release(released)
		g.Expect(others.claim(released)).To(BeTrue())
		g.Expect(others.claim(kept)).To(BeFalse())
	})
}
