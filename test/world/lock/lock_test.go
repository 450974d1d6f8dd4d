// SPDX-License-Identifier: Apache-2.0

package lock_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/lock"
)

func TestLock(t *testing.T) {
	t.Run("When another process holds the lock, it should say so or wait until it is released or the caller gives up", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "lock")
		release, err := lock.Try(path)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = lock.Try(path)
		g.Expect(err).To(MatchError(lock.ErrHeld))

		waits := 0
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = lock.Wait(impatient, path, func() { waits++ })
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(waits).To(Equal(1))

		release, err = lock.Wait(t.Context(), path, release)
		g.Expect(err).NotTo(HaveOccurred())
		release()
	})

	t.Run("When there is no folder for it, it should fail at once", func(t *testing.T) {
		_, err := lock.Wait(t.Context(), filepath.Join(t.TempDir(), "none", "lock"), nil)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("opening a lock")))
	})
}
