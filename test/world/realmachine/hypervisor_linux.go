// SPDX-License-Identifier: Apache-2.0

package realmachine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/autonode-io/autonode/test/world/infrastructure"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/realmachine/plan"
	"github.com/autonode-io/autonode/test/world/registry"
)

const (
	// removal bounds the end of a machine: its processes are killed, and the kernel takes some time to remove all of them.
	removal = 30 * time.Second
	// pods is the network of each machine's pods. Machines don't reach each other's.
	pods = "10.244.0.0/24"
	// pauseImage is the image of pods' sandboxes, which machines bring.
	pauseImage = "autonode.local/pause:1"

	firmwareProgram = "firmware"
	workloadProgram = "workload"
)

// Config of a Hypervisor.
type Config struct {
	// Dir is an empty folder for machines, and Logs one for what they log; it stays.
	Dir, Logs string
	// Source is the folder of the module that this package is in: the programs of machines are built from it.
	Source string
	// Node has kubeadm and the kubelet.
	Node programs.Node
}

// Hypervisor runs machines.
type Hypervisor struct {
	config     Config
	networking string

	mutex    sync.Mutex
	reach    []string
	machines map[string]*machine
	closed   bool
}

var _ infrastructure.RealMachines = (*Hypervisor)(nil)

// machine is one that runs or is about to.
type machine struct {
	// busy is held while it is started or ended.
	busy   sync.Mutex
	id     string
	cable  cable
	dir    string
	groups []plan.Hierarchy
	// process is nil until it was started, and ended is closed when it has.
	process    *exec.Cmd
	ended      chan struct{}
	forwarders []*forwarder
	gone       bool
}

// New returns a hypervisor without machines. It builds the programs of machines, and fails with Missing's error where the host can't run any.
func New(ctx context.Context, config Config) (*Hypervisor, error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	for _, dir := range []string{config.Dir, config.Logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("making a folder for machines: %w", err)
		}
	}
	h := &Hypervisor{config: config, networking: networking(), machines: map[string]*machine{}}
	if _, err := programs.Go(ctx, config.Source, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", config.Dir+string(filepath.Separator),
		"./world/realmachine/"+firmwareProgram, "./world/realmachine/"+workloadProgram); err != nil {
		return nil, fmt.Errorf("building the programs of machines: %w", err)
	}
	image, err := registry.PackProgram(h.Workload(), workloadProgram, nil)
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(pauseImage)
	if err != nil {
		return nil, fmt.Errorf("naming the sandboxes' image: %w", err)
	}
	if err := tarball.WriteToFile(h.path("pause.tar"), tag, image); err != nil {
		return nil, fmt.Errorf("writing the sandboxes' image: %w", err)
	}
	return h, nil
}

func (h *Hypervisor) path(name string) string { return filepath.Join(h.config.Dir, name) }

// Workload is the path of a static program that serves, to be packed into images.
func (h *Hypervisor) Workload() string { return h.path(workloadProgram) }

// Reach lets machines that are booted from now on connect to addresses of the host's loopback, each as "127.0.0.1:6443".
func (h *Hypervisor) Reach(addresses ...string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.reach = append(h.reach, addresses...)
}

// Machines are the IDs of the machines that there are.
func (h *Hypervisor) Machines() []string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	ids := make([]string, 0, len(h.machines))
	for id := range h.machines {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Address implements infrastructure.RealMachines.
func (h *Hypervisor) Address(ctx context.Context, id string) (string, error) {
	m, err := h.machine(ctx, id)
	if err != nil {
		return "", err
	}
	return m.cable.machine.String(), nil
}

// machine returns the machine of that ID; a new one has an address and doesn't run.
func (h *Hypervisor) machine(ctx context.Context, id string) (*machine, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.closed {
		return nil, errors.New("the hypervisor has stopped")
	}
	if m := h.machines[id]; m != nil {
		return m, nil
	}
	cable, err := newCable(ctx)
	if err != nil {
		return nil, err
	}
	m := &machine{id: id, cable: cable, dir: h.path(id)}
	h.machines[id] = m
	return m, nil
}

// Boot implements infrastructure.RealMachines.
func (h *Hypervisor) Boot(ctx context.Context, boot infrastructure.Boot) error {
	m, err := h.machine(ctx, boot.ID)
	if err != nil {
		return err
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	switch {
	case m.gone:
		return fmt.Errorf("machine %s has ended", m.id)
	case m.process != nil:
		return nil
	}
	if err := h.start(ctx, m, boot); err != nil {
		err = errors.Join(fmt.Errorf("starting machine %s: %w", boot.Hostname, err), m.end())
		m.process, m.groups = nil, nil // the next attempt has the same address
		return err
	}
	return nil
}

func (h *Hypervisor) start(ctx context.Context, m *machine, boot infrastructure.Boot) (err error) {
	if boot.Version != h.config.Node.Version {
		return fmt.Errorf("no image has Kubernetes %s; %s is there", boot.Version, h.config.Node.Version)
	}
	logs := filepath.Join(h.config.Logs, boot.Hostname)
	for _, dir := range []string{filepath.Join(m.dir, "root"), logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "user-data"), boot.UserData, 0o600); err != nil {
		return err
	}
	if m.groups, err = enclose("autonode-" + m.id); err != nil {
		return err
	}
	description, err := json.Marshal(plan.Machine{
		Root: filepath.Join(m.dir, "root"), Logs: logs, UserData: filepath.Join(m.dir, "user-data"),
		Hostname: boot.Hostname, ProviderID: boot.ProviderID, Zone: boot.Zone, Region: boot.Region,
		Address: m.cable.machine.String(), Pods: pods, Hierarchies: m.groups, Networking: h.networking,
		PauseArchive: h.path("pause.tar"), Pause: pauseImage,
		Programs: map[string]string{"kubeadm": h.config.Node.Kubeadm(), "kubelet": h.config.Node.Kubelet()},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(m.dir, "description.json")
	if err := os.WriteFile(file, description, 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(logs, "firmware.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()                                                                   // the machine has its own
	process := exec.CommandContext(context.Background(), h.path(firmwareProgram), file) // it lives until its end
	process.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true,
	}
	power, err := process.StdinPipe() // the machine starts when it is closed, and ends when the hypervisor does
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.process, m.ended = process, ended
	go func() {
		defer close(ended)
		_ = process.Wait()
	}()
	if err := m.cable.plug(ctx, process.Process.Pid); err != nil {
		return err
	}
	h.mutex.Lock()
	reach := slices.Clone(h.reach)
	h.mutex.Unlock()
	for _, address := range reach {
		f, err := forward(context.WithoutCancel(ctx), process.Process.Pid, address)
		if err != nil {
			return err
		}
		m.forwarders = append(m.forwarders, f)
	}
	_, err = io.WriteString(power, "on\n")
	return err
}

// PowerOff implements infrastructure.RealMachines.
func (h *Hypervisor) PowerOff(_ context.Context, id string) error {
	h.mutex.Lock()
	m := h.machines[id]
	h.mutex.Unlock()
	if m == nil {
		return nil
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	m.gone = true
	if err := m.end(); err != nil {
		return fmt.Errorf("ending machine %s: %w", id, err)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	delete(h.machines, id)
	return nil
}

// end kills all processes of a machine, with the first of them, and removes what it had. It may be called again.
func (m *machine) end() error {
	for _, f := range m.forwarders {
		f.close()
	}
	m.forwarders = nil
	if m.process != nil {
		_ = m.process.Process.Kill()
		select {
		case <-m.ended:
		case <-time.After(removal):
			return fmt.Errorf("process %d of it doesn't end", m.process.Process.Pid)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), removal)
	defer cancel()
	return errors.Join(
		m.cable.unplug(ctx),
		removeGroups(m.groups, time.Now().Add(removal)),
		os.RemoveAll(m.dir),
	)
}

// Close ends all machines. No other is started.
func (h *Hypervisor) Close() error {
	h.mutex.Lock()
	h.closed = true
	h.mutex.Unlock()
	var errs []error
	for _, id := range h.Machines() {
		errs = append(errs, h.PowerOff(context.Background(), id))
	}
	return errors.Join(errs...)
}

// Leftovers names what is left on the host of machines that the hypervisor has had: mounts, cables and cgroups. There is nothing after Close.
func (h *Hypervisor) Leftovers() ([]string, error) {
	var left []string
	mounts, err := os.ReadFile(mountInfo)
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+h.config.Dir+"/") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	cables, err := filepath.Glob("/sys/class/net/" + interfacePrefix + "*")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile(ownGroups)
	if err != nil {
		return nil, fmt.Errorf("reading the cgroups: %w", err)
	}
	for _, hierarchy := range hierarchies(string(mounts), string(groups)) {
		found, err := filepath.Glob(filepath.Join(hierarchy.Group, "autonode-*"))
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	return append(left, cables...), nil
}
