// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
)

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

// UsageOf reads the usage of a process from Linux.
func UsageOf(pid int) (Usage, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return Usage{}, fmt.Errorf("finding process %d: %w", pid, err)
	}
	status, err := proc.NewStatus()
	if err != nil {
		return Usage{}, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return Usage{}, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return Usage{
		Resident: int64(status.VmRSS), Peak: int64(status.VmHWM),
		CPU: time.Duration(stat.CPUTime() * float64(time.Second)),
	}, nil
}
