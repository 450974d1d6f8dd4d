// SPDX-License-Identifier: Apache-2.0

// Package maintenance computes when a maintenance window is open, and when a cluster sleeps. The operator decides by windows which version
// nodes get, Karpenter when it may replace nodes because of that version.
package maintenance

import (
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/message"
)

// maxMalformed is how much of a malformed duration a message repeats.
const maxMalformed = 64

// Schedule is a parsed MaintenanceWindow. The window opens at each time that its schedule names and stays open for its duration.
// The schedule has the syntax of the schedules in Karpenter's disruption budgets, plus a time zone.
type Schedule struct {
	schedule cron.Schedule
	duration time.Duration
	location *time.Location
}

// Parse validates the window. An error starts with the name of the field. A program that runs from an image without time zones imports
// time/tzdata.
func Parse(window v1beta1.MaintenanceWindow) (*Schedule, error) {
	schedule, location, err := parse("schedule", window.Schedule, window.TimeZone)
	switch {
	case err != nil:
		return nil, err
	case window.Duration.Malformed != "":
		return nil, fmt.Errorf("duration: %q isn't one such as 4h", message.Cut(window.Duration.Malformed, maxMalformed))
	case window.Duration.Duration <= 0:
		return nil, errors.New("duration: it has to be positive")
	}
	return &Schedule{schedule: schedule, duration: window.Duration.Duration, location: location}, nil
}

// parse reads a field in cron syntax, and the time zone that it is in.
func parse(field, expression, timeZone string) (cron.Schedule, *time.Location, error) {
	location, err := time.LoadLocation(timeZone)
	if err != nil || location == time.Local {
		return nil, nil, fmt.Errorf("timeZone: %q isn't a time zone such as Europe/Zurich", timeZone)
	}
	schedule, err := cron.ParseStandard("CRON_TZ=UTC " + expression)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %q isn't one such as \"0 2 * * 6\" (minute, hour, day of month, month and day of week): %w",
			field, expression, err)
	}
	if spec, ok := schedule.(*cron.SpecSchedule); ok && spec.Hour>>63 != 0 { // *
		spec.Location = location
	} else if ok {
		schedule = local{schedule, location}
	}
	if schedule.Next(time.Now()).IsZero() {
		return nil, nil, fmt.Errorf("%s: %q names a time that never comes", field, expression)
	}
	return schedule, location, nil
}

// local is a schedule in UTC that is taken for a time zone's clock. A time that the clock skips is the first instant after; of a time that
// comes twice it is the first. Schedules of every hour need neither.
type local struct {
	cron.Schedule
	location *time.Location
}

func (l local) Next(now time.Time) time.Time {
	for clock := l.Schedule.Next(clockOf(now.In(l.location))); !clock.IsZero(); clock = l.Schedule.Next(clock) {
		if at := l.instant(clock); at.After(now) {
			return at
		}
	}
	return time.Time{}
}

// instant returns when a clock in the time zone shows a time.
func (l local) instant(clock time.Time) time.Time {
	_, before := clock.AddDate(0, 0, -1).In(l.location).Zone()
	first := clock.Add(-time.Duration(before) * time.Second).In(l.location)
	if clockOf(first).Equal(clock) {
		return first
	}
	at := time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, l.location)
	if !clockOf(at).Equal(clock) { // skipped
		at, _ = first.ZoneBounds()
	}
	return at
}

// clockOf returns the time that a clock shows, as a time in UTC.
func clockOf(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// Open reports whether the window is open.
func (s *Schedule) Open(now time.Time) bool { return !s.opened(now).IsZero() }

// opened returns the first opening whose duration hasn't passed, zero if the window is closed.
func (s *Schedule) opened(now time.Time) time.Time {
	at := s.schedule.Next(now.Add(-s.duration))
	if at.After(now) {
		return time.Time{}
	}
	return at
}

// Opens returns the next opening after now, in the window's time zone. It returns zero if none follows within five years.
func (s *Schedule) Opens(now time.Time) time.Time {
	at := s.schedule.Next(now)
	if at.IsZero() {
		return at
	}
	return at.In(s.location)
}

// Closes returns when an open window closes, in its time zone. It returns zero if the window is closed, or if each opening overlaps the
// one before, so that the window never closes.
func (s *Schedule) Closes(now time.Time) time.Time {
	const limit = 1000 // openings in a row
	at := s.opened(now)
	if at.IsZero() {
		return at
	}
	for range limit {
		closes := at.Add(s.duration)
		if at = s.schedule.Next(at); at.IsZero() || at.After(closes) {
			return closes.In(s.location)
		}
	}
	return time.Time{}
}
