// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"slices"
	"sync"
	"time"

	"github.com/autonode-io/autonode/internal/lru"
)

const (
	// launchWindow is the number of a template's machines that count: the last ones, whether they still exist or not.
	launchWindow = 10
	// maxTemplates limits the remembered templates.
	maxTemplates = 8192

	// slowFactor times the usual time is slow.
	slowFactor = 3
	// Machines that usually take longer than maxSlow, as on bare metal, are slow after half as much again.
	leastFactor = 1.5
)

// minSlow and maxSlow bound the time after which a launch is slow. maxSlow also holds for a template without an observed machine. It is the
// --sync-period of most infrastructure providers, so a failed task has been reported by then.
const (
	minSlow = time.Minute
	maxSlow = 10 * time.Minute
)

// launchTimes are how long the machines of templates took until they had a provider ID. They are safe for concurrent use.
type launchTimes struct {
	mu sync.Mutex
	// templates have the oldest launch first.
	templates lru.Cache[string, []observedLaunch]
}

type observedLaunch struct {
	began time.Time
	took  time.Duration
}

func newLaunchTimes() *launchTimes {
	return &launchTimes{templates: lru.New[string, []observedLaunch](maxTemplates)}
}

// observe records that a template's machine got its provider ID. Call it once for each machine, in any order.
func (t *launchTimes) observe(template string, began time.Time, took time.Duration) {
	if took < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	launches, _ := t.templates.Get(template)
	at, _ := slices.BinarySearchFunc(launches, began, func(l observedLaunch, began time.Time) int { return l.began.Compare(began) })
	launches = slices.Insert(launches, at, observedLaunch{began, max(took, time.Second)}) // creation times are whole seconds
	t.templates.Add(template, launches[max(0, len(launches)-launchWindow):])
}

// usual is the median of a template's last launch times, 0 if none was observed, and slow is the time after which a launch counts as slow.
func (t *launchTimes) usual(template string) (usual, slow time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	launches, _ := t.templates.Get(template)
	if len(launches) == 0 {
		return 0, maxSlow
	}
	took := make([]time.Duration, 0, launchWindow)
	for _, l := range launches {
		took = append(took, l.took)
	}
	slices.Sort(took)
	usual = took[len(took)/2]
	return usual, max(minSlow, min(slowFactor*usual, maxSlow), time.Duration(leastFactor*float64(usual)))
}
