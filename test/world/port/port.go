// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package port finds free TCP ports for programs that need the port to listen on as an argument.
//
// Between the choice and the program's bind anyone could take the port. So ports come from below the range that the
// kernel gives to outgoing connections, and each is claimed by a locked file until the claim is closed: another
// world on the machine looks elsewhere, and the kernel drops the claims of a process that dies.
package port

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/autonode-io/autonode/test/world/lock"
)

const (
	first    = 12000
	count    = 18000
	attempts = 1000
)

// Claims are the ports of one world.
type Claims struct {
	dir string

	mu sync.Mutex
	// releases give ports back.
	releases map[int]func()
}

// New returns an empty set of claims.
func New() *Claims {
	return &Claims{dir: filepath.Join(os.TempDir(), "autonode-ports-"+strconv.Itoa(os.Getuid())), releases: map[int]func(){}}
}

// Next claims a port without a listener.
func (c *Claims) Next() (int, error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return 0, fmt.Errorf("claiming a port: %w", err)
	}
	for range attempts {
		port := first + rand.IntN(count)
		claimed, err := c.claim(port)
		if err != nil {
			return 0, fmt.Errorf("claiming port %d: %w", port, err)
		}
		if claimed {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port found between %d and %d in %d attempts", first, first+count, attempts)
}

func (c *Claims) claim(port int) (bool, error) {
	release, err := lock.Try(filepath.Join(c.dir, strconv.Itoa(port)))
	if err != nil {
		if errors.Is(err, lock.ErrHeld) {
			err = nil
		}
		return false, err
	}
	// All addresses, because some programs can't be configured to listen on loopback only.
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err == nil {
		err = listener.Close()
	}
	if err != nil { // another program has it, and there are other ports
		release()
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releases[port] = release
	return true, nil
}

// Release gives one port back.
func (c *Claims) Release(port int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if release, ok := c.releases[port]; ok {
		release()
		delete(c.releases, port)
	}
}

// Close gives all ports back.
func (c *Claims) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, release := range c.releases {
		release()
	}
	clear(c.releases)
}
