// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/autonode-io/autonode/test/audit"
)

// ScaleReport is the result of Scale.
type ScaleReport struct {
	Started      time.Time     `json:"started"`
	CPUs         int           `json:"cpus"`
	Measurements []Measurement `json:"measurements"`
}

// Measurement is one size with one provider.
type Measurement struct {
	Contestant
	Size
	// BusyLoops ran meanwhile, processes that take a core each.
	BusyLoops int `json:"busyLoops,omitempty"`
	// First, Half and All are the seconds until the first pod, half of them and all of them ran, or a MachineDeployment's Nodes were
	// ready; 0 for never.
	First float64 `json:"firstSeconds"`
	Half  float64 `json:"halfSeconds"`
	All   float64 `json:"allSeconds"`
	// Gone is the number of seconds until all nodes, NodeClaims and machines were deleted.
	Gone float64 `json:"goneSeconds"`
	// NodeClaims and Machines are the numbers of created ones.
	NodeClaims int `json:"nodeClaims"`
	Machines   int `json:"machines"`
	// Lost are machines that hadn't joined a minute after all pods ran. Left are the objects that remained.
	Lost []string `json:"lost"`
	Left []string `json:"left"`
	// Failure is why the measurement is incomplete, or empty.
	Failure string `json:"failure,omitempty"`
	// Up is the cost of the burst, Down that of its removal.
	Up   Cost `json:"up"`
	Down Cost `json:"down"`
}

// Cost in requests to API servers and in processes' use.
type Cost struct {
	Management Requests       `json:"management"`
	Guest      Requests       `json:"guest"`
	Processes  []ProcessUsage `json:"processes"`
}

// Requests are those that an API server answered, without watches, lease renewals, requests for no object, and the
// measurement's own.
type Requests struct {
	PerNode float64 `json:"perNode"`
	// ConflictsPerNode are those with the answer 409.
	ConflictsPerNode float64      `json:"conflictsPerNode"`
	Kinds            []RequestRow `json:"kinds"`
	traffic          audit.Traffic
	nodes            int
}

// RequestRow is one kind of request.
type RequestRow struct {
	audit.Request
	PerNode float64 `json:"perNode"`
}

// ProcessUsage is the use of one program's processes.
type ProcessUsage struct {
	Name       string  `json:"name"`
	CPUSeconds float64 `json:"cpuSeconds"`
	PeakMiB    float64 `json:"peakMiB"`
}

func newRequests(traffic audit.Traffic, nodes int) Requests {
	r := Requests{traffic: traffic, nodes: nodes, Kinds: []RequestRow{}}
	r.PerNode = r.Of(func(audit.Request) bool { return true })
	r.ConflictsPerNode = r.Of(audit.Request.Conflict)
	for _, request := range traffic.Sorted() {
		r.Kinds = append(r.Kinds, RequestRow{request, float64(traffic[request]) / float64(nodes)})
	}
	return r
}

// Of returns the number of requests of a kind per node.
func (r Requests) Of(match func(audit.Request) bool) float64 {
	return float64(r.traffic.Total(match)) / float64(r.nodes)
}

// CPUPerNode is the CPU time of all processes per node, in seconds.
func (m Measurement) CPUPerNode() float64 {
	total := 0.0
	for _, p := range m.Up.Processes {
		total += p.CPUSeconds
	}
	return total / float64(m.Nodes)
}

// karpenter returns Karpenter's own use.
func (m Measurement) karpenter() ProcessUsage {
	for _, p := range m.Up.Processes {
		if strings.HasPrefix(p.Name, "karpenter-") {
			return p
		}
	}
	return ProcessUsage{}
}

// String is the contestant's.
func (m Measurement) String() string { return m.Contestant.String() }

// name is the contestant's, with the busy loops beside it.
func (m Measurement) name() string {
	if m.BusyLoops > 0 {
		return fmt.Sprintf("%s, %d busy loops", m.Contestant, m.BusyLoops)
	}
	return m.String()
}

func (m *Measurement) times(started time.Time, ready []time.Time) {
	for _, mark := range []struct {
		pods  int
		after *float64
	}{{1, &m.First}, {(m.Pods + 1) / 2, &m.Half}, {m.Pods, &m.All}} {
		if len(ready) >= mark.pods {
			*mark.after = ready[mark.pods-1].Sub(started).Seconds()
		}
	}
}

// measures are the complete measurements of the same size with another provider: one for each delay of the kwok provider, and the one with
// the same configuration of Cluster API.
func (r *ScaleReport) measures(of Measurement, provider string) []Measurement {
	var all []Measurement
	for _, m := range r.Measurements {
		if m.Provider == provider && m.Size == of.Size && m.Failure == "" && (provider == Kwok || m.ClusterAPI == of.ClusterAPI) {
			all = append(all, m)
		}
	}
	return all
}

// overProvisioned returns an error for each burst in which a contestant with AutoNode's provider made more NodeClaims than the pods need.
func (r *ScaleReport) overProvisioned(c Contestant) error {
	var errs []error
	for _, m := range r.Measurements {
		if m.Contestant == c && c.Provider == ClusterAPI && m.NodeClaims > m.Nodes {
			errs = append(errs, fmt.Errorf("%s: %d NodeClaims for %s pods that need %d nodes", m.name(), m.NodeClaims, m.Size, m.Nodes))
		}
	}
	return errors.Join(errs...)
}

// print prints a table with a line per size and provider, the processes' use, and the requests to API servers.
func (r *ScaleReport) print(out io.Writer) error {
	slices.SortStableFunc(r.Measurements, func(a, b Measurement) int { return cmp.Or(a.Pods-b.Pods, a.Nodes-b.Nodes) })
	first, all, gone := func(m Measurement) float64 { return m.First }, func(m Measurement) float64 { return m.All }, func(m Measurement) float64 { return m.Gone }
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\npods\tprovider\tfirst\tx kwok\thalf\tall\tx kwok\tx MD\tgone\tx kwok\tx MD\tNodeClaims\tMachines\tmanagement/node\t409s\tguest/node\t409s\tCPU/node\tKarpenter\tx kwok\t")
	for _, m := range r.Measurements {
		ratio := func(to string, of func(Measurement) float64) string {
			var ratios []string
			if m.Provider != Kwok && m.Provider != to {
				for _, measure := range r.measures(m, to) {
					ratios = append(ratios, dashFor(of(m)/of(measure)))
				}
			}
			return strings.Join(ratios, ", ")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f s\t%.0f MiB\t%s\t\n", m.Size, m.name(),
			after(m.First), ratio(Kwok, first), after(m.Half), after(m.All), ratio(Kwok, all), ratio(MachineDeployment, all),
			after(m.Gone), ratio(Kwok, gone), ratio(MachineDeployment, gone), m.NodeClaims, m.Machines,
			m.Up.Management.PerNode, m.Up.Management.ConflictsPerNode, m.Up.Guest.PerNode, m.Up.Guest.ConflictsPerNode,
			m.CPUPerNode(), m.karpenter().PeakMiB, ratio(Kwok, func(m Measurement) float64 { return m.karpenter().PeakMiB }))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range r.Measurements {
		if m.Failure != "" {
			fmt.Fprintf(out, "%s, %s pods: %s\n", m.name(), m.Size, m.Failure)
		}
	}
	for _, phase := range phases {
		if err := cmp.Or(r.printProcesses(out, phase), r.printRequests(out, phase)); err != nil {
			return err
		}
	}
	return nil
}

// phases are those whose cost is measured.
var phases = []phase{
	{"until all pods ran", "each of %d nodes", func(m Measurement) Cost { return m.Up }},
	{"until all nodes and Machines were gone", "the removal of each of %d nodes", func(m Measurement) Cost { return m.Down }},
}

type phase struct {
	until, forEach string
	cost           func(Measurement) Cost
}

func after(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", seconds)
}

func dashFor(ratio float64) string {
	if ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio)
}

// printProcesses prints each program's use in a phase: a row per program, a column per measurement.
func (r *ScaleReport) printProcesses(out io.Writer, phase phase) error {
	names := map[string]bool{}
	for _, m := range r.Measurements {
		for _, p := range phase.cost(m).Processes {
			names[p.Name] = true
		}
	}
	if len(names) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nCPU time %s, and the peak of resident memory until then:\n", phase.until)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "process\t")
	for _, m := range r.Measurements {
		fmt.Fprintf(table, "%s %s\t\t", m.name(), m.Size)
	}
	fmt.Fprintln(table)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(table, "%s\t", name)
		for _, m := range r.Measurements {
			processes := phase.cost(m).Processes
			i := slices.IndexFunc(processes, func(p ProcessUsage) bool { return p.Name == name })
			if i < 0 {
				fmt.Fprint(table, "\t\t")
				continue
			}
			fmt.Fprintf(table, "%.1f s\t%.0f MiB\t", processes[i].CPUSeconds, processes[i].PeakMiB)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// topRequests is the number of kinds of requests in the table; the results in JSON have all.
const topRequests = 25

// printRequests prints a phase's requests in the largest burst of each provider.
func (r *ScaleReport) printRequests(out io.Writer, phase phase) error {
	largest := map[string]Measurement{}
	for _, m := range r.Measurements {
		cost := phase.cost(m)
		if name := m.String(); m.Nodes > largest[name].Nodes && len(cost.Management.Kinds)+len(cost.Guest.Kinds) > 0 {
			largest[name] = m
		}
	}
	for _, name := range slices.Sorted(maps.Keys(largest)) {
		m := largest[name]
		cost := phase.cost(m)
		for _, server := range []struct {
			name     string
			requests Requests
		}{{"management", cost.Management}, {"guest", cost.Guest}} {
			fmt.Fprintf(out, "\nRequests in the %s cluster for %s, %s: %.1f, of which conflicts %.1f\n",
				server.name, fmt.Sprintf(phase.forEach, m.Nodes), name, server.requests.PerNode, server.requests.ConflictsPerNode)
			if err := server.requests.print(out, topRequests); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r Requests) print(out io.Writer, rows int) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range r.Kinds[:min(rows, len(r.Kinds))] {
		fmt.Fprintf(table, "  %.2f\t%s %s\t%d\t%s\t%s\n", row.PerNode, row.Verb, row.Resource, row.Code, row.Agent, row.User)
	}
	return table.Flush()
}
