// SPDX-License-Identifier: Apache-2.0

// Program firmware is the first process of a real machine: its firmware, its cloud-init and its init system. Package realmachine starts it, in
// namespaces of its own.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"syscall"

	"github.com/autonode-io/autonode/test/world/realmachine/plan"
)

// enclosed: the process is in its cgroups.
const enclosed = "AUTONODE_ENCLOSED=1"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "firmware:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("the file with the machine's description is wanted as the only argument")
	}
	raw, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	description := plan.Machine{}
	if err := json.Unmarshal(raw, &description); err != nil {
		return fmt.Errorf("reading %s: %w", os.Args[1], err)
	}
	if !slices.Contains(os.Environ(), enclosed) {
		return enclose(description)
	}
	userData, err := os.ReadFile(description.UserData)
	if err != nil {
		return err
	}
	if err := assemble(description); err != nil {
		return err
	}
	return boot(description, userData)
}

// enclose waits for the power, and starts the program again within the machine's cgroups, which it then takes for the roots.
func enclose(description plan.Machine) error {
	on := make([]byte, len("on\n"))
	if _, err := io.ReadFull(os.Stdin, on); err != nil {
		return fmt.Errorf("waiting to be switched on: %w", err)
	}
	goruntime.LockOSThread() // the namespace is the thread's, and the thread becomes the new program's first
	for _, hierarchy := range description.Hierarchies {
		if err := os.WriteFile(filepath.Join(hierarchy.Group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("entering a cgroup: %w", err)
		}
	}
	if err := syscall.Unshare(syscall.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), enclosed))
}
