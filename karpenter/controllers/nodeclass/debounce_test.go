// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"testing"
	"time"
)

func TestDebounce(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	d := &debounce{interval: time.Minute}
	for _, step := range []struct {
		name   string
		at     time.Duration
		delay  time.Duration
		needed bool
	}{
		{"When availability changes for the first time, it should reconcile at once", 0, 0, true},
		{"When it changes again soon, it should reconcile after the interval", time.Second, 59 * time.Second, true},
		{"When a reconcile is due, it should merge the change with the others", 2 * time.Second, 0, false},
		{"When a reconcile has just been due, it should wait for the interval again", 60 * time.Second, time.Minute, true},
		{"When nothing has changed for long, it should reconcile at once", time.Hour, 0, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			if delay, needed := d.next(start.Add(step.at)); delay != step.delay || needed != step.needed {
				t.Errorf("%s, %t; want %s, %t", delay, needed, step.delay, step.needed)
			}
		})
	}
}
