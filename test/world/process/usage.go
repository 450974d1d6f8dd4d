// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks of CPU time a second, in /proc: USER_HZ, which is 100 on every architecture that Go knows.
const ticks = 100

// Usage of a process.
type Usage struct {
	// Resident and Peak memory, in bytes. Peak is that since the process began, or since ResetPeak.
	Resident, Peak int64
	// CPU time, in the kernel and outside.
	CPU time.Duration
}

// ResetPeak lets a process's Usage.Peak begin again with what it has now: https://docs.kernel.org/filesystems/proc.html, clear_refs.
func ResetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("resetting the peak memory of process %d: %w", pid, err)
	}
	return nil
}

// UsageOf asks Linux about a process.
func UsageOf(pid int) (Usage, error) {
	u := Usage{}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		target := map[string]*int64{"VmRSS": &u.Resident, "VmHWM": &u.Peak}[name]
		if target == nil {
			continue
		}
		kibibytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return u, fmt.Errorf("reading the memory of process %d: %w", pid, err)
		}
		*target = kibibytes << 10
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	// The program's name is in parentheses and may hold anything. Behind it, user and system time are the twelfth and thirteenth.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("reading the CPU time of process %d: %q", pid, stat)
	}
	for _, field := range fields[11:13] {
		spent, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
		}
		u.CPU += time.Duration(spent) * time.Second / ticks
	}
	return u, nil
}
