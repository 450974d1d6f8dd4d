// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

func processAttributes(user *credential) *syscall.SysProcAttr {
	// The signal comes when the spawner's thread ends: with the agent's process, however that dies.
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: systemCredential(user)}
}

// killMarked kills every process that has NAME=value in its environment: what a container left behind in another
// process group. It returns how many it found.
func killMarked(name, value string) int {
	marker := []byte(name + "=" + value)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	found := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // gone, or another user's
		}
		for variable := range bytes.SplitSeq(content, []byte{0}) {
			if !bytes.Equal(variable, marker) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				found++
			}
		}
	}
	return found
}
