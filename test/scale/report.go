// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report is what was measured.
type report struct {
	cfg     Config
	took    []time.Duration // sorted
	changed []time.Duration // sorted
	// Requests: of the first guest on each API server, of all others until they had settled, and of all while nothing was to be done.
	firstManagement, firstGuest    *counts
	management, guests             *counts
	steadyManagement, steadyGuests *counts
	idle, settled                  memory
	enabling, steady               time.Duration // of CPU
	// Of the hostile guest: what the operator asked it for while nothing was to be done for others, and its condition.
	steadyHostile *counts
	hostileSays   string
}

const mebibyte = 1 << 20

func (r *report) print(out io.Writer) error {
	n := len(r.took)
	fmt.Fprintf(out, "\n%d hosted clusters on %d API servers", n, r.cfg.APIServers)
	if r.cfg.Silent+r.cfg.Slow > 0 {
		fmt.Fprintf(out, ", beside %d whose guest never answers and %d whose guest takes %s for each answer", r.cfg.Silent, r.cfg.Slow, slowness)
	}
	fmt.Fprintf(out, "\n\nAutoNode is on in half of them after %s, in all after %s; the operator used %s of CPU.\n",
		seconds(r.took[n/2]), seconds(r.took[n-1]), seconds(r.enabling))
	fmt.Fprintf(out, "A change of %d at once is observed in half of them after %s, in all after %s.\n",
		len(r.changed), seconds(r.changed[len(r.changed)/2]), seconds(r.changed[len(r.changed)-1]))
	fmt.Fprintf(out, "Memory: %.0f MiB with none, %.0f MiB at the end, %.0f MiB at most.\n",
		float64(r.idle.Resident)/mebibyte, float64(r.settled.Resident)/mebibyte, float64(r.settled.Peak)/mebibyte)
	fmt.Fprintf(out, "Each hosted cluster costs %.2f MiB, of which objects in use are %.2f MiB and stacks %.2f MiB.\n", r.each(resident),
		r.each(func(m memory) int64 { return m.Heap }), r.each(func(m memory) int64 { return m.Stacks }))
	fmt.Fprintf(out, "In %s of rest: %d writes in the management cluster, %d in guests; %.2f requests a second, %.1f %% of one core.\n\n",
		r.cfg.Steady, r.steadyManagement.total(request.writes), r.steadyGuests.total(request.writes),
		float64(r.steadyManagement.total(all)+r.steadyGuests.total(all))/r.cfg.Steady.Seconds(), 100*r.steady.Seconds()/r.cfg.Steady.Seconds())

	if r.steadyHostile != nil {
		fmt.Fprintf(out, "Hostile guest with %d Nodes, meanwhile: %.2f requests a second, of which %.2f writes.\n%s\n\n", r.cfg.HostileNodes,
			float64(r.steadyHostile.total(all))/r.cfg.Steady.Seconds(), float64(r.steadyHostile.total(request.writes))/r.cfg.Steady.Seconds(), r.hostileSays)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, part := range []struct {
		title    string
		counts   *counts
		clusters int
	}{
		{"management, until AutoNode is on", r.management, n},
		{"guest, the first on its API server", r.firstGuest, r.cfg.APIServers},
		{"guest, each further one", r.guests, n},
	} {
		per := func(match func(request) bool) float64 {
			return float64(part.counts.total(match)) / float64(part.clusters)
		}
		fmt.Fprintf(table, "%s\t%.1f writes\t%.1f reads\t%.1f watches\t\n", part.title,
			per(request.writes), per(func(q request) bool { return !q.writes() && q.verb != "watch" }), per(func(q request) bool { return q.verb == "watch" }))
		for _, kind := range part.counts.sorted() {
			if each := float64(part.counts.of[kind]) / float64(part.clusters); each >= 0.05 {
				fmt.Fprintf(table, "\t%s %s\t%.1f\t\t\n", kind.verb, kind.resource, each)
			}
		}
	}
	fmt.Fprintf(table, "at rest, in all\t\t\t\t\n")
	steady := newCounts()
	steady.add(r.steadyManagement)
	steady.add(r.steadyGuests)
	for _, kind := range steady.sorted() {
		fmt.Fprintf(table, "\t%s %s\t%d\t\t\n", kind.verb, kind.resource, steady.of[kind])
	}
	return table.Flush()
}

// check is an error where something is written that nothing asked for, or a hosted cluster costs more memory than its budget.
func (r *report) check() error {
	if writes := r.steadyManagement.total(request.writes) + r.steadyGuests.total(request.writes); writes > 0 {
		return fmt.Errorf("the operator wrote %d times while there was nothing to do; the audit logs in %s say what", writes, r.cfg.Dir)
	}
	return r.checkMemory()
}

func all(request) bool { return true }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
