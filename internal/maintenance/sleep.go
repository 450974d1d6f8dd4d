// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Sleep are the parsed schedules of a cluster's sleep.
type Sleep []struct {
	start, end cron.Schedule
	location   *time.Location
}

// ParseSleep validates schedules. An error starts with the index and the name of the field, such as [0].start.
func ParseSleep(schedules []v1beta1.SleepSchedule) (Sleep, error) {
	parsed := make(Sleep, len(schedules))
	for i, s := range schedules {
		var errStart, errEnd error
		parsed[i].start, parsed[i].location, errStart = parse("start", s.Start, s.TimeZone)
		if parsed[i].end, _, errEnd = parse("end", s.End, s.TimeZone); errStart != nil || errEnd != nil {
			return nil, fmt.Errorf("[%d].%w", i, cmp.Or(errStart, errEnd))
		}
		if reflect.DeepEqual(parsed[i].start, parsed[i].end) {
			return nil, fmt.Errorf("[%d].end: %q is the time of start", i, s.End)
		}
	}
	return parsed, nil
}

// Asleep reports whether the last start of any entry is later than the entry's last end.
func (s Sleep) Asleep(now time.Time) bool {
	for _, e := range s {
		if last(e.start, now).After(last(e.end, now)) {
			return true
		}
	}
	return false
}

// Changes returns when Asleep changes next, in the time zone of the entry that does it; zero if it doesn't.
func (s Sleep) Changes(now time.Time) (next time.Time) {
	const limit = 1000             // edges in a row without an effect
	asleep := make([]bool, len(s)) // by entry
	for i := range s {
		asleep[i] = s[i : i+1].Asleep(now)
	}
	was := slices.Contains(asleep, true)
	for range limit {
		next = time.Time{}
		for _, e := range s {
			for _, edge := range []cron.Schedule{e.start, e.end} {
				if at := edge.Next(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
					next = at.In(e.location)
				}
			}
		}
		for i, e := range s { // of two edges at a time, the end counts
			asleep[i] = (asleep[i] || e.start.Next(now).Equal(next)) && !e.end.Next(now).Equal(next)
		}
		if next.IsZero() || slices.Contains(asleep, true) != was {
			return next
		}
		now = next
	}
	return time.Time{}
}

// last returns a schedule's last time that isn't after now, by bisection; zero if there is none within five years.
func last(schedule cron.Schedule, now time.Time) (found time.Time) {
	for low, high := now.AddDate(-5, 0, 0), now; high.Sub(low) > time.Second; {
		middle := low.Add(high.Sub(low) / 2)
		if at := schedule.Next(middle); at.IsZero() || at.After(now) {
			high = middle
		} else {
			low, found = at, at
		}
	}
	return found
}
