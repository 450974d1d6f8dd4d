// SPDX-License-Identifier: Apache-2.0

package realmachine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// interfacePrefix begins the names of the host's ends of the machines' cables.
const interfacePrefix = "autonode"

// cable is the network between the host and one machine: two addresses of a network for benchmarks, which isn't routed (RFC 2544).
type cable struct {
	name          string // of the host's end
	host, machine netip.Addr
}

// newCable returns one that no other network of the host overlaps.
func newCable(ctx context.Context) (cable, error) {
	for range 100 {
		base := netip.AddrFrom4([4]byte{198, 18 | byte(rand.IntN(2)), byte(rand.IntN(256)), byte(rand.IntN(64) * 4)})
		routes, err := ip(ctx, "-o", "route", "show", "root", netip.PrefixFrom(base, 30).String())
		if err != nil {
			return cable{}, err
		}
		if routes == "" {
			octets := base.As4()
			return cable{
				name: fmt.Sprintf("%s%x", interfacePrefix, octets[1:]), host: base.Next(), machine: base.Next().Next(),
			}, nil
		}
	}
	return cable{}, errors.New("no free network found in 198.18.0.0/15")
}

// plug connects a machine, named by its first process, with the host.
func (c cable) plug(ctx context.Context, pid int) error {
	for _, args := range [][]string{
		{"link", "add", c.name, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid)},
		{"addr", "add", c.host.String() + "/30", "dev", c.name},
		{"link", "set", c.name, "up"},
	} {
		if _, err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return within(pid, func() error {
		for _, args := range [][]string{
			{"link", "set", "lo", "up"},
			{"addr", "add", c.machine.String() + "/30", "dev", "eth0"},
			{"link", "set", "eth0", "up"},
			{"route", "add", "default", "via", c.host.String()},
		} {
			if _, err := ip(ctx, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// unplug removes the cable. It has gone already if the machine has.
func (c cable) unplug(ctx context.Context) error {
	if _, err := net.InterfaceByName(c.name); err != nil {
		return nil //nolint:nilerr // there is none
	}
	if _, err := ip(ctx, "link", "del", c.name); err != nil {
		if _, gone := net.InterfaceByName(c.name); gone == nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return strings.TrimSpace(string(output)), nil
}

// within calls a function in the network of a process: sockets that it opens, and processes that it starts, are there.
func within(pid int, do func() error) error {
	done := make(chan error, 1)
	go func() { // of its own, so that a thread that can't come back ends with it
		goruntime.LockOSThread()
		done <- func() error {
			own, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer own.Close()
			other, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			if err != nil {
				return err
			}
			defer other.Close()
			if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering the network of process %d: %w", pid, err)
			}
			err = do()
			if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
				return errors.Join(err, fmt.Errorf("leaving the network of process %d: %w", pid, back))
			}
			goruntime.UnlockOSThread()
			return err
		}()
	}()
	return <-done
}

// forwarder lets a machine connect to an address of the host's loopback, at the same address.
type forwarder struct {
	address  string
	listener net.Listener
	wait     sync.WaitGroup

	mutex sync.Mutex
	open  map[net.Conn]bool
}

func forward(ctx context.Context, pid int, address string) (*forwarder, error) {
	f := &forwarder{address: address, open: map[net.Conn]bool{}}
	if err := within(pid, func() (err error) {
		f.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	}); err != nil {
		return nil, fmt.Errorf("listening at %s in a machine: %w", address, err)
	}
	f.wait.Go(func() {
		for {
			from, err := f.listener.Accept()
			if err != nil {
				return
			}
			f.wait.Go(func() { f.serve(from) })
		}
	})
	return f, nil
}

func (f *forwarder) serve(from net.Conn) {
	defer f.forget(from)
	if !f.remember(from) {
		return
	}
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", f.address)
	if err != nil {
		return
	}
	defer f.forget(to)
	if !f.remember(to) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			if half, ok := way[1].(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
		})
	}
	both.Wait()
}

func (f *forwarder) remember(connection net.Conn) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.open == nil {
		return false
	}
	f.open[connection] = true
	return true
}

func (f *forwarder) forget(connection net.Conn) {
	_ = connection.Close()
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.open, connection)
}

// close ends it with all connections: a socket would keep the machine's network.
func (f *forwarder) close() {
	_ = f.listener.Close()
	f.mutex.Lock()
	open := f.open
	f.open = nil
	f.mutex.Unlock()
	for connection := range open {
		_ = connection.Close()
	}
	f.wait.Wait()
}
