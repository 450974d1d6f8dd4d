// SPDX-License-Identifier: Apache-2.0

// Package maintenance knows when a maintenance window is open. Operator and provider both ask: the one decides which version nodes get,
// the other when nodes may be replaced because of it.
package maintenance

import (
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // an image made from scratch knows no time zones

	"github.com/robfig/cron/v3"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Window is open from each time that its schedule names, for its duration. The semantics are those of the schedules in Karpenter's
// disruption budgets, but for the time zone.
type Window struct {
	schedule cron.Schedule
	duration time.Duration
	location *time.Location
}

// Parse reads a window. Errors name the field, as it is called in the API.
func Parse(spec v1beta1.MaintenanceWindow) (*Window, error) {
	location, err := time.LoadLocation(spec.TimeZone)
	if err != nil || location == time.Local {
		return nil, fmt.Errorf("timeZone: %q isn't a time zone such as Europe/Zurich", spec.TimeZone)
	}
	schedule, err := cron.ParseStandard("CRON_TZ=" + location.String() + " " + spec.Schedule)
	if err != nil {
		return nil, fmt.Errorf("schedule: %q isn't one such as \"0 2 * * 6\" (minute, hour, day of month, month and day of week): %w", spec.Schedule, err)
	}
	if spec.Duration.Duration <= 0 {
		return nil, errors.New("duration: it has to be positive")
	}
	window := &Window{schedule: schedule, duration: spec.Duration.Duration, location: location}
	if schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("schedule: %q names a time that never comes", spec.Schedule)
	}
	return window, nil
}

// Open says whether the window is open.
func (w *Window) Open(now time.Time) bool { return !w.opened(now).IsZero() }

// opened returns the first of the openings that still count, zero if the window is closed.
func (w *Window) opened(now time.Time) time.Time {
	at := w.schedule.Next(now.Add(-w.duration))
	if at.After(now) {
		return time.Time{}
	}
	return at
}

// Opens returns when the window opens next, after now, in its own time zone; zero if it doesn't within five years.
func (w *Window) Opens(now time.Time) time.Time {
	at := w.schedule.Next(now)
	if at.IsZero() {
		return at
	}
	return at.In(w.location)
}

// Closes returns when a window that is open closes, in its own time zone; zero if it is closed, or if each opening overlaps the one
// before, so that it never does.
func (w *Window) Closes(now time.Time) time.Time {
	const limit = 1000 // of openings that follow each other
	at := w.opened(now)
	if at.IsZero() {
		return at
	}
	for range limit {
		closes := at.Add(w.duration)
		if at = w.schedule.Next(at); at.IsZero() || at.After(closes) {
			return closes.In(w.location)
		}
	}
	return time.Time{}
}
