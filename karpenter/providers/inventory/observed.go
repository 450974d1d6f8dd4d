// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const (
	// MaxRevisions limits the remembered revisions, and so the cost of a template that is edited often.
	MaxRevisions = 8192
	// Window is the number of a revision's nodes that count: the last ones, whether they still exist or not.
	Window = 20
	// ConfirmWithin is how long the report of a revision's only node counts without a second node's. The next launch then
	// finds out whether that node was an odd one.
	ConfirmWithin = time.Hour

	// mebibyte is the unit to which bytes are rounded down: machines of one template differ by some KiB, which must not rebuild all
	// instance types.
	mebibyte = 1 << 20
)

// Revision of a template and of its nodes' kubelet settings. All its nodes should report the same.
type Revision struct {
	// Source is the template source, as v1alpha1.TemplateSourceAnnotation names it.
	Source string
	// ContentHash is the hash of the infrastructure template's content: other content may mean another capacity.
	ContentHash string
	// BootstrapHash and NodeClassHash are the hashes of the bootstrap template and of the node class: they decide the
	// kubelet's reservations. They don't affect the machine's capacity.
	BootstrapHash, NodeClassHash string
}

func (r Revision) hardware() Revision { return Revision{Source: r.Source, ContentHash: r.ContentHash} }

// Amounts of resources: millicores, bytes and pods. 0 means unknown.
type Amounts struct{ MilliCPU, Memory, EphemeralStorage, Pods int64 }

func (a Amounts) rounded() Amounts {
	a.Memory -= a.Memory % mebibyte
	a.EphemeralStorage -= a.EphemeralStorage % mebibyte
	return a
}

// Quantities returns the amounts that are known.
func (a Amounts) Quantities() corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, quantity := range map[corev1.ResourceName]*resource.Quantity{
		corev1.ResourceCPU:              resource.NewMilliQuantity(a.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           resource.NewQuantity(a.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: resource.NewQuantity(a.EphemeralStorage, resource.BinarySI),
		corev1.ResourcePods:             resource.NewQuantity(a.Pods, resource.DecimalSI),
	} {
		if !quantity.IsZero() {
			list[name] = *quantity
		}
	}
	return list
}

// amounts lists the fields of Amounts.
var amounts = []func(*Amounts) *int64{
	func(a *Amounts) *int64 { return &a.MilliCPU },
	func(a *Amounts) *int64 { return &a.Memory },
	func(a *Amounts) *int64 { return &a.EphemeralStorage },
	func(a *Amounts) *int64 { return &a.Pods },
}

// Report sums up the reports of a revision's nodes. The tenth of them that report least, and at least one, don't count,
// so that an odd node changes nothing. The only node of a revision counts.
type Report struct {
	Amounts
	// Unconfirmed: only one node has reported, more than ConfirmWithin ago.
	Unconfirmed bool
}

// observed tracks the reports of each revision's nodes: the memory of their machines, and their allocatable resources.
// A template declares round numbers; a hypervisor, a kernel and a kubelet keep some of that, and a pod that requests
// all of it would never fit. It is safe for concurrent use.
type observed struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// records by revision: the capacity under the revision's hardware, the allocatable resources under the revision itself.
	capacity, allocatable map[Revision]*record
	nodes                 map[string]node
	// used counts observations, to find the least recently seen revision.
	used uint64

	// changes has the source whenever a report changes.
	changes *change.Log[Change]
	// nextExpiry is when the first only node stops to count.
	nextExpiry change.Expiry
	// observers are notified when the first node of a revision reports.
	observers change.Notifier
}

type node struct {
	revision              Revision
	capacity, allocatable Amounts
}

type record struct {
	// last are the last nodes' reports, the oldest first.
	last   []report
	report Report
	used   uint64
}

type report struct {
	name string
	Amounts
	at time.Time
}

func newObserved(clk clock.PassiveClock, changes *change.Log[Change]) *observed {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &observed{
		clock: clk, capacity: map[Revision]*record{}, allocatable: map[Revision]*record{}, nodes: map[string]node{}, changes: changes,
	}
}

// Capacity returns that of machines of a revision; false if no node was observed.
func (o *observed) Capacity(r Revision) (Report, bool) { return o.find(o.capacity, r.hardware()) }

// Allocatable returns that of nodes of a revision; false if no node was observed.
func (o *observed) Allocatable(r Revision) (Report, bool) { return o.find(o.allocatable, r) }

func (o *observed) find(records map[Revision]*record, r Revision) (Report, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known, ok := records[r]; ok {
		return known.report, true
	}
	return Report{}, false
}

// Observe records a node's report. Call it again when that changes.
func (o *observed) Observe(name string, r Revision, capacity, allocatable Amounts) {
	seen := node{r, capacity.rounded(), allocatable.rounded()}
	if seen.capacity.Memory <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nodes[name] == seen {
		return
	}
	o.nodes[name] = seen
	o.used++
	o.add(o.capacity, r.hardware(), name, Amounts{Memory: seen.capacity.Memory})
	o.add(o.allocatable, r, name, seen.allocatable)
}

// Forget records that a node is gone. Its report counts until later ones replace it.
func (o *observed) Forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, name)
}

// add is called with o.mu held.
func (o *observed) add(records map[Revision]*record, r Revision, name string, reported Amounts) {
	known, ok := records[r]
	if !ok {
		o.makeRoom(records)
		known = &record{}
		records[r] = known
	}
	known.used = o.used
	known.last = slices.DeleteFunc(known.last, func(other report) bool { return other.name == name })
	known.last = append(known.last, report{name, reported, o.clock.Now()})
	known.last = known.last[max(0, len(known.last)-Window):]
	o.recomputeReport(r, known)
	if !ok {
		o.observers.Notify()
	}
}

// recomputeReport updates a record's report.
func (o *observed) recomputeReport(r Revision, known *record) {
	now := Report{Amounts: typical(known.last)}
	if len(known.last) == 1 {
		until := known.last[0].at.Add(ConfirmWithin)
		if now.Unconfirmed = !o.clock.Now().Before(until); !now.Unconfirmed {
			o.nextExpiry.Advance(until)
		}
	}
	if now != known.report {
		known.report = now
		o.changes.Add(Change{Source: r.Source})
	}
}

// typical returns the amounts that all but the lowest reports reach: see Report.
func typical(reports []report) (result Amounts) {
	for _, field := range amounts {
		var values []int64
		for i := range reports {
			if value := *field(&reports[i].Amounts); value > 0 {
				values = append(values, value)
			}
		}
		slices.Sort(values)
		switch n := len(values); n {
		case 0:
		case 1:
			*field(&result) = values[0]
		default:
			*field(&result) = values[1+(n-1)/10]
		}
	}
	return result
}

// expire updates the reports of only nodes. It neither locks nor allocates while none has to be.
func (o *observed) expire() {
	if !o.nextExpiry.Passed(o.clock) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nextExpiry.Set(time.Time{})
	for _, records := range []map[Revision]*record{o.capacity, o.allocatable} {
		for r, known := range records {
			o.recomputeReport(r, known)
		}
	}
}

// makeRoom drops the least recently seen revision when there are too many, preferably one without nodes.
func (o *observed) makeRoom(records map[Revision]*record) {
	if len(records) < MaxRevisions {
		return
	}
	inUse := func(r Revision) int {
		if slices.ContainsFunc(records[r].last, func(reported report) bool {
			now := o.nodes[reported.name].revision
			return now == r || now.hardware() == r
		}) {
			return 1
		}
		return 0
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(records)), func(a, b Revision) int {
		return cmp.Or(cmp.Compare(inUse(a), inUse(b)), cmp.Compare(records[a].used, records[b].used))
	})
	delete(records, oldest)
	o.changes.Add(Change{Source: oldest.Source})
}
