// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestReadSizes(t *testing.T) {
	t.Run("When sizes are numbers, it should read them", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(readSizes([]string{"3", " 500"})).To(Equal([]int{3, 500}))
	})
	for _, text := range []string{"0", "-3", "many", "1001", "1.5", ""} {
		t.Run("When a size is "+text+", it should say what is allowed", func(t *testing.T) {
			g := NewWithT(t)
			_, err := readSizes([]string{"3", text})
			g.Expect(err).To(MatchError(ContainSubstring("from 1 to 1000")))
		})
	}
	t.Run("When a size is named twice, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		_, err := readSizes([]string{"3", "3"})
		g.Expect(err).To(MatchError(ContainSubstring("twice")))
	})
}

func TestGuests(t *testing.T) {
	for _, guests := range []string{"0", "-1", "21"} {
		t.Run("When the number of guests is "+guests+", it should say what is allowed", func(t *testing.T) {
			g := NewWithT(t)
			cmd := newConformanceCommand()
			cmd.SetArgs([]string{"--guests", guests})
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			g.Expect(cmd.ExecuteContext(t.Context())).To(MatchError(ContainSubstring("from 1 to 20")))
		})
	}
}
