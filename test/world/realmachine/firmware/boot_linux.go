// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/realmachine/plan"
)

const (
	// poll is the interval at which it looks for what another program brings, and restartDelay the time between two starts of a service.
	poll         = 100 * time.Millisecond
	restartDelay = time.Second
	// containerdStart bounds the start of containerd.
	containerdStart = time.Minute

	containerdSocket = "/run/containerd/containerd.sock"
	kubeletConfig    = "/var/lib/kubelet/config.yaml"
	// kubeadmFlags is what kubeadm writes last, and extraFlags the administrator's, as in kubeadm's unit of systemd (10-kubeadm.conf).
	kubeadmFlags = "/var/lib/kubelet/kubeadm-flags.env"
	extraFlags   = "/etc/default/kubelet"
)

// boot starts the services and carries out the bootstrap data. It returns when the machine is to end.
func boot(description plan.Machine, userData []byte) error {
	script, err := bootstrap.ReadScript(userData, bootstrap.Instance{
		Hostname: description.Hostname, ProviderID: description.ProviderID, Zone: description.Zone, Region: description.Region,
	})
	if err != nil {
		return fmt.Errorf("reading the bootstrap data: %w", err)
	}
	processes := newReaper()
	failed := make(chan error, 3)
	go func() {
		failed <- processes.keep("containerd", func() (*exec.Cmd, error) {
			return command("containerd", "--config=/etc/containerd/config.toml"), nil
		})
	}()
	if err := await(containerdStart, func() bool { _, err := os.Stat(containerdSocket); return err == nil }); err != nil {
		return fmt.Errorf("waiting for containerd: %w", err)
	}
	// Its socket may be there before it answers.
	if err := await(containerdStart, func() bool {
		return processes.run("image", command("ctr", "--namespace=k8s.io", "images", "import", description.PauseArchive)) == nil
	}); err != nil {
		return fmt.Errorf("importing the sandboxes' image: %w", err)
	}
	go func() { failed <- processes.keep("kubelet", kubelet) }()
	if err := carryOut(script, processes); err != nil {
		return err
	}
	go func() { // the hypervisor holds the other end
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- errors.Join(errors.New("the power is gone"), err)
	}()
	return <-failed
}

// await calls a function until it returns true.
func await(timeout time.Duration, ready func() bool) error {
	tries, deadline := time.NewTicker(poll), time.After(timeout)
	defer tries.Stop()
	for !ready() {
		select {
		case <-tries.C:
		case <-deadline:
			return fmt.Errorf("nothing within %s", timeout)
		}
	}
	return nil
}

// carryOut does what cloud-init does with write_files and runcmd: the commands are one script, which goes on after a failure.
func carryOut(script *bootstrap.Script, processes *reaper) error {
	for _, file := range script.Files {
		if err := write(file); err != nil {
			return fmt.Errorf("writing %s: %w", file.Path, err)
		}
	}
	const path = "/var/lib/cloud/instance/scripts/runcmd"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(shell(script.Commands)), 0o700); err != nil {
		return err
	}
	if err := processes.run("cloud-init", command(path)); err != nil {
		fmt.Fprintln(os.Stderr, "firmware: runcmd:", err) // as cloud-init: the machine stays up, for whoever looks at it
	}
	return nil
}

// shell is a script of all commands.
func shell(commands [][]string) string {
	lines := []string{"#!/bin/sh"}
	for _, command := range commands {
		if len(command) == 1 {
			lines = append(lines, command[0])
			continue
		}
		quoted := make([]string, 0, len(command))
		for _, word := range command {
			quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
		}
		lines = append(lines, strings.Join(quoted, " "))
	}
	return strings.Join(lines, "\n") + "\n"
}

func write(file bootstrap.File) error {
	if file.Encoding != "" {
		return fmt.Errorf("encoding %q isn't known", file.Encoding)
	}
	permissions := os.FileMode(0o644)
	if file.Permissions != "" {
		mode, err := strconv.ParseUint(file.Permissions, 8, 12)
		if err != nil {
			return fmt.Errorf("permissions %q are no octal number", file.Permissions)
		}
		permissions = os.FileMode(mode)
	}
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if file.Append {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	content, err := os.OpenFile(file.Path, flags, permissions)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := content.WriteString(file.Content); err != nil {
		return err
	}
	if err := content.Chmod(permissions); err != nil { // whatever the umask is
		return err
	}
	if file.Owner == "" {
		return nil
	}
	name, group, _ := strings.Cut(file.Owner, ":")
	owner, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	if group != "" {
		found, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		gid, _ = strconv.Atoi(found.Gid)
	}
	return content.Chown(uid, gid)
}

// errNotConfigured: kubeadm hasn't written the kubelet's configuration yet. A unit of systemd would crash until it has.
var errNotConfigured = errors.New("the kubelet isn't configured yet")

// kubelet is its command as in kubeadm's unit of systemd.
func kubelet() (*exec.Cmd, error) {
	if info, err := os.Stat(kubeletConfig); err != nil || info.Size() == 0 {
		return nil, errNotConfigured
	}
	flags, err := readFlags(kubeadmFlags, "KUBELET_KUBEADM_ARGS")
	if err != nil {
		return nil, errNotConfigured
	}
	extra, err := readFlags(extraFlags, "KUBELET_EXTRA_ARGS")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := append([]string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=" + kubeletConfig,
	}, flags...)
	return command("kubelet", append(args, extra...)...), nil
}

// command is one that runs for as long as it likes: the machine's programs end with the machine.
func command(name string, args ...string) *exec.Cmd {
	return exec.CommandContext(context.Background(), name, args...)
}

// readFlags reads a variable of an environment file as systemd does: the value may be quoted, and its words are flags.
func readFlags(path, variable string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		value, found := strings.CutPrefix(strings.TrimSpace(line), variable+"=")
		if !found {
			continue
		}
		if strings.HasPrefix(value, `"`) {
			if value, err = strconv.Unquote(value); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, variable, err)
			}
		}
		return strings.Fields(value), nil
	}
	return nil, fmt.Errorf("%s has no %s", path, variable)
}
