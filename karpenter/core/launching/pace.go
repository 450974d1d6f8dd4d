// SPDX-License-Identifier: Apache-2.0

package launching

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// paceSlots is how many launches run at once as long as they are quick. A few keep an API server busy.
	paceSlots = 4
	// paceLimit is after how long a launch lets the next one begin, so that one that hangs delays the others only that long.
	paceLimit = 250 * time.Millisecond
)

// pace is a concurrency limit that counts only what has begun lately.
type pace struct {
	slots chan struct{}
	clock clock.WithDelayedExecution
}

func newPace(slots int, clock clock.WithDelayedExecution) *pace {
	return &pace{slots: make(chan struct{}, slots), clock: clock}
}

// begin waits for a slot. It is free again once end is called, and after paceLimit.
func (p *pace) begin(ctx context.Context) (end func(), err error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := sync.OnceFunc(func() { <-p.slots })
	timer := p.clock.AfterFunc(paceLimit, release)
	return func() {
		timer.Stop()
		release()
	}, nil
}
