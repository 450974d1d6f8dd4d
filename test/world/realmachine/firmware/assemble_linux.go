// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/autonode-io/autonode/test/world/realmachine/plan"
)

// own are folders that the machine has to itself, empty. Those of containers can't be on an overlay, since they hold overlays.
var own = []string{"/run", "/etc/cni", "/etc/kubernetes", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log"}

// kernelSettings are settings of the whole host that a kubelet writes, and what they are in the machine: plain files.
var kernelSettings = map[string]string{
	"/proc/sys/vm/overcommit_memory": "1\n", "/proc/sys/kernel/panic": "10\n", "/proc/sys/kernel/panic_on_oops": "1\n",
}

// machineLogs is where the machine has the host's folder for its logs.
const machineLogs = "/var/log/machine"

// assemble makes the machine's file systems and takes them for its own.
func assemble(description plan.Machine) error {
	// What is mounted from now on stays in the machine.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	memory := description.Root
	root := filepath.Join(memory, "root")
	if err := mount("tmpfs", memory, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, dir := range []string{"upper", "work", "own"} {
		if err := os.MkdirAll(filepath.Join(memory, dir), 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0,
		fmt.Sprintf("lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work", memory)); err != nil {
		return err
	}
	for _, dir := range own {
		folder := filepath.Join(memory, "own", strings.ReplaceAll(dir, "/", "_"))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := mount(folder, filepath.Join(root, dir), "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, each := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"proc", "/proc", "proc", 0},
		{"sysfs", "/sys", "sysfs", 0},
		{"/dev", "/dev", "", syscall.MS_BIND | syscall.MS_REC},
		{description.Logs, machineLogs, "", syscall.MS_BIND},
	} {
		if err := mount(each.source, filepath.Join(root, each.target), each.kind, each.flags, ""); err != nil {
			return err
		}
	}
	if err := mountGroups(root, description.Hierarchies); err != nil {
		return err
	}
	if err := settle(root, memory, description); err != nil {
		return err
	}
	return enter(root)
}

// mountGroups mounts the cgroup hierarchies, of which the machine sees its own part.
func mountGroups(root string, hierarchies []plan.Hierarchy) error {
	const base = "/sys/fs/cgroup"
	if len(hierarchies) == 1 && hierarchies[0].Unified() {
		if err := mount("cgroup2", filepath.Join(root, base), "cgroup2", 0, ""); err != nil {
			return err
		}
		return leaveRoot(filepath.Join(root, base))
	}
	if err := mount("tmpfs", filepath.Join(root, base), "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		options := strings.Join(hierarchy.Options, ",")
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		if err := mount("cgroup", filepath.Join(root, base, filepath.Base(hierarchy.Mount)), "cgroup", 0, options); err != nil {
			return err
		}
	}
	return nil
}

// leaveRoot has the machine's processes in a group below the root: in version 2 a group with processes gives no controllers to those below it.
func leaveRoot(base string) error {
	group := filepath.Join(base, "init")
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("entering a cgroup: %w", err)
	}
	controllers, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var wanted []string
	for controller := range strings.FieldsSeq(string(controllers)) {
		wanted = append(wanted, "+"+controller)
	}
	return os.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte(strings.Join(wanted, " ")), 0o644)
}

// settle writes what the machine's image and its cloud would have put in place.
func settle(root, memory string, description plan.Machine) error {
	for path, value := range kernelSettings {
		file := filepath.Join(memory, "own", filepath.Base(path))
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, filepath.Join(root, path), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("hiding %s: %w", path, err)
		}
	}
	if err := syscall.Sethostname([]byte(description.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	for path, content := range map[string]string{
		"/etc/hostname": description.Hostname + "\n",
		"/etc/hosts":    "127.0.0.1 localhost\n" + description.Address + " " + description.Hostname + "\n",
		// The machine has a network of its own, so that this isn't the host's.
		"/proc/sys/net/ipv4/ip_forward":      "1\n",
		"/etc/cni/net.d/10-machine.conflist": fmt.Sprintf(networkFormat, description.Pods),
		"/etc/containerd/config.toml":        fmt.Sprintf(containerdFormat, description.Pause, description.Networking),
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	bin := filepath.Join(root, "/usr/local/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for name, path := range description.Programs {
		link := filepath.Join(bin, name)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(path, link); err != nil {
			return err
		}
	}
	return nil
}

// enter makes root the root of this process and of all that it starts, and gives up the host's.
func enter(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is put over the new one, and taken away from there (pivot_root(2)).
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// What the kubelet mounts for a container has to arrive there.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing the mounts: %w", err)
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	return nil
}

// networkFormat gives each pod an address and a cable to its machine; %s is the network.
const networkFormat = `{"cniVersion": "0.4.0", "name": "machine", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

// containerdFormat is understood by containerd 1.6 and later.
const containerdFormat = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "%s"
  conf_dir = "/etc/cni/net.d"
`
