// SPDX-License-Identifier: Apache-2.0

// Package bootstrap reads a machine's bootstrap data as the machine itself would: cloud-init writes the files of a
// cloud-config, kubeadm reads its JoinConfiguration from one of them, and the kubelet starts with what that reports.
//
// What would stop one of those three on a real machine is an error here that names the place: malformed YAML, a file that
// is missing, a label that a kubelet refuses. So is what would change the Node and no machine here supports, such as kubeadm's
// patches.
package bootstrap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeadm "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
)

// JoinConfigurationPath is the file of kubeadm's configuration in the data of Cluster API's kubeadm bootstrap provider.
const JoinConfigurationPath = "/run/kubeadm/kubeadm-join-config.yaml"

// Keys of a bootstrap data Secret, by Cluster API's contract for bootstrap providers.
const (
	valueKey  = "value"
	formatKey = "format"
)

// Instance is the machine's instance metadata, which bootstrap data may refer to.
type Instance struct {
	// ID is the cloud's, for an instance that has one other than its host name.
	ID         string
	Hostname   string
	ProviderID string
	Zone       string
	Region     string
}

// Kubelet has the kubelet's settings in the bootstrap data.
type Kubelet struct {
	// NodeName is the name that the Node registers with.
	NodeName string
	// Labels and Taints are what the Node registers with.
	Labels map[string]string
	Taints []corev1.Taint
	// MaxPods is nil where the bootstrap data doesn't say.
	MaxPods *int64
	// PodsPerCore limits the pods beside MaxPods; 0 for no limit.
	PodsPerCore int64
	// Reserved is the sum of system-reserved, kube-reserved and the absolute thresholds of eviction-hard.
	Reserved corev1.ResourceList
	// EvictionShares are the thresholds of eviction-hard that are a share of the capacity, each from 0 to 1.
	EvictionShares map[corev1.ResourceName]float64
	// Settings are flags that change nothing of what a Node is made of, by name. A kubelet would start with them.
	Settings map[string]string
	// Discovery is nil where the bootstrap data hold no bootstrap token.
	Discovery *Discovery
	// ServingCertificate: the kubelet requests its serving certificate from the cluster. Otherwise it signs its own.
	ServingCertificate bool
}

// Read returns how the kubelet of a machine starts. data is the data of the machine's bootstrap Secret.
func Read(data map[string][]byte, instance Instance) (*Kubelet, error) {
	value, ok := data[valueKey]
	if !ok {
		return nil, fmt.Errorf("key %q is missing", valueKey)
	}
	if format := string(data[formatKey]); format != "" && format != "cloud-config" {
		return nil, fmt.Errorf("key %q is %q; only cloud-config is understood", formatKey, format)
	}
	content, err := readCloudConfig(value, JoinConfigurationPath, instance)
	if err != nil {
		return nil, err
	}
	join, err := readJoinConfiguration(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	kubelet, err := newKubelet(join.NodeRegistration, instance)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	if kubelet.Discovery, err = readDiscovery(join.Discovery); err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	return kubelet, nil
}

// unknownFlags change what a Node registers as, and fields of a node registration can say the same.
var unknownFlags = []string{"hostname-override", "register-node", "register-with-taints"}

// newKubelet reads what kubeadm hands to the kubelet. Of a flag that is given twice, the last value counts.
func newKubelet(registration kubeadm.NodeRegistrationOptions, instance Instance) (*Kubelet, error) {
	const at = "nodeRegistration.kubeletExtraArgs"
	args := map[string]string{}
	for _, arg := range registration.KubeletExtraArgs {
		if slices.Contains(unknownFlags, arg.Name) {
			return nil, fmt.Errorf("%s: the world's machines don't know %s", at, arg.Name)
		}
		args[arg.Name] = arg.Value
	}
	kubelet := &Kubelet{
		NodeName:       cmp.Or(registration.Name, instance.Hostname),
		Taints:         registration.Taints,
		Reserved:       corev1.ResourceList{},
		EvictionShares: map[corev1.ResourceName]float64{},
	}
	if problems := validation.IsDNS1123Subdomain(kubelet.NodeName); len(problems) > 0 {
		return nil, fmt.Errorf("nodeRegistration.name %q: %s", kubelet.NodeName, strings.Join(problems, "; "))
	}
	for i := range kubelet.Taints {
		if err := validateTaint(kubelet.Taints[i]); err != nil {
			return nil, fmt.Errorf("nodeRegistration.taints[%d]: %w", i, err)
		}
	}
	for _, flag := range []struct {
		name string
		read func(value string) error
	}{
		{"provider-id", instance.hasProviderID},
		{"node-labels", kubelet.label},
		{"rotate-server-certificates", kubelet.serve},
		{"max-pods", kubelet.limitPods},
		{"pods-per-core", kubelet.limitPodsPerCore},
		{"system-reserved", kubelet.reserve},
		{"kube-reserved", kubelet.reserve},
		{"eviction-hard", kubelet.evict},
	} {
		value, ok := args[flag.name]
		if !ok {
			continue
		}
		if err := flag.read(value); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", at, flag.name, err)
		}
	}
	var err error
	if kubelet.Settings, err = readSettings(args); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return kubelet, nil
}

func (i Instance) hasProviderID(flag string) error {
	if flag != i.ProviderID {
		return fmt.Errorf("it is %q, but the machine's is %q", flag, i.ProviderID)
	}
	return nil
}

func (k *Kubelet) serve(flag string) (err error) {
	if k.ServingCertificate, err = strconv.ParseBool(flag); err != nil {
		return fmt.Errorf("%q is neither true nor false", flag)
	}
	return nil
}

func (k *Kubelet) limitPods(flag string) error {
	count, err := parseCount(flag)
	k.MaxPods = &count
	return err
}

func (k *Kubelet) limitPodsPerCore(flag string) (err error) {
	k.PodsPerCore, err = parseCount(flag)
	return err
}

func parseCount(flag string) (int64, error) {
	count, err := strconv.ParseInt(flag, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", flag)
	}
	if count < 0 {
		return 0, fmt.Errorf("%d is negative", count)
	}
	return count, nil
}

func (k *Kubelet) reserve(flag string) error {
	values, err := parseMap(flag, "=")
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(values) {
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		case "pid":
			continue // not part of a node's resources
		default:
			return fmt.Errorf("%q can't be reserved; cpu, memory, ephemeral-storage and pid can", name)
		}
		quantity, err := parseQuantity(values[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		k.add(corev1.ResourceName(name), quantity)
	}
	return nil
}

// evict accounts for eviction-hard: a kubelet takes its thresholds off what is allocatable.
func (k *Kubelet) evict(flag string) error {
	values, err := parseMap(flag, "<")
	if err != nil {
		return err
	}
	for _, signal := range sortedKeys(values) {
		name, err := resourceOf(signal)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		if percent, ok := strings.CutSuffix(values[signal], "%"); ok {
			share, err := parsePercent(percent)
			if err != nil {
				return fmt.Errorf("%s: %w", signal, err)
			}
			k.EvictionShares[name] += share
			continue
		}
		quantity, err := parseQuantity(values[signal])
		if err != nil {
			return fmt.Errorf("%s: %w", signal, err)
		}
		k.add(name, quantity)
	}
	return nil
}

// resourceOf is the resource of a Node that an eviction signal is about; empty for none.
func resourceOf(signal string) (corev1.ResourceName, error) {
	switch signal {
	case "memory.available":
		return corev1.ResourceMemory, nil
	case "nodefs.available":
		return corev1.ResourceEphemeralStorage, nil
	case "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "containerfs.available",
		"containerfs.inodesFree", "pid.available", "allocatableMemory.available":
		return "", nil
	}
	return "", fmt.Errorf("%q is no eviction signal", signal)
}

func (k *Kubelet) add(name corev1.ResourceName, quantity resource.Quantity) {
	sum := k.Reserved[name]
	sum.Add(quantity)
	k.Reserved[name] = sum
}

func sortedKeys(values map[string]string) []string {
	return slices.Sorted(maps.Keys(values))
}
