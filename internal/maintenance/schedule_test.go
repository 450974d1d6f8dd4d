// SPDX-License-Identifier: Apache-2.0

package maintenance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/maintenance"
)

func spec(schedule, zone string, duration time.Duration) v1beta1.MaintenanceWindow {
	return v1beta1.MaintenanceWindow{Schedule: schedule, TimeZone: zone, Duration: scalar.Duration{Duration: duration}}
}

func TestMaintenanceWindow(t *testing.T) {
	const saturday, zurich = "0 2 * * 6", "Europe/Zurich"
	for _, test := range []struct {
		name          string
		window        v1beta1.MaintenanceWindow
		now           string
		open          bool
		opens, closes string // RFC 3339; empty for never
	}{
		{
			name:   "When it isn't its time, it should be closed, and open next by its own time zone",
			window: spec(saturday, zurich, 4*time.Hour), now: "2026-11-25T12:00:00Z", opens: "2026-11-28T02:00:00+01:00",
		}, {
			name:   "When its time comes, it should be open",
			window: spec(saturday, zurich, 4*time.Hour), now: "2026-11-28T01:00:00Z", open: true,
			opens: "2026-12-05T02:00:00+01:00", closes: "2026-11-28T06:00:00+01:00",
		}, {
			name:   "When its duration isn't over, it should be open",
			window: spec(saturday, zurich, 4*time.Hour), now: "2026-11-28T04:59:59Z", open: true,
			opens: "2026-12-05T02:00:00+01:00", closes: "2026-11-28T06:00:00+01:00",
		}, {
			name:   "When its duration is over, it should be closed",
			window: spec(saturday, zurich, 4*time.Hour), now: "2026-11-28T05:00:00Z", opens: "2026-12-05T02:00:00+01:00",
		}, {
			name:   "When clocks skip the hour that it names, it should open at the first instant after",
			window: spec("0 2 * * 0", zurich, 4*time.Hour), now: "2026-03-28T12:00:00Z", opens: "2026-03-29T03:00:00+02:00",
		}, {
			name:   "When clocks skip the hour that it names, it should stay open for its duration",
			window: spec("30 2 * * 0", zurich, 4*time.Hour), now: "2026-03-29T04:59:59Z", open: true,
			opens: "2026-04-05T02:30:00+02:00", closes: "2026-03-29T07:00:00+02:00",
		}, {
			name:   "When clocks skip the hour of a nightly window, it should open in that night",
			window: spec("0 2 * * *", "America/Los_Angeles", 4*time.Hour), now: "2026-03-08T08:30:00Z", opens: "2026-03-08T03:00:00-07:00",
		}, {
			name:   "When clocks skip the hour of a monthly window, it should open in that month",
			window: spec("15 2 29 3 *", "Europe/Berlin", 4*time.Hour), now: "2026-03-28T12:00:00Z", opens: "2026-03-29T03:00:00+02:00",
		}, {
			name:   "When clocks skip midnight, it should open at one",
			window: spec("0 0 * * 0", "America/Santiago", 4*time.Hour), now: "2026-09-05T12:00:00Z", opens: "2026-09-06T01:00:00-03:00",
		}, {
			name:   "When clocks skip some of the hours that it names, it should open once at the first instant after",
			window: spec("*/20 2,3 * * 0", zurich, time.Minute), now: "2026-03-29T01:00:00Z", open: true,
			opens: "2026-03-29T03:20:00+02:00", closes: "2026-03-29T03:01:00+02:00",
		}, {
			name:   "When an hour comes twice, it should open in the first",
			window: spec("30 2 * * 0", zurich, time.Hour), now: "2026-10-24T12:00:00Z", opens: "2026-10-25T02:30:00+02:00",
		}, {
			name:   "When an hour comes twice, it should not open in the second",
			window: spec("30 2 * * 0", zurich, 10*time.Minute), now: "2026-10-25T01:30:00Z", opens: "2026-11-01T02:30:00+01:00",
		}, {
			name:   "When an hour comes twice, a window of every hour should open in both",
			window: spec("@hourly", zurich, time.Minute), now: "2026-10-25T00:30:00Z", opens: "2026-10-25T02:00:00+01:00",
		}, {
			name:   "When it opens every hour of a day, the day should be its time zone's",
			window: spec("0 * * * 6", zurich, time.Minute), now: "2026-11-27T22:30:00Z", opens: "2026-11-28T00:00:00+01:00",
		}, {
			name:   "When its hour comes twice and it opens at its end, it should be open for its duration",
			window: spec("50 2 * * 0", zurich, time.Hour), now: "2026-10-25T01:49:59Z", open: true,
			opens: "2026-11-01T02:50:00+01:00", closes: "2026-10-25T02:50:00+01:00",
		}, {
			name:   "When clocks were put forward meanwhile, it should still open at the hour that it names",
			window: spec(saturday, zurich, 4*time.Hour), now: "2026-03-28T12:00:00Z", opens: "2026-04-04T02:00:00+02:00",
		}, {
			name:   "When it names no time zone, it should go by UTC",
			window: spec(saturday, "", time.Hour), now: "2026-11-28T01:59:59Z", opens: "2026-11-28T02:00:00Z",
		}, {
			name:   "When it goes over midnight, it should stay open",
			window: spec("0 22 * * *", "UTC", 4*time.Hour), now: "2026-11-28T01:00:00Z", open: true,
			opens: "2026-11-28T22:00:00Z", closes: "2026-11-28T02:00:00Z",
		}, {
			name:   "When openings overlap, it should close after the last",
			window: spec("0 1,2,3 * * *", "UTC", 90*time.Minute), now: "2026-11-28T01:30:00Z", open: true,
			opens: "2026-11-28T02:00:00Z", closes: "2026-11-28T04:30:00Z",
		}, {
			name:   "When every opening meets the one before, it should never close",
			window: spec("@hourly", "UTC", time.Hour), now: "2026-11-28T01:30:00Z", open: true, opens: "2026-11-28T02:00:00Z",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			now, err := time.Parse(time.RFC3339, test.now)
			if err != nil {
				t.Fatal(err)
			}
			w, err := maintenance.Parse(test.window)
			if err != nil {
				t.Fatal(err)
			}
			if got := w.Open(now); got != test.open {
				t.Errorf("open: %t", got)
			}
			if got := format(w.Opens(now)); got != test.opens {
				t.Errorf("it opens at %s, want %s", got, test.opens)
			}
			if got := format(w.Closes(now)); got != test.closes {
				t.Errorf("it closes at %s, want %s", got, test.closes)
			}
		})
	}
}

func format(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}

func TestMaintenanceWindowParse(t *testing.T) {
	for _, test := range []struct {
		name   string
		window v1beta1.MaintenanceWindow
		want   string
	}{
		{name: "When the schedule is out of range, it should say so", window: spec("0 25 * * *", "", time.Hour), want: "schedule: "},
		{name: "When the schedule never comes, it should say so", window: spec("0 0 30 2 *", "", time.Hour), want: "never comes"},
		{name: "When the schedule brings a time zone of its own, it should refuse it", window: spec("TZ=UTC 0 2 * * 6", "", time.Hour), want: "schedule: "},
		{name: "When the time zone is unknown, it should say so", window: spec("0 2 * * 6", "Mars/Olympus", time.Hour), want: "timeZone: "},
		{name: "When the time zone is wherever the program runs, it should refuse it", window: spec("0 2 * * 6", "Local", time.Hour), want: "timeZone: "},
		{name: "When the duration isn't positive, it should say so", window: spec("0 2 * * 6", "", 0), want: "duration: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := maintenance.Parse(test.window); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
