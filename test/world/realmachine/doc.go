// SPDX-License-Identifier: Apache-2.0

// Package realmachine runs machines of the world's cloud for real: each has containerd, a kubelet and containers.
//
// A machine is a set of Linux namespaces (process IDs, mounts, network, host name, IPC and cgroups) on the host's kernel. Its root file
// system is an overlay in memory over the host's, so that what its bootstrap data writes ends with it. Program firmware is its first process:
// it starts containerd, carries out the bootstrap data as cloud-init does, and runs the kubelet once `kubeadm join` has configured it.
//
// A machine isn't isolated from the host as a virtual machine is. It sees the host's files, processors and memory, and it has the host's
// root user. Three settings of the host's kernel that a kubelet writes are plain files in the machine; see kernelSettings in firmware.
//
// The control planes and the registry of a world listen on the host's 127.0.0.1. Hypervisor.Reach lets every machine connect to them at the
// same address.
//
// It needs Linux, root, and the programs that Missing names.
package realmachine
