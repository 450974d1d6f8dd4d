// SPDX-License-Identifier: Apache-2.0

package room

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// read reads what is left from /proc.
func read() (Free, bool) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return Free{}, false
	}
	f := Free{}
	if f.InotifyLimit, err = strconv.Atoi(strings.TrimSpace(string(limit))); err != nil {
		return Free{}, false
	}
	f.Inotify = f.InotifyLimit - inotifyInUse()
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Free{}, false
	}
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return Free{}, false
			}
			f.Memory = kilobytes << 10
		}
	}
	var open syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &open); err != nil {
		return Free{}, false
	}
	f.Files = open.Max // which Go's and Kubernetes' programs raise their own to
	return f, f.Memory > 0
}

// inotifyInUse counts this user's inotify instances.
func inotifyInUse() (count int) {
	user := uint32(os.Getuid())
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		var stat syscall.Stat_t
		if err := syscall.Stat(process, &stat); err != nil || stat.Uid != user {
			continue
		}
		open, _ := filepath.Glob(process + "/fd/*")
		for _, file := range open {
			if target, err := os.Readlink(file); err == nil && target == "anon_inode:inotify" {
				count++
			}
		}
	}
	return count
}
