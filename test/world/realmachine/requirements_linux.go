// SPDX-License-Identifier: Apache-2.0

package realmachine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// required are the programs of the host that machines use, and the Debian packages that have them.
var required = []struct{ program, debian string }{
	{"containerd", "containerd"},
	{"containerd-shim-runc-v2", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"ip", "iproute2"},
	{"mount", "mount"},
	{"conntrack", "conntrack"},
	{"iptables", "iptables"},
}

// networkingFolders are where distributions have CNI plugins.
var networkingFolders = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// plugins are those that a machine's pods need.
var plugins = []string{"loopback", "ptp", "host-local"}

// Missing returns an error that names everything that the host lacks to run machines, and what to do.
func Missing() error {
	var problems []error
	var packages []string
	lack := func(what, debian string) {
		problems = append(problems, errors.New(what))
		if debian != "" && !strings.Contains(" "+strings.Join(packages, " ")+" ", " "+debian+" ") {
			packages = append(packages, debian)
		}
	}
	if os.Geteuid() != 0 {
		lack("it needs root: namespaces, mounts and cgroups are made", "")
	}
	for _, r := range required {
		if _, err := exec.LookPath(r.program); err != nil {
			lack(r.program+" isn't on the path", r.debian)
		}
	}
	if networking() == "" {
		lack(fmt.Sprintf("the CNI plugins %s are in none of %s", strings.Join(plugins, ", "), strings.Join(networkingFolders, ", ")), "containernetworking-plugins")
	}
	for _, filesystem := range []string{"overlay", "tmpfs"} {
		known, err := os.ReadFile("/proc/filesystems")
		if err != nil || !strings.Contains(string(known), "\t"+filesystem+"\n") {
			lack("the kernel has no file system "+filesystem+" (modprobe "+filesystem+")", "")
		}
	}
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		lack("the kubelet needs /dev/kmsg: "+err.Error(), "")
	}
	mounts, err := os.ReadFile(mountInfo)
	if groups, ownErr := os.ReadFile(ownGroups); err != nil || ownErr != nil || len(hierarchies(string(mounts), string(groups))) == 0 {
		lack("no cgroup hierarchy is mounted", "")
	}
	if len(problems) == 0 {
		return nil
	}
	message := "this host can't run real machines"
	if len(packages) > 0 {
		message += "; on Debian: apt-get install " + strings.Join(packages, " ")
	}
	return fmt.Errorf("%s\n%w", message, errors.Join(problems...))
}

// networking returns the folder of the CNI plugins, or "".
func networking() string {
	for _, folder := range networkingFolders {
		complete := true
		for _, plugin := range plugins {
			if _, err := os.Stat(filepath.Join(folder, plugin)); err != nil {
				complete = false
			}
		}
		if complete {
			return folder
		}
	}
	return ""
}
