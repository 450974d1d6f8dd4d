// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RequestTTL is how long a request counts without being renewed: the launch may have been given up.
const RequestTTL = 3 * time.Minute

// LeftTTL is how long the request of a launch that was given up counts while it waited, unless another launch takes it over:
// the pods that it was for get another one within seconds.
const LeftTTL = 30 * time.Second

// wantedPrefix begins the names of requests of pods without a launch. No NodeClaim has such a name.
const wantedPrefix = "wanted/"

type request struct {
	charges      Amounts
	since, until time.Time
	// unclaimed: its launch was given up while it waited, or pods wait without one.
	unclaimed bool
}

// Leave records that a launch is given up because it waits for a larger grant. Its request counts for LeftTTL more, and
// another launch with the same charges takes it over: it has waited for as long.
func (h *Holder) Leave(name string, now time.Time) {
	r, waits := h.requests[name]
	h.Abandon(name, now)
	if waits {
		r.unclaimed, r.until = true, now.Add(LeftTTL)
		h.requests[name] = r
	}
}

// HasLeft reports whether there is a request of a launch that was given up.
func (h *Holder) HasLeft(now time.Time) bool {
	h.expire(now)
	for _, r := range h.requests {
		if r.unclaimed {
			return true
		}
	}
	return false
}

// takeOver removes the oldest request with the same charges of a launch that was given up, and returns it; nil for none.
func (h *Holder) takeOver(charges Amounts) (oldest *request) {
	var oldestName string
	for name, r := range h.requests {
		if r.unclaimed && r.charges.Equal(charges) && (oldest == nil || r.since.Before(oldest.since)) {
			oldestName, oldest = name, r
		}
	}
	delete(h.requests, oldestName)
	return oldest
}

// Withdraw drops the request of a launch.
func (h *Holder) Withdraw(name string) { delete(h.requests, name) }

// WithdrawAll drops all requests: the rules have changed. Those that are still wanted come again.
func (h *Holder) WithdrawAll() { clear(h.requests) }

// Request records that a launch waits for a larger grant, until RequestTTL from now. It returns since when it waits for
// these charges.
func (h *Holder) Request(name string, charges Amounts, now time.Time) time.Time {
	h.expire(now)
	h.want(name, charges, now)
	return h.requests[name].since
}

// Want records that pods wait for a number of launches with these charges, which can't be requested by launches because none fits. They
// count as requests of launches that were given up do, with those.
func (h *Holder) Want(charges Amounts, count int64, now time.Time) {
	h.expire(now)
	if !h.Ready(now) {
		return
	}
	var waiting []string
	for name, r := range h.requests {
		if r.unclaimed && r.charges.Equal(charges) {
			waiting = append(waiting, name)
		}
	}
	slices.SortFunc(waiting, func(a, b string) int {
		return cmp.Or(h.requests[a].since.Compare(h.requests[b].since), cmp.Compare(a, b))
	})
	for i := range count {
		if i < int64(len(waiting)) {
			h.requests[waiting[i]].until = now.Add(LeftTTL)
			continue
		}
		h.wanted++
		name := wantedPrefix + strconv.FormatInt(h.wanted, 10)
		h.requests[name] = &request{charges: charges.clone(), since: now, until: now.Add(LeftTTL), unclaimed: true}
	}
}

func (h *Holder) want(name string, charges Amounts, now time.Time) {
	r, ok := h.requests[name]
	if !ok || !r.charges.Equal(charges) {
		r = &request{charges: charges.clone(), since: now}
		if before := h.takeOver(charges); before != nil {
			r.since = before.since
		}
		h.requests[name] = r
	}
	r.until, r.unclaimed = now.Add(RequestTTL), false
}

// expire drops requests that weren't renewed.
func (h *Holder) expire(now time.Time) {
	for name, r := range h.requests {
		if !now.Before(r.until) {
			delete(h.requests, name)
		}
	}
}

// aggregate counts requests with the same charges, the oldest first.
func (h *Holder) aggregate() []Request {
	names := slices.SortedFunc(maps.Keys(h.requests), func(a, b string) int {
		if c := h.requests[a].since.Compare(h.requests[b].since); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	var requests []Request
	at := map[string]int{}
	for _, name := range names {
		charges := h.requests[name].charges
		key := charges.key()
		i, ok := at[key]
		if !ok {
			i = len(requests)
			at[key] = i
			requests = append(requests, Request{Charges: charges.clone()})
		}
		requests[i].Count++
	}
	return requests
}

// key is equal for equal amounts.
func (a Amounts) key() string {
	var b strings.Builder
	for _, pool := range slices.Sorted(maps.Keys(a)) {
		if a[pool] != 0 {
			b.WriteString(pool + "=" + strconv.FormatInt(a[pool], 10) + ";")
		}
	}
	return b.String()
}
