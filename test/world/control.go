// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/autonode-io/autonode/test/world/lock"
	"github.com/autonode-io/autonode/test/world/process"
)

// downTimeout is the timeout of a world's stop. Then it is killed, and the kernel kills its processes.
const downTimeout = time.Minute

// Running reports whether a world runs in dir.
func Running(dir string) (bool, error) {
	path := layout(dir).lock()
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	release, err := lock.Try(path)
	if errors.Is(err, lock.ErrHeld) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a world: %w", err)
	}
	release()
	return false, nil
}

// Down stops the world that another process runs in dir, and returns when all its processes have gone. It wraps
// ErrNoWorld if none runs.
func Down(ctx context.Context, dir string) error {
	running, err := Running(dir)
	if err != nil {
		return err
	}
	if !running {
		return errors.Join(fmt.Errorf("%w: %s", ErrNoWorld, dir), layout(dir).clean())
	}
	state, err := ReadState(dir)
	if err != nil {
		return err
	}
	if err := syscall.Kill(state.PID, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping the world (process %d): %w", state.PID, err)
	}
	bounded, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	if err := waitGone(bounded, dir, state); err == nil || ctx.Err() != nil {
		return err
	}
	if err := syscall.Kill(state.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing the world (process %d): %w", state.PID, err)
	}
	if err := waitGone(ctx, dir, state); err != nil {
		return err
	}
	return layout(dir).clean()
}

func waitGone(ctx context.Context, dir string, state State) error {
	return process.Poll(ctx, "the world to stop", nil, nil, func(context.Context) error {
		running, err := Running(dir)
		if err != nil {
			return err
		}
		if running {
			return fmt.Errorf("process %d runs", state.PID)
		}
		for _, c := range state.Components {
			if c.PID != state.PID && alive(c.PID) {
				return fmt.Errorf("%s (process %d) runs", c.Name, c.PID)
			}
		}
		return nil
	})
}
