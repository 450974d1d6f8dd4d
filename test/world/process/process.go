// SPDX-License-Identifier: Apache-2.0

// Package process runs the world's programs as child processes: each with a log file, none outliving its parent,
// and none dying unnoticed.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// pollInterval is the interval of Wait's checks.
	pollInterval = 25 * time.Millisecond
	// tailLines is the number of a log's lines that an error quotes.
	tailLines = 20
	tailBytes = 64 << 10
)

// Spec of a process.
type Spec struct {
	// Name is unique among the running processes; the log file is named after it.
	Name string
	// Path of the program.
	Path string
	Args []string
	// Env is added to the supervisor's own environment.
	Env []string
	// Address where the process serves, for people.
	Address string
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
}

// Supervisor owns the processes of one world.
type Supervisor struct {
	logDir  string
	changed func()
	spawner *Spawner
	failure chan error

	mu        sync.Mutex
	processes []*Process
	closed    bool
}

// NewSupervisor returns a Supervisor that writes logs to logDir and, if changed isn't nil, calls it after every start and
// end of a process. Stop must be called.
func NewSupervisor(logDir string, changed func()) (*Supervisor, error) {
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return nil, fmt.Errorf("making the log folder: %w", err)
	}
	if changed == nil {
		changed = func() {}
	}
	return &Supervisor{logDir: logDir, changed: changed, spawner: NewSpawner(), failure: make(chan error, 1)}, nil
}

// Process is a started program.
type Process struct {
	Spec
	*Child
	// LogFile has what the process wrote.
	LogFile string

	reported chan struct{}

	mu       sync.Mutex
	stopping bool
	err      error
}

// Start starts a program. When it ends without having been stopped, Failed reports it.
func (s *Supervisor) Start(spec Spec) (*Process, error) {
	p := &Process{Spec: spec, LogFile: filepath.Join(s.logDir, spec.Name+".log"), reported: make(chan struct{})}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	defer log.Close()                                                         // the process has its own
	cmd := exec.CommandContext(context.Background(), spec.Path, spec.Args...) // it lives until Stop
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log

	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("starting %s: the world is stopping", spec.Name)
	}
	if p.Child, err = s.spawner.Start(cmd); err == nil {
		s.processes = append(s.processes, p)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	go s.watch(p)
	s.changed()
	return p, nil
}

func (s *Supervisor) watch(p *Process) {
	err := p.Exit().Err
	if err == nil {
		err = errors.New("exit status 0")
	}
	p.mu.Lock()
	expected := p.stopping
	p.err = fmt.Errorf("%s ended by itself: %w\n%s", p.Name, err, p.tail())
	failure := p.err
	p.mu.Unlock()

	s.mu.Lock()
	s.processes = slices.DeleteFunc(s.processes, func(other *Process) bool { return other == p })
	s.mu.Unlock()
	s.changed()
	close(p.reported)
	if !expected {
		select {
		case s.failure <- failure:
		default: // one is enough, and there may be no receiver
		}
	}
}

// Failed delivers the first unexpected end of a process, with the end of its log.
func (s *Supervisor) Failed() <-chan error { return s.failure }

// List returns what runs, in the order of starting.
func (s *Supervisor) List() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.processes)
}

// Stop stops everything that still runs and returns when nothing runs any more. Nothing can be started afterwards.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	StopAll(s.List()...)
	if !closed {
		s.spawner.Close()
	}
}

// StopAll stops processes at once and waits for all of them.
func StopAll(processes ...*Process) {
	var wg sync.WaitGroup
	for _, p := range processes {
		wg.Go(p.Stop)
	}
	wg.Wait()
}

// Done is closed when the process has ended and the supervisor no longer lists it.
func (p *Process) Done() <-chan struct{} { return p.reported }

// Stop signals the process to end, kills it when its grace is over, and returns when it has gone.
func (p *Process) Stop() {
	p.expectEnd()
	p.Terminate(time.Now().Add(p.Grace))
	<-p.reported
}

// Kill ends the process as a crash does, without a chance to clean up, and returns when it has gone.
func (p *Process) Kill() {
	p.expectEnd()
	p.Child.Kill()
	<-p.reported
}

func (p *Process) expectEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
}

// Freeze stops the process where it is, until Thaw: to others it is a process that hangs.
func (p *Process) Freeze() error { return p.send(syscall.SIGSTOP) }

// Thaw lets a frozen process go on. From then on it may end by itself.
func (p *Process) Thaw() error {
	p.expectEnd()
	return p.send(syscall.SIGCONT)
}

func (p *Process) send(signal syscall.Signal) error {
	if err := p.signal(signal); err != nil {
		return fmt.Errorf("sending %s to %s: %w", signal, p.Name, err)
	}
	return nil
}

// Wait polls ready until it returns nil. It gives up when the process ends or ctx is over, and then reports what was
// wrong last.
func (p *Process) Wait(ctx context.Context, ready func(context.Context) error) error {
	return Poll(ctx, p.Name, p.reported, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err
	}, ready)
}

// Poll polls ready until it returns nil, at a short interval. It gives up when ctx is over, or when aborted is closed, with
// the error that why returns then.
func Poll(ctx context.Context, what string, aborted <-chan struct{}, why func() error, ready func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-aborted:
			return why()
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// tail is the end of the log.
func (p *Process) tail() string {
	end, err := Tail(p.LogFile, tailLines, tailBytes)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("end of %s:\n  %s", p.LogFile, strings.ReplaceAll(strings.TrimSpace(end), "\n", "\n  "))
}
