// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/autonode-io/autonode/test/world/process"
)

// Status is a world's state and what its processes use.
type Status struct {
	State
	Components []ComponentStatus `json:"components"`
	// Memory is the resident memory of all processes, in bytes.
	Memory int64 `json:"memory"`
}

// ComponentStatus is a component and what it uses.
type ComponentStatus struct {
	Component
	Running bool `json:"running"`
	// Memory is the resident memory, in bytes; 0 for a part of another process.
	Memory int64 `json:"memory,omitempty"`
}

// ReadStatus reads the status of the world in dir. It wraps ErrNoWorld if none runs.
func ReadStatus(dir string) (Status, error) {
	running, err := Running(dir)
	if err != nil {
		return Status{}, err
	}
	if !running {
		return Status{}, fmt.Errorf("%w: %s", ErrNoWorld, dir)
	}
	state, err := ReadState(dir)
	if err != nil {
		return Status{}, err
	}
	status := Status{State: state}
	known := map[int]bool{}
	add := func(c Component) {
		cs := ComponentStatus{Component: c, Running: alive(c.PID)}
		if !known[c.PID] {
			known[c.PID] = true
			if usage, err := process.UsageOf(c.PID); err == nil { // else it has just ended, or this isn't Linux
				cs.Memory = usage.Resident
			}
			status.Memory += cs.Memory
		}
		status.Components = append(status.Components, cs)
	}
	add(Component{Name: "world", PID: state.PID, About: "this world's own process"})
	for _, c := range state.Components {
		add(c)
	}
	// What is left are the processes of pods.
	for _, child := range children(state.PID) {
		if !known[child.pid] {
			add(Component{Name: child.name, PID: child.pid, About: "process of a pod"})
		}
	}
	return status, nil
}

// SummaryLine is one line for a person who has just started a world.
type SummaryLine struct{ Name, Address, About string }

// Summary lists the clusters and their parts, with addresses.
func (s State) Summary() []SummaryLine {
	var lines []SummaryLine
	var inManagement []string
	for _, c := range s.Components {
		if strings.HasPrefix(c.About, "Cluster API") && len(inManagement) == 0 {
			inManagement = append(inManagement, c.About)
		}
		if c.PID == s.PID && c.Address == "" {
			inManagement = append(inManagement, c.Name)
		}
	}
	for _, c := range s.Components {
		if name, ok := strings.CutSuffix(c.Name, apiServerSuffix); ok {
			line := SummaryLine{name, c.Address, c.About}
			if name == Management {
				line.About = strings.Join(append([]string{c.About}, inManagement...), ", ")
				lines = append([]SummaryLine{line}, lines...)
			} else {
				line.About += ", no nodes"
				lines = append(lines, line)
			}
		}
	}
	for _, c := range s.Components {
		if c.PID == s.PID && c.Address != "" {
			lines = append(lines, SummaryLine{c.Name, c.Address, c.About})
		}
	}
	return lines
}

// alive reports whether a process runs. One that has ended and that its parent doesn't look after is on Linux a zombie, and
// not alive.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return runtime.GOOS != "linux"
	}
	state, ok := parseStat(data)
	return ok && state.state != "Z"
}

// stat has the fields of /proc/<pid>/stat: "<pid> (<name>) <state> <parent> …"; the name may contain any character.
type stat struct {
	pid, parent int
	name, state string
}

func parseStat(data []byte) (stat, bool) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 2 {
		return stat{}, false
	}
	pid, errPID := strconv.Atoi(strings.TrimSpace(string(data[:open])))
	parent, errParent := strconv.Atoi(fields[1])
	return stat{pid, parent, string(data[open+1 : end]), fields[0]}, errPID == nil && errParent == nil
}

type child struct {
	pid  int
	name string
}

// children returns the descendants of a process, on Linux.
func children(parent int) []child {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	byParent := map[int][]child{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		if s, ok := parseStat(data); ok && s.state != "Z" {
			byParent[s.parent] = append(byParent[s.parent], child{s.pid, programName(path, s.name)})
		}
	}
	var all []child
	for queue := []int{parent}; len(queue) > 0; queue = queue[1:] {
		for _, c := range byParent[queue[0]] {
			all = append(all, c)
			queue = append(queue, c.pid)
		}
	}
	return all
}

// programName is the name of a process' program; the kernel's own name for it is cut after 15 bytes.
func programName(stat, short string) string {
	commandLine, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
	if err != nil {
		return short
	}
	program, _, _ := strings.Cut(string(commandLine), "\x00")
	if program == "" {
		return short
	}
	return filepath.Base(program)
}
