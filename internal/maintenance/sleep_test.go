// SPDX-License-Identifier: Apache-2.0

package maintenance_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/maintenance"
)

// Both are of a cluster that is awake on weekdays.
const startsNightly, endsNightly = "0 20 * * 1-5", "0 7 * * 1-5"

func entry(start, end, zone string) v1beta1.SleepSchedule {
	return v1beta1.SleepSchedule{Start: start, End: end, TimeZone: zone}
}

func TestSleep(t *testing.T) {
	const zurich, losAngeles = "Europe/Zurich", "America/Los_Angeles"
	type entries = []v1beta1.SleepSchedule
	nightly := entries{entry(startsNightly, endsNightly, zurich)}
	monthEnd := entries{entry("0 0 31 * *", "0 0 5 * *", "")}
	overlapping := entries{entry("0 20 * * *", "0 6 * * *", "UTC"), entry("0 22 * * *", "0 8 * * *", "UTC"), entry("0 4 * * *", "0 5 * * *", "UTC")}
	for _, test := range []struct {
		name    string
		entries entries
		now     string
		asleep  bool
		changes string // RFC 3339; empty for never
	}{
		{name: "When there is no entry, it should be awake for good", now: "2026-11-25T12:00:00Z"},
		{name: "When its day goes on, it should be awake until the evening of its zone", entries: nightly, now: "2026-11-25T18:59:59Z", changes: "2026-11-25T20:00:00+01:00"},
		{name: "When its start comes, it should be asleep until the morning", entries: nightly, now: "2026-11-25T19:00:00Z", asleep: true, changes: "2026-11-26T07:00:00+01:00"},
		{name: "When its end is a second away, it should be asleep", entries: nightly, now: "2026-11-26T05:59:59Z", asleep: true, changes: "2026-11-26T07:00:00+01:00"},
		{name: "When its end comes, it should be awake", entries: nightly, now: "2026-11-26T06:00:00Z", changes: "2026-11-26T20:00:00+01:00"},
		{name: "When a weekend begins, it should be asleep until Monday", entries: nightly, now: "2026-11-28T12:00:00Z", asleep: true, changes: "2026-11-30T07:00:00+01:00"},
		{
			name: "When the same hours are of another zone, it should go by that", entries: entries{entry(startsNightly, endsNightly, losAngeles)}, now: "2026-11-26T06:00:00Z",
			asleep: true, changes: "2026-11-26T07:00:00-08:00",
		}, {
			name: "When clocks skip its start, it should fall asleep at the first instant after", entries: entries{entry("30 2 * * *", "0 7 * * *", zurich)},
			now: "2026-03-29T00:59:59Z", changes: "2026-03-29T03:00:00+02:00",
		}, {
			name: "When clocks skip its end, it should wake at the first instant after", entries: entries{entry("0 20 * * *", "30 2 * * *", zurich)},
			now: "2026-03-29T00:59:59Z", asleep: true, changes: "2026-03-29T03:00:00+02:00",
		}, {
			name: "When clocks skip both of its edges, it should not fall asleep in that night", entries: entries{entry("15 2 * * *", "45 2 * * *", zurich)},
			now: "2026-03-28T12:00:00Z", changes: "2026-03-30T02:15:00+02:00",
		}, {
			name: "When the hour of its start comes twice, it should fall asleep in the first", entries: entries{entry("30 2 * * *", "0 7 * * *", zurich)},
			now: "2026-10-25T00:29:59Z", changes: "2026-10-25T02:30:00+02:00",
		}, {
			name: "When the hour of its start comes twice, it should be asleep in between", entries: entries{entry("30 2 * * *", "0 7 * * *", zurich)},
			now: "2026-10-25T01:00:00Z", asleep: true, changes: "2026-10-25T07:00:00+01:00",
		}, {
			name: "When the hour of its end comes twice, it should wake in the first, and stay awake", entries: entries{entry("0 20 * * *", "30 2 * * *", zurich)},
			now: "2026-10-25T01:15:00Z", changes: "2026-10-25T20:00:00+01:00",
		}, {
			name: "When a night is an hour longer, it should end by the clock", entries: nightly, now: "2026-10-24T12:00:00Z", asleep: true, changes: "2026-10-26T07:00:00+01:00",
		},
		{
			name: "When it sleeps for half of every hour, the time should be its zone's", entries: entries{entry("30 * * * *", "0 * * * *", zurich)}, now: "2026-11-25T12:10:00Z",
			changes: "2026-11-25T13:30:00+01:00",
		},
		{name: "When entries overlap, it should be awake once all have ended", entries: overlapping, now: "2026-11-25T21:00:00Z", asleep: true, changes: "2026-11-26T08:00:00Z"},
		{name: "When one of the entries has ended, it should be asleep by another", entries: overlapping, now: "2026-11-26T07:00:00Z", asleep: true, changes: "2026-11-26T08:00:00Z"},
		{name: "When all entries have ended, it should be awake until the first start", entries: overlapping, now: "2026-11-26T08:00:00Z", changes: "2026-11-26T20:00:00Z"},
		{
			name: "When another zone's entry ends last, the time should be its own", now: "2026-11-25T21:00:00Z",
			entries: append(entries{entry("0 22 * * *", "0 6 * * *", "Asia/Tokyo")}, nightly...), asleep: true, changes: "2026-11-26T07:00:00+01:00",
		}, {
			name: "When it never ended before, it should be asleep since its start", entries: entries{entry("0 0 1 * *", "0 0 29 2 *", "")}, now: "2027-12-15T00:00:00Z",
			asleep: true, changes: "2028-02-29T00:00:00Z",
		}, {
			name: "When nothing of it came within five years, it should be awake", entries: entries{entry("0 0 29 2 *", "0 0 1 3 *", "")}, now: "2104-02-28T12:00:00Z",
			changes: "2104-02-29T00:00:00Z",
		},
		{name: "When a month has no 31st, it should not fall asleep at its end", entries: monthEnd, now: "2026-11-30T12:00:00Z", changes: "2026-12-31T00:00:00Z"},
		{name: "When a month has a 31st, it should be asleep into the next one", entries: monthEnd, now: "2026-12-31T00:00:00Z", asleep: true, changes: "2027-01-05T00:00:00Z"},
		{
			name: "When a start and an end are at the same time, it should be awake", entries: entries{entry("0 20 * * *", "0 20 * * 5", "")}, now: "2026-11-27T20:00:00Z",
			changes: "2026-11-28T20:00:00Z",
		}, {
			name: "When it wakes at the time at which another entry falls asleep, it should go on sleeping", now: "2026-11-25T06:00:00Z",
			entries: entries{entry("0 20 * * *", "0 7 * * *", ""), entry("0 7 * * *", "0 9 * * *", "")}, asleep: true, changes: "2026-11-25T09:00:00Z",
		}, {
			name: "When one entry or another always sleeps, it should not end", entries: entries{entry("0 0 * * *", "0 14 * * *", ""), entry("0 12 * * *", "0 2 * * *", "")},
			now: "2026-11-25T06:00:00Z", asleep: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			now, err := time.Parse(time.RFC3339, test.now)
			g.Expect(err).NotTo(HaveOccurred())
			sleep, err := maintenance.ParseSleep(test.entries)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(sleep.Asleep(now)).To(Equal(test.asleep))
			g.Expect(format(sleep.Changes(now))).To(Equal(test.changes))
		})
	}
}

// TestSleepYear compares the times at which a year's nights begin and end with what a clock shows that steps through it.
func TestSleepYear(t *testing.T) {
	for _, test := range []struct {
		entries []v1beta1.SleepSchedule
		step    time.Duration
	}{
		{entries: []v1beta1.SleepSchedule{entry(startsNightly, endsNightly, "Europe/Zurich")}, step: time.Hour},
		{entries: []v1beta1.SleepSchedule{entry("30 2 * * *", "30 3 * * *", "America/New_York")}, step: 30 * time.Minute},
		{entries: []v1beta1.SleepSchedule{entry("0 22 1-7 * *", "0 6 * * 1", "America/Santiago"), entry("@weekly", "0 5 * * *", "Asia/Tokyo")}, step: time.Hour},
		{entries: []v1beta1.SleepSchedule{entry("0 */12 * * *", "0 5-17/12 * * *", "Australia/Lord_Howe"), entry("0 * 31 * *", "30 4 * * 6", "")}, step: 30 * time.Minute},
	} {
		t.Run(fmt.Sprintf("When a year of %v passes, it should change when it says", test.entries), func(t *testing.T) {
			g := NewWithT(t)
			sleep, err := maintenance.ParseSleep(test.entries)
			g.Expect(err).NotTo(HaveOccurred())
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			asleep, changes, nights := sleep.Asleep(now), sleep.Changes(now), 0
			for end := now.AddDate(1, 0, 0); now.Before(end); now = now.Add(test.step) {
				is := sleep.Asleep(now)
				if due := !now.Before(changes); due != (is != asleep) {
					t.Fatalf("at %s it is asleep: %t, was %t, and was to change at %s", now, is, asleep, changes)
				}
				if is != asleep {
					g.Expect(now.Equal(changes)).To(BeTrue(), "%s isn't %s", now, changes)
					asleep, changes, nights = is, sleep.Changes(now), nights+1
				}
			}
			g.Expect(nights).To(BeNumerically(">", 50), "a year without nights tells nothing")
		})
	}
}

func TestSleepParse(t *testing.T) {
	const good = "0 20 * * *"
	for _, test := range []struct {
		name, want string
		entries    []v1beta1.SleepSchedule
	}{
		{
			name: "When a start is no schedule, it should name it", entries: []v1beta1.SleepSchedule{entry("0 25 * * *", good, "")},
			want: `[0].start: "0 25 * * *" isn't one such as "0 2 * * 6" (minute, hour, day of month, month and day of week): end of range (25) above maximum (23): 25`,
		}, {
			name: "When an end is no schedule, it should name it", entries: []v1beta1.SleepSchedule{entry(good, "7:00", "")},
			want: `[0].end: "7:00" isn't one such as "0 2 * * 6" (minute, hour, day of month, month and day of week): expected exactly 5 fields, found 1: [7:00]`,
		}, {
			name: "When both are none, it should name the start", entries: []v1beta1.SleepSchedule{entry("", "", "")},
			want: `[0].start: "" isn't one such as "0 2 * * 6" (minute, hour, day of month, month and day of week): expected exactly 5 fields, found 0: []`,
		}, {
			name: "When a start never comes, it should say so", entries: []v1beta1.SleepSchedule{entry("0 0 30 2 *", good, "")},
			want: `[0].start: "0 0 30 2 *" names a time that never comes`,
		}, {
			name: "When the end of a later entry never comes, it should name that entry", entries: []v1beta1.SleepSchedule{entry(good, "0 7 * * *", ""), entry(good, "0 0 31 4 *", "")},
			want: `[1].end: "0 0 31 4 *" names a time that never comes`,
		}, {
			name: "When a zone is unknown, it should name it", entries: []v1beta1.SleepSchedule{entry(good, "0 7 * * *", "Mars/Olympus")},
			want: `[0].timeZone: "Mars/Olympus" isn't a time zone such as Europe/Zurich`,
		}, {
			name: "When a zone is wherever the program runs, it should refuse it", entries: []v1beta1.SleepSchedule{entry(good, "0 7 * * *", "Local")},
			want: `[0].timeZone: "Local" isn't a time zone such as Europe/Zurich`,
		}, {
			name: "When an end is its start, it should refuse it", entries: []v1beta1.SleepSchedule{entry(good, good, "")}, want: `[0].end: "0 20 * * *" is the time of start`,
		}, {
			name: "When an end is its start in other words, it should refuse it", entries: []v1beta1.SleepSchedule{entry("@midnight", "0 0 * * *", "Europe/Zurich")},
			want: `[0].end: "0 0 * * *" is the time of start`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := maintenance.ParseSleep(test.entries)
			NewWithT(t).Expect(err).To(MatchError(test.want))
		})
	}
}
