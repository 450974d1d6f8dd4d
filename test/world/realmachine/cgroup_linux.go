// SPDX-License-Identifier: Apache-2.0

package realmachine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/autonode-io/autonode/test/world/realmachine/plan"
)

const (
	mountInfo = "/proc/self/mountinfo"
	ownGroups = "/proc/self/cgroup"

	groupsFile  = "cgroup.procs"
	subtreeFile = "cgroup.subtree_control"
)

// hierarchies finds the mounted cgroup hierarchies, and the caller's group in each: a machine's group is made below. mounts is the content of
// /proc/self/mountinfo, groups that of /proc/self/cgroup (proc(5), cgroups(7)).
func hierarchies(mounts, groups string) []plan.Hierarchy {
	own := map[string]string{} // by controller
	for line := range strings.Lines(groups) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 {
			for controller := range strings.SplitSeq(fields[1], ",") {
				own[controller] = fields[2]
			}
		}
	}
	var found []plan.Hierarchy
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		mount := left[4]
		switch right[0] {
		case "cgroup":
			var options []string
			group := ""
			for option := range strings.SplitSeq(right[2], ",") {
				if path, known := own[option]; known {
					options, group = append(options, option), path
				}
			}
			if len(options) > 0 {
				found = append(found, plan.Hierarchy{Mount: mount, Options: options, Group: filepath.Join(mount, group)})
			}
		case "cgroup2":
			// Beside hierarchies of version 1 it has no controllers, and nothing that a kubelet needs.
			if !strings.Contains(mounts, " - cgroup ") {
				found = append(found, plan.Hierarchy{Mount: mount, Group: mount})
			}
		}
	}
	slices.SortFunc(found, func(a, b plan.Hierarchy) int { return strings.Compare(a.Mount, b.Mount) })
	return found
}

// enclose makes the groups of a machine, by a name of its own.
func enclose(name string) ([]plan.Hierarchy, error) {
	mounts, err := os.ReadFile(mountInfo)
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	groups, err := os.ReadFile(ownGroups)
	if err != nil {
		return nil, fmt.Errorf("reading the cgroups: %w", err)
	}
	made := hierarchies(string(mounts), string(groups))
	if len(made) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	for i := range made {
		parent := made[i].Group
		made[i].Group = filepath.Join(parent, name)
		if made[i].Unified() {
			if err := delegate(parent); err != nil {
				return made[:i], err
			}
		}
		if err := os.Mkdir(made[i].Group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return made[:i], fmt.Errorf("making a cgroup: %w", err)
		}
		if slices.Contains(made[i].Options, "cpuset") { // version 1 takes no process before these are set
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(parent, file))
				if err == nil {
					err = os.WriteFile(filepath.Join(made[i].Group, file), value, 0o644)
				}
				if err != nil {
					return made[:i+1], fmt.Errorf("setting %s: %w", file, err)
				}
			}
		}
	}
	return made, nil
}

// delegate lets the groups below one have all of its controllers (version 2).
func delegate(group string) error {
	controllers, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the controllers of %s: %w", group, err)
	}
	var wanted []string
	for controller := range strings.FieldsSeq(string(controllers)) {
		wanted = append(wanted, "+"+controller)
	}
	if err := os.WriteFile(filepath.Join(group, subtreeFile), []byte(strings.Join(wanted, " ")), 0o644); err != nil {
		return fmt.Errorf("delegating the controllers of %s: %w", group, err)
	}
	return nil
}

// removeGroups removes the groups of a machine whose processes have ended, with all groups below. Processes leave their group some time after
// they have been killed, so it tries until the deadline.
func removeGroups(all []plan.Hierarchy, deadline time.Time) error {
	var errs []error
	for _, h := range all {
		tries := time.NewTicker(50 * time.Millisecond)
		for {
			err := removeTree(h.Group)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("removing cgroup %s: %w", h.Group, err))
				break
			}
			<-tries.C
		}
		tries.Stop()
	}
	return errors.Join(errs...)
}

// removeTree removes folders only, the innermost first: a cgroup's files can't be removed.
func removeTree(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(group, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(group); err != nil && !errors.Is(err, syscall.ENOENT) {
		return err
	}
	return nil
}
