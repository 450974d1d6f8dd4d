// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

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
	for _, child := range descendants(state.PID) {
		if !known[child.PID] {
			add(Component{Name: programName(child), PID: child.PID, About: "process of a pod"})
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
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return goruntime.GOOS != "linux"
	}
	stat, err := proc.Stat()
	return err == nil && stat.State != zombie
}

const zombie = "Z"

// descendants returns the children of a process, and theirs, on Linux.
func descendants(parent int) []procfs.Proc {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	children := map[int][]procfs.Proc{}
	for _, proc := range all {
		if stat, err := proc.Stat(); err == nil && stat.State != zombie { // else it has just ended
			children[stat.PPID] = append(children[stat.PPID], proc)
		}
	}
	found := children[parent]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found
}

// programName is the name of a process' program; the kernel's own name for it is cut after 15 bytes.
func programName(proc procfs.Proc) string {
	if commandLine, err := proc.CmdLine(); err == nil && len(commandLine) > 0 && commandLine[0] != "" {
		return filepath.Base(commandLine[0])
	}
	name, _ := proc.Comm() // empty where it has just ended
	return name
}
