// SPDX-License-Identifier: Apache-2.0

package process

import "syscall"

// attributes give the child a process group of its own, so that Ctrl-C reaches only the world, which then stops its
// children in order; and have the kernel kill the child should the world be killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
