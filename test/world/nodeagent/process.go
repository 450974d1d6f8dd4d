// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Markers in the environment of every process that the agent starts: what a container leaves behind is found by them.
const (
	dirMarker       = "NODEAGENT_DIR"
	containerMarker = "NODEAGENT_CONTAINER_ID"
)

// spawner starts processes from one operating-system thread that lives as long as the spawner: Linux sends the parent
// death signal when the thread that started a process ends, not when the program does.
type spawner struct {
	requests chan func()
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for request := range s.requests {
			request()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread, and with it, on Linux, every process that is left.
func (s *spawner) close() { close(s.requests) }

// command is what to start.
type command struct {
	id   string // container ID
	path string
	args []string // without the program itself
	env  map[string]string
	dir  string
	// user is nil for the agent's own.
	user *credential
	// output takes standard output and standard error.
	output *os.File
}

// credential is the user and groups of a process.
type credential struct {
	uid, gid int64
	groups   []int64
}

// process is a started command.
type process struct {
	id      string
	pid     int
	started time.Time

	// done is closed when the process and what it left behind have ended; exit is set then.
	done chan struct{}
	exit exit

	mu       sync.Mutex
	deadline time.Time // of the termination under way
	killer   *time.Timer
}

// exit says how a process ended.
type exit struct {
	code     int32
	signal   int32
	finished time.Time
}

func (s *spawner) run(c command) (*process, error) {
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // its end has grace, which a context knows not
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = c.output, c.output
	cmd.Env = make([]string, 0, len(c.env)+1)
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, containerMarker+"="+c.id)
	cmd.SysProcAttr = processAttributes(c.user)
	started := time.Now()
	if err := s.start(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.path, err)
	}
	p := &process{id: c.id, pid: cmd.Process.Pid, started: started, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := cmd.Wait()
		killGroup(p.pid)
		killMarked(containerMarker, c.id)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.killer != nil {
			p.killer.Stop()
		}
		p.exit = exitOf(err)
	}()
	return p, nil
}

func exitOf(err error) exit {
	result := exit{finished: time.Now()}
	var failed *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &failed):
		result.code = int32(failed.ExitCode())
		if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			result.signal = int32(status.Signal())
			result.code = 128 + result.signal // as a shell and the container runtimes count
		}
	default:
		result.code = 255
	}
	return result
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal asks the container's first process to end.
func (p *process) signal(signal syscall.Signal) {
	if !p.ended() {
		_ = syscall.Kill(p.pid, signal)
	}
}

// kill ends the whole process group at once.
func (p *process) kill() {
	if !p.ended() {
		killGroup(p.pid)
	}
}

// killBy makes sure that the process has ended by a time; of several the earliest counts.
func (p *process) killBy(deadline time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killer != nil && !deadline.Before(p.deadline) {
		return
	}
	if p.killer != nil {
		p.killer.Stop()
	}
	p.deadline = deadline
	p.killer = time.AfterFunc(time.Until(deadline), p.kill)
}

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
