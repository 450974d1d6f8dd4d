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
	// startInterval is between the starts of two specs. All guests' first ones at once keep a small machine so busy that pods are
	// bound late, and some specs count on their being bound when they look at nodes.
	startInterval = 3 * time.Second
	// busy is the share, in percent, of the last ten seconds in which something waited for a CPU, from which on no spec begins. A spec with
	// a hundred nodes takes all there is; with the next ones on top watches fall behind, writes conflict, and the retries take more.
	busy = 90
	// patience is how long a spec waits for that at most.
	patience = time.Minute
)

// gate lets specs begin one after the other, when the machine has caught up with those that run.
type gate struct {
	starts   *rate.Limiter
	patience time.Duration
	// waiting is that share now.
	waiting func() (percent float64, err error)
}

func newGate() *gate {
	return &gate{starts: rate.NewLimiter(rate.Every(startInterval), 1), patience: patience, waiting: waitingForCPU}
}

// pass returns when a spec may begin. Where the kernel doesn't tell what waits, it looks at the starts alone.
func (g *gate) pass(ctx context.Context) error {
	for began := time.Now(); ; {
		if err := g.starts.Wait(ctx); err != nil {
			return fmt.Errorf("waiting to begin: %w", err)
		}
		if percent, err := g.waiting(); err != nil || percent < busy || time.Since(began) >= g.patience {
			return nil //nolint:nilerr // see above
		}
	}
}

// waitingForCPU asks the kernel: https://docs.kernel.org/accounting/psi.html.
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
		return 0, errors.New("the kernel tells no pressure")
	}
	return stats.Some.Avg10, nil
}
