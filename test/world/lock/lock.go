// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package lock locks files among processes. The kernel releases a lock when its holder dies.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/autonode-io/autonode/test/world/process"
)

// ErrHeld means that another process holds a lock.
var ErrHeld = errors.New("another process holds the lock")

// Try locks a file, which it makes where there is none. Its error wraps ErrHeld if another process holds the lock.
func Try(path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// Wait waits until no other process holds the lock, then acquires it. It calls waiting once if it has to wait, and returns an error when ctx is done.
func Wait(ctx context.Context, path string, waiting func()) (release func(), err error) {
	var final error
	err = process.Poll(ctx, "a lock", nil, nil, func(context.Context) error {
		if release, final = Try(path); !errors.Is(final, ErrHeld) {
			return nil
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		return final
	})
	if err == nil {
		err = final
	}
	return release, err
}
