// SPDX-License-Identifier: Apache-2.0

// Package room finds out whether a machine has room for a world before it starts. A program that runs out of inotify
// instances or memory in the middle fails with a message that doesn't name the cause.
package room

import (
	"errors"
	"fmt"
)

// What a world needs, measured.
const (
	// inotifyPerCluster is how many instances the programs of one cluster have: they watch their certificates.
	inotifyPerCluster = 7
	memory            = 1300 << 20
	memoryPerCluster  = 400 << 20
	// files is how many files one API server may have open in a busy world.
	files = 4096
)

// Free is what a machine has left for this user.
type Free struct {
	// Inotify is the number of inotify instances, InotifyLimit that of all.
	Inotify, InotifyLimit int
	// Memory that is available, in bytes.
	Memory int64
	// Files is how many files a process may open.
	Files uint64
}

// Check returns an error that reports what a world of that many clusters lacks, and what to do. Where the machine doesn't
// measure what is left, as on macOS, it returns nil.
func Check(clusters int) error {
	free, ok := read()
	if !ok {
		return nil
	}
	return free.check(clusters)
}

func (f Free) check(clusters int) error {
	var errs []error
	if needed := inotifyPerCluster * clusters; f.Inotify < needed {
		errs = append(errs, fmt.Errorf("%d inotify instances are needed, and %d of %d are left: stop other worlds, or raise the limit with `sysctl -w fs.inotify.max_user_instances=%d`",
			needed, max(0, f.Inotify), f.InotifyLimit, 4*f.InotifyLimit))
	}
	if needed := int64(memory + clusters*memoryPerCluster); f.Memory < needed {
		errs = append(errs, fmt.Errorf("%d MiB of memory are needed, and %d MiB are available", needed>>20, f.Memory>>20))
	}
	if f.Files < files {
		errs = append(errs, fmt.Errorf("a process may open %d files, and an API server needs %d: raise the limit with `ulimit -n %d`", f.Files, files, files))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("no room for %d clusters: %w", clusters, errors.Join(errs...))
}
