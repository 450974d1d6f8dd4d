// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"fmt"
	"testing"
	"time"
)

func TestLaunchTimes(t *testing.T) {
	const s, m = time.Second, time.Minute
	repeat := func(took time.Duration, n int) (all []time.Duration) {
		for range n {
			all = append(all, took)
		}
		return all
	}
	for _, tc := range []struct {
		name        string
		took        []time.Duration
		usual, slow time.Duration
	}{
		{name: "When no machine was observed, a launch should be slow after the longest time", slow: 10 * m},
		{name: "When one was, it should count", took: []time.Duration{80 * s}, usual: 80 * s, slow: 4 * m},
		{name: "When several were, the median should count", took: []time.Duration{40 * s, 9 * m, 50 * s}, usual: 50 * s, slow: 150 * s},
		{name: "When there are two, the longer one should count", took: []time.Duration{30 * s, 90 * s}, usual: 90 * s, slow: 270 * s},
		{name: "When machines come at once, a launch should not be slow before a minute", took: repeat(2*s, 3), usual: 2 * s, slow: m},
		{name: "When they take four minutes, a launch should be slow after ten", took: repeat(4*m, 3), usual: 4 * m, slow: 10 * m},
		{name: "When they take eight minutes, a launch should not be slow before they usually come", took: repeat(8*m, 3), usual: 8 * m, slow: 12 * m},
		{name: "When they take twenty minutes, as on bare metal, it should neither", took: repeat(20*m, 3), usual: 20 * m, slow: 30 * m},
		{name: "When they have become faster, only the last ten should count", took: append(repeat(9*m, 30), repeat(40*s, 6)...), usual: 40 * s, slow: 2 * m},
		{name: "When clocks differ, a launch that ended before it began should not count", took: []time.Duration{-s}, slow: 10 * m},
	} {
		t.Run(tc.name, func(t *testing.T) {
			times := newLaunchTimes()
			began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for i, took := range tc.took {
				times.observe("a", began.Add(time.Duration(i)*time.Hour), took)
			}
			times.observe("b", began, 77*s)
			usual, slow := times.usual("a")
			if usual != tc.usual || slow != tc.slow {
				t.Errorf("it usually takes %s and is slow after %s; want %s, %s", usual, slow, tc.usual, tc.slow)
			}
		})
	}
}

func TestLaunchTimesOrder(t *testing.T) {
	t.Run("When machines are observed in any order, as after a restart, the youngest should count", func(t *testing.T) {
		began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for _, step := range []int{1, 7, 11} {
			times := newLaunchTimes()
			for i := range 20 {
				at := i * step % 20
				times.observe("a", began.Add(time.Duration(at)*time.Hour), time.Duration(at)*time.Second)
			}
			if usual, _ := times.usual("a"); usual != 15*time.Second {
				t.Errorf("in steps of %d, it usually takes %s, want that of the youngest ten", step, usual)
			}
		}
	})
	t.Run("When there are too many templates, it should forget those that nothing requests", func(t *testing.T) {
		times := newLaunchTimes()
		for i := range maxTemplates + 1 {
			times.observe(fmt.Sprint(i), time.Time{}, time.Second)
		}
		if usual, _ := times.usual("0"); usual != 0 {
			t.Error("it keeps more templates than the limit")
		}
		if usual, _ := times.usual("1"); usual == 0 {
			t.Error("it has forgotten a template too many")
		}
	})
}
