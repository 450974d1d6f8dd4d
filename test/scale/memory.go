// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/autonode-io/autonode/test/profile"
	"github.com/autonode-io/autonode/test/world/process"
)

// enough hosted clusters are needed for a budget of memory: with fewer, what the first one costs counts too much.
const enough = 50

// memory of the operator, in bytes.
type memory struct {
	process.Usage
	// Heap is what objects use after a garbage collection, Stacks what goroutines' stacks use.
	Heap, Stacks int64
}

// memory measures the operator's memory. The resident memory is that before the garbage collection.
func (b *bench) memory(ctx context.Context) (memory, error) {
	usage, err := process.UsageOf(b.operator.PID)
	if err != nil {
		return memory{}, err
	}
	path := filepath.Join(b.cfg.Dir, "memory.txt")
	if err := profile.Fetch(ctx, http.DefaultClient, "http://"+b.pprof+"/debug/pprof/heap?gc=1&debug=1", path); err != nil {
		return memory{}, err
	}
	file, err := os.Open(path)
	if err != nil {
		return memory{}, fmt.Errorf("reading the operator's memory: %w", err)
	}
	defer file.Close()
	m, err := readMemory(file)
	m.Usage = usage
	return m, err
}

// readMemory reads runtime.MemStats from the end of a heap profile as text.
func readMemory(from io.Reader) (memory, error) {
	m := memory{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " = ")
		var into *int64
		switch name {
		case "# HeapAlloc":
			into = &m.Heap
		case "# Stack": // in use / from the system
			into = &m.Stacks
		default:
			continue
		}
		if _, err := fmt.Sscan(value, into); err != nil {
			return m, fmt.Errorf("reading the operator's memory: %q: %w", lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		return m, fmt.Errorf("reading the operator's memory: %w", err)
	}
	if m.Heap == 0 || m.Stacks == 0 {
		return m, fmt.Errorf("reading the operator's memory: the profile doesn't have it")
	}
	return m, nil
}

// each is what a hosted cluster costs of the memory that get returns, in MiB: what was added since there were none.
// Silent and slow guests don't count, since the operator may not have connected to them.
func (r *report) each(get func(memory) int64) float64 {
	guests := len(r.took) + r.cfg.APIServers
	if r.cfg.HostileNodes > 0 {
		guests++
	}
	return float64(get(r.settled)-get(r.idle)) / mebibyte / float64(guests)
}

func resident(m memory) int64 { return m.Resident }

// checkMemory fails above the budget.
func (r *report) checkMemory() error {
	if each := r.each(resident); r.cfg.Budget > 0 && r.cfg.Clusters >= enough && each > r.cfg.Budget {
		return fmt.Errorf("each hosted cluster costs %.2f MiB of memory, the budget is %.2f; %s has profiles", each, r.cfg.Budget, r.cfg.Dir)
	}
	return nil
}
