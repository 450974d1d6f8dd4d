// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os/exec"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"
)

// Spawner starts processes from one operating-system thread that lives as long as the Spawner. Linux sends the
// parent-death signal when the *thread* that forked a child ends, and Go ends threads as it likes.
type Spawner struct{ requests chan func() }

// NewSpawner returns a Spawner. Close must be called.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan func())}
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for request := range s.requests {
			request()
		}
	}()
	return s
}

// Close ends the thread and with it, on Linux, every child that still runs.
func (s *Spawner) Close() { close(s.requests) }

// Start starts a command in a process group of its own.
func (s *Spawner) Start(cmd *exec.Cmd) (*Child, error) {
	cmd.SysProcAttr = attributes()
	result := make(chan error)
	s.requests <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	c := &Child{PID: cmd.Process.Pid, Started: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		err := cmd.Wait()
		_ = syscall.Kill(-c.PID, syscall.SIGKILL) // the rest of its process group
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.killer != nil {
			c.killer.Stop()
		}
		c.exit = exitOf(err)
	}()
	return c, nil
}

// Child is a started process.
type Child struct {
	PID     int
	Started time.Time

	done chan struct{}
	exit Exit // valid when done is closed

	mu       sync.Mutex
	deadline time.Time // of the termination in progress
	killer   *time.Timer
}

// Exit is the end of a process.
type Exit struct {
	// Err is nil after exit code 0.
	Err error
	// Code is the exit code, or 128 plus the signal as a shell and the container runtimes count.
	Code, Signal int32
	Finished     time.Time
}

func exitOf(err error) Exit {
	exit := Exit{Err: err, Finished: time.Now()}
	var failed *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &failed):
		exit.Code = int32(failed.ExitCode())
		if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			exit.Signal = int32(status.Signal())
			exit.Code = 128 + exit.Signal
		}
	default:
		exit.Code = 255
	}
	return exit
}

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Ended reports whether the process has ended.
func (c *Child) Ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Exit waits for the end of the process and returns how it ended.
func (c *Child) Exit() Exit {
	<-c.done
	return c.exit
}

// Terminate sends SIGTERM, and SIGKILL at the deadline. A later call can only bring the deadline forward.
func (c *Child) Terminate(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killer != nil && !deadline.Before(c.deadline) {
		return
	}
	if c.killer == nil {
		_ = c.signal(syscall.SIGTERM)
	} else {
		c.killer.Stop()
	}
	c.deadline = deadline
	c.killer = time.AfterFunc(time.Until(deadline), c.Kill)
}

// Kill sends SIGKILL and doesn't wait.
func (c *Child) Kill() { _ = c.signal(syscall.SIGKILL) }

// signal reaches the whole process group, so that a child of the child gets it too.
func (c *Child) signal(signal syscall.Signal) error {
	if c.Ended() {
		return syscall.ESRCH
	}
	return syscall.Kill(-c.PID, signal)
}
