// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package process

import "syscall"

// attributes give the child a process group of its own, so that Ctrl-C reaches only the world, which then stops its
// children in order. This system can't kill them should the world be killed: `autonode-dev world down` does.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
