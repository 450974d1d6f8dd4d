// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"path/filepath"
)

// node is what real machines run, which most worlds don't need.
var node = collection{
	title: "Building kubelet and kubeadm", about: "first time only, about 3 min on 2 cores",
	module: "programs",
	list: []program{
		{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", ldflags: kubernetesStamp(KubernetesVersion)},
		{name: "kubeadm", pkg: "k8s.io/kubernetes/cmd/kubeadm", ldflags: kubernetesStamp(KubernetesVersion)},
	},
}

// Node is a folder with the programs of real machines, of version KubernetesVersion.
type Node struct {
	// Dir is the folder in the cache.
	Dir string
	// Version of Kubernetes, such as v1.36.2.
	Version string
}

// EnsureNode is Ensure for the programs of real machines.
func EnsureNode(ctx context.Context, opts Options) (Node, error) {
	dir, err := node.ensure(ctx, opts)
	return Node{Dir: dir, Version: KubernetesVersion}, err
}

// Kubelet is the path of the kubelet.
func (n Node) Kubelet() string { return filepath.Join(n.Dir, binFolder, "kubelet") }

// Kubeadm is the path of kubeadm.
func (n Node) Kubeadm() string { return filepath.Join(n.Dir, binFolder, "kubeadm") }
