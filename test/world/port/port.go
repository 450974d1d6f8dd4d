// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package port finds free TCP ports for programs that must be told which port to listen on.
//
// Between the choice and the program's bind anybody could take the port. So ports come from below the range that the
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
	"syscall"
)

const (
	first    = 12000
	count    = 18000
	attempts = 1000
)

// Claims are the ports of one world.
type Claims struct {
	dir string

	mu    sync.Mutex
	files map[int]*os.File
}

// New returns an empty set of claims.
func New() *Claims {
	return &Claims{dir: filepath.Join(os.TempDir(), "autonode-ports-"+strconv.Itoa(os.Getuid())), files: map[int]*os.File{}}
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
	file, err := os.OpenFile(filepath.Join(c.dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		closeErr := file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, closeErr
		}
		return false, errors.Join(err, closeErr)
	}
	// All addresses, because some programs can't be told to listen on loopback only.
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return false, file.Close()
	}
	if err := listener.Close(); err != nil {
		return false, errors.Join(err, file.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[port] = file
	return true, nil
}

// Release gives one port back.
func (c *Claims) Release(port int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if file, ok := c.files[port]; ok {
		_ = file.Close()
		delete(c.files, port)
	}
}

// Close gives all ports back.
func (c *Claims) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, file := range c.files {
		errs = append(errs, file.Close())
	}
	clear(c.files)
	return errors.Join(errs...)
}
