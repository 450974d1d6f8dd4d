// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package nodeagent

import "syscall"

// processAttributes can't tie a process to the agent's life here: only Stop ends it.
func processAttributes(user *credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: systemCredential(user)}
}

// killMarked finds nothing: other processes' environments can't be read here.
func killMarked(string, string) int { return 0 }
