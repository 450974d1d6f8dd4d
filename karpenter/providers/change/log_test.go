// SPDX-License-Identifier: Apache-2.0

package change_test

import (
	"slices"
	"testing"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

func TestLog(t *testing.T) {
	var log change.Log[int]
	since := func(t *testing.T, sequence uint64, want ...int) {
		t.Helper()
		if got, complete := log.Since(sequence); !complete || !slices.Equal(got, want) {
			t.Errorf("since %d: %v, %t; want %v", sequence, got, complete, want)
		}
	}
	t.Run("When nothing has changed, it should return nothing", func(t *testing.T) { since(t, 0) })
	t.Run("When a reader is behind, it should return the changes that it lacks", func(t *testing.T) {
		log.Add(1)
		log.Add(2)
		since(t, 0, 1, 2)
		since(t, 1, 2)
		since(t, log.Sequence())
	})
	t.Run("When a reader is too far behind, it should say so", func(t *testing.T) {
		for i := 3; i <= 10_000; i++ {
			log.Add(i)
		}
		since(t, 9_998, 9_999, 10_000)
		if changes, complete := log.Since(2); complete || changes != nil {
			t.Errorf("%d changes, %t", len(changes), complete)
		}
		if changes, complete := log.Since(10_000 - 1_000); !complete || len(changes) != 1_000 {
			t.Errorf("%d changes, %t", len(changes), complete)
		}
	})
}
