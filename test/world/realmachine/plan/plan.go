// SPDX-License-Identifier: Apache-2.0

// Package plan is what a hypervisor passes to a machine's first process.
package plan

// Machine is what it is to become: a JSON file.
type Machine struct {
	// Root is an empty folder for the machine's file systems.
	Root string `json:"root"`
	// Logs is the host's folder that the machine writes its logs to.
	Logs string `json:"logs"`
	// Hostname, ProviderID, Zone and Region are the machine's instance metadata.
	Hostname   string `json:"hostname"`
	ProviderID string `json:"providerID"`
	Zone       string `json:"zone,omitempty"`
	Region     string `json:"region,omitempty"`
	// Address is the machine's own IP address.
	Address string `json:"address"`
	// Pods is the network of the machine's pods, as a CIDR.
	Pods string `json:"pods"`
	// UserData is the file with the machine's bootstrap data.
	UserData string `json:"userData"`
	// Programs are on the machine's path: paths on the host by name.
	Programs map[string]string `json:"programs"`
	// Networking is the host's folder of CNI plugins.
	Networking string `json:"networking"`
	// PauseArchive is the image of pods' sandboxes, as an archive of docker save, and Pause its name.
	PauseArchive string `json:"pauseArchive"`
	Pause        string `json:"pause"`
	// Hierarchies are the cgroups that the machine is put into.
	Hierarchies []Hierarchy `json:"hierarchies"`
}

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	// Mount is where it is mounted, and Options how; they are empty for version 2.
	Mount   string   `json:"mount"`
	Options []string `json:"options,omitempty"`
	// Group is the folder of the machine's cgroup.
	Group string `json:"group"`
}

// Unified reports whether the hierarchy is one of cgroup version 2.
func (h Hierarchy) Unified() bool { return len(h.Options) == 0 }
