// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"testing"
	"time"
)

func TestParsePausedUntil(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name, until string
		paused      bool
		resumes     time.Duration
	}{
		{name: "When it is true, it should be paused until the value changes", until: "true", paused: true},
		{name: "When it is false, it should not be paused", until: "false"},
		{name: "When the time is to come, it should be paused until then", until: "2026-05-01T12:30:00Z", paused: true, resumes: 30 * time.Minute},
		{name: "When the time is in another zone, it should know that", until: "2026-05-01T15:00:00+02:00", paused: true, resumes: time.Hour},
		{name: "When the time has come, it should not be paused", until: "2026-05-01T12:00:00Z"},
		{name: "When the time has passed, it should not be paused", until: "2025-05-01T12:00:00Z"},
		{name: "When it can't be read, it should stay on the safe side", until: "2026-13-41T12:00:00Z", paused: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := parsePausedUntil(test.until, now)
			if p.paused != test.paused || p.resumesAfter != test.resumes {
				t.Errorf("got %+v, want paused %v for %s", p, test.paused, test.resumes)
			}
			if p.paused && p.message == "" {
				t.Error("a pause has to say what it is from")
			}
		})
	}
}
