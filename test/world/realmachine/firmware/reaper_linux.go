// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// reaper starts processes and collects every one that ends, also those whose parents have ended before them: a machine's first process
// inherits them.
type reaper struct {
	mutex sync.Mutex
	ends  map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{ends: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			r.collect()
		}
	}()
	return r
}

func (r *reaper) collect() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		if end, ours := r.ends[pid]; ours {
			delete(r.ends, pid)
			end <- status
		}
	}
}

// run runs a command to its end. What it writes is in the log of that name.
func (r *reaper) run(name string, command *exec.Cmd) error {
	log, err := os.OpenFile(filepath.Join(machineLogs, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	end := make(chan syscall.WaitStatus, 1)
	r.mutex.Lock() // so that it isn't collected before it is known
	if err = command.Start(); err == nil {
		r.ends[command.Process.Pid] = end
	}
	r.mutex.Unlock()
	if err != nil {
		return err
	}
	if status := <-end; status != 0 {
		return fmt.Errorf("%s ended with exit code %d, signal %d", filepath.Base(command.Path), status.ExitStatus(), status.Signal())
	}
	return nil
}

// keep runs a service, and starts it again whenever it ends.
func (r *reaper) keep(name string, command func() (*exec.Cmd, error)) error {
	for {
		service, err := command()
		delay := restartDelay
		switch {
		case errors.Is(err, errNotConfigured):
			delay = poll
		case err != nil:
			return err
		default:
			fmt.Fprintf(os.Stderr, "firmware: starting %s\n", name)
			fmt.Fprintf(os.Stderr, "firmware: %s: %v\n", name, r.run(name, service))
		}
		<-time.After(delay)
	}
}
