// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// staticPodPath is the one that kubeadm configures for kubelets.
const staticPodPath = "/etc/kubernetes/manifests"

func (r *reader) unplanned(where, why string) {
	r.settings.Unplanned = append(r.settings.Unplanned, fmt.Sprintf("%s, %s: %s", r.place, where, why))
}

// findUnplanned reports known settings that Karpenter doesn't plan with: Karpenter models neither NUMA nodes nor the threads of a
// core, and of the pods that nodes bring along only those of DaemonSets.
func (r *reader) findUnplanned() {
	if r.topology == "restricted" || r.topology == "single-numa-node" {
		r.unplanned("topologyManagerPolicy",
			r.topology+" makes kubelets reject pods that fit no NUMA node; use best-effort, or let such pods request less than one NUMA node has")
	}
	if r.cpuPolicy == "static" && r.cpuOptions["full-pcpus-only"] == "true" {
		r.unplanned("cpuManagerPolicyOptions", "full-pcpus-only makes kubelets reject pods that don't request whole physical cores; let "+
			"Guaranteed pods request a multiple of a core's threads")
	}
	if r.staticPodURL != "" {
		r.unplanned("staticPodURL", asDaemonSet)
	}
	directory := path.Clean(r.staticPods)
	for _, name := range slices.Sorted(maps.Keys(r.contents)) {
		if name != directory && path.Dir(name) != directory || strings.HasPrefix(path.Base(name), ".") {
			continue
		}
		var pod struct {
			Kind string `json:"kind"`
		}
		if yaml.Unmarshal([]byte(r.contents[name]), &pod) == nil && pod.Kind == "Pod" {
			r.unplanned("file "+name, asDaemonSet)
		}
	}
}

const asDaemonSet = "Karpenter doesn't plan with what static pods request; run them as DaemonSets"
