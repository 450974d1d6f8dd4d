// SPDX-License-Identifier: Apache-2.0

package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/autonode-io/autonode/test/world/programs"
)

// Phase of a world's start.
type Phase string

const (
	// PhaseStarting: not everything runs yet.
	PhaseStarting Phase = "Starting"
	// PhaseReady: everything runs.
	PhaseReady Phase = "Ready"
	// PhaseStopping: the world is going down.
	PhaseStopping Phase = "Stopping"
)

// State of a world, in its folder, for other processes.
type State struct {
	// PID of the process that runs the world, and of its in-process parts.
	PID     int       `json:"pid"`
	Phase   Phase     `json:"phase"`
	Started time.Time `json:"started"`
	Guests  []string  `json:"guests"`
	// Kubectl is the path of kubectl.
	Kubectl string `json:"kubectl,omitempty"`
	// Releases are the payloads in the registry, by digest, by version.
	Releases   map[string]string `json:"releases,omitempty"`
	Components []Component       `json:"components"`
}

// Component is one thing that runs.
type Component struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Address string `json:"address,omitempty"`
	// About describes it, for people.
	About string `json:"about,omitempty"`
	Log   string `json:"log,omitempty"`
}

// ErrNoWorld means that no world runs in a folder.
var ErrNoWorld = errors.New("no world runs here")

// ReadState reads the state of the world in dir. It wraps ErrNoWorld if there is none.
func ReadState(dir string) (State, error) {
	data, err := os.ReadFile(layout(dir).state())
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, fmt.Errorf("%w: %s", ErrNoWorld, dir)
	}
	if err != nil {
		return State{}, fmt.Errorf("reading the world's state: %w", err)
	}
	var state State
	if err := json.Unmarshal(data, &state); err != nil {
		return State{}, fmt.Errorf("reading the world's state: %w", err)
	}
	return state, nil
}

// KubeconfigPath is the path of a cluster's kubeconfig in the world in dir.
func KubeconfigPath(dir, cluster string) string { return layout(dir).kubeconfig(cluster) }

// LogDir is the folder of the logs of the world in dir.
func LogDir(dir string) string { return layout(dir).logs() }

func newState(cfg Config) State {
	return State{PID: os.Getpid(), Phase: PhaseStarting, Started: time.Now(), Guests: cfg.Guests}
}

func (w *World) setPhase(phase Phase) {
	w.mu.Lock()
	w.state.Phase = phase
	if w.autonode != nil && phase == PhaseReady {
		w.state.Releases = w.autonode.releases
	}
	w.mu.Unlock()
	w.record()
}

// record writes the state file. An error is of no consequence for the world itself.
func (w *World) record() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Kubectl = w.programs.Kubectl()
	w.state.Components = []Component{}
	for _, p := range w.processes.List() {
		w.state.Components = append(w.state.Components, Component{Name: p.Name, PID: p.PID, Address: p.Address, About: about(p.Path), Log: p.LogFile})
	}
	for _, p := range w.parts {
		w.state.Components = append(w.state.Components, p.Component)
	}
	data, err := json.MarshalIndent(w.state, "", "  ")
	if err != nil {
		return
	}
	// Renamed into place, so that no reader sees half of it.
	unfinished := w.dir.state() + ".unfinished"
	if err := os.WriteFile(unfinished, data, 0o644); err == nil {
		_ = os.Rename(unfinished, w.dir.state())
	}
}

func about(program string) string {
	switch name := filepath.Base(program); name {
	case "etcd":
		return "etcd " + programs.EtcdVersion
	case "cluster-api-core", "cluster-api-bootstrap-kubeadm":
		return "Cluster API " + programs.ClusterAPIVersion
	case "cluster-api-provider-aws":
		return "Cluster API Provider AWS " + programs.ClusterAPIProviderAWSVersion
	case "kube-controller-manager", "kube-scheduler":
		return "Kubernetes " + programs.KubernetesUpgradedVersion
	default:
		if version, ok := strings.CutPrefix(name, "kube-apiserver-"); ok {
			return "Kubernetes " + version
		}
		return ""
	}
}
