// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/time/rate"
)

const (
	// startInterval is the minimum interval between the starts of two specs. If all guests start at once, a small
	// machine binds pods late, and some specs rely on bound pods when they list nodes.
	startInterval = 3 * time.Second
	// busy is a percentage of the last ten seconds in which a task waited for a CPU. No spec starts above it. A spec
	// with a hundred nodes uses all CPUs; with more specs at once watches lag, writes conflict, and the retries use
	// even more.
	busy = 90
	// timeout is the longest delay of a spec for that.
	timeout = time.Minute
)

// gate starts specs one after the other, once the machine isn't busy with the running ones.
type gate struct {
	starts  *rate.Limiter
	timeout time.Duration
	// waiting is the current percentage.
	waiting func() (percent float64, err error)
}

func newGate() *gate {
	return &gate{starts: rate.NewLimiter(rate.Every(startInterval), 1), timeout: timeout, waiting: waitingForCPU}
}

// pass returns when a spec may start. If the kernel doesn't report the percentage, only startInterval counts.
func (g *gate) pass(ctx context.Context) error {
	for began := time.Now(); ; {
		if err := g.starts.Wait(ctx); err != nil {
			return fmt.Errorf("waiting to begin: %w", err)
		}
		if percent, err := g.waiting(); err != nil || percent < busy || time.Since(began) >= g.timeout {
			return nil //nolint:nilerr // see above
		}
	}
}

// waitingForCPU reads the kernel's pressure stall information: https://docs.kernel.org/accounting/psi.html.
func waitingForCPU() (percent float64, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stats, err := proc.PSIStatsForResource("cpu")
	if err != nil {
		return 0, err
	}
	if stats.Some == nil {
		return 0, errors.New("the kernel reports no pressure")
	}
	return stats.Some.Avg10, nil
}
