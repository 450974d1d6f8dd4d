// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/autonode-io/autonode/test/mutants/mutant"
)

func TestMutants(t *testing.T) {
	mutants, err := mutant.Read(".")
	if err != nil || len(mutants) == 0 {
		t.Fatalf("no mutants beside this test: %v", err)
	}
	for _, m := range mutants {
		t.Run("When the code has changed, it should still be possible to break it by "+m.Name, func(t *testing.T) {
			if _, err := m.Edited("../.."); err != nil {
				t.Error(err)
			}
		})
	}
}
