// SPDX-License-Identifier: Apache-2.0

// Package bootstrap reads a machine's bootstrap data as the machine itself would: cloud-init writes the files of a
// cloud-config, kubeadm reads its JoinConfiguration from one of them, and the kubelet starts with what that says.
//
// What would stop one of those three on a real machine is an error here that names the place: malformed YAML, a file that
// is missing, a label that a kubelet refuses.
package bootstrap

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
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
	// Reserved is the sum of system-reserved, kube-reserved and the absolute thresholds of eviction-hard.
	Reserved corev1.ResourceList
	// EvictionShares are the thresholds of eviction-hard that are a share of the capacity, each from 0 to 1.
	EvictionShares map[corev1.ResourceName]float64
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
	files, err := readCloudConfig(value, instance)
	if err != nil {
		return nil, err
	}
	content, ok := files[JoinConfigurationPath]
	if !ok {
		return nil, fmt.Errorf("write_files has no %s, so kubeadm can't join", JoinConfigurationPath)
	}
	join, config, err := readJoinConfiguration(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	if join.Patches.Directory != "" {
		if err := applyPatches(config, files, join.Patches.Directory); err != nil {
			return nil, err
		}
	}
	kubelet, err := newKubelet(join.NodeRegistration, *config, instance)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	if kubelet.Discovery, err = join.Discovery.read(); err != nil {
		return nil, fmt.Errorf("%s: %w", JoinConfigurationPath, err)
	}
	return kubelet, nil
}

// newKubelet puts together what kubeadm hands to the kubelet: its configuration file, over which flags win.
func newKubelet(registration nodeRegistration, config kubeletConfiguration, instance Instance) (*Kubelet, error) {
	const at = "nodeRegistration.kubeletExtraArgs"
	args := registration.KubeletExtraArgs
	kubelet := &Kubelet{
		NodeName:       instance.Hostname,
		Labels:         map[string]string{},
		Taints:         config.RegisterWithTaints,
		MaxPods:        config.MaxPods,
		Reserved:       corev1.ResourceList{},
		EvictionShares: map[corev1.ResourceName]float64{},

		ServingCertificate: config.ServerTLSBootstrap,
	}
	if registration.Name != "" {
		kubelet.NodeName = registration.Name
	}
	if override, ok := args["hostname-override"]; ok {
		kubelet.NodeName = override
	}
	if problems := validation.IsDNS1123Subdomain(kubelet.NodeName); len(problems) > 0 {
		return nil, fmt.Errorf("nodeRegistration.name %q: %s", kubelet.NodeName, strings.Join(problems, "; "))
	}
	if id, ok := args["provider-id"]; ok && id != instance.ProviderID {
		return nil, fmt.Errorf("%s: provider-id is %q, but the machine's is %q", at, id, instance.ProviderID)
	}

	// kubeadm turns a join configuration's taints into --register-with-taints; one given as an extra argument wins.
	if registration.Taints != nil {
		kubelet.Taints = registration.Taints
	}
	for i := range kubelet.Taints {
		if err := validateTaint(kubelet.Taints[i]); err != nil {
			return nil, fmt.Errorf("nodeRegistration.taints[%d]: %w", i, err)
		}
	}
	if flag, ok := args["register-with-taints"]; ok {
		taints, err := parseTaints(flag)
		if err != nil {
			return nil, fmt.Errorf("%s: register-with-taints: %w", at, err)
		}
		kubelet.Taints = taints
	}
	if args["register-node"] == "false" {
		return nil, fmt.Errorf("%s: register-node is false, so no Node will appear", at)
	}
	if flag, ok := args["node-labels"]; ok {
		labels, err := parseLabels(flag)
		if err != nil {
			return nil, fmt.Errorf("%s: node-labels: %w", at, err)
		}
		kubelet.Labels = labels
	}
	if flag, ok := args["rotate-server-certificates"]; ok {
		on, err := strconv.ParseBool(flag)
		if err != nil {
			return nil, fmt.Errorf("%s: rotate-server-certificates: %q is neither true nor false", at, flag)
		}
		kubelet.ServingCertificate = on
	}
	if flag, ok := args["max-pods"]; ok {
		maxPods, err := parseMaxPods(flag)
		if err != nil {
			return nil, fmt.Errorf("%s: max-pods: %w", at, err)
		}
		kubelet.MaxPods = &maxPods
	}

	for _, reserved := range []struct {
		flag, field string
		config      map[string]string
	}{
		{"system-reserved", "systemReserved", config.SystemReserved},
		{"kube-reserved", "kubeReserved", config.KubeReserved},
	} {
		values, at := reserved.config, reserved.field
		if flag, ok := args[reserved.flag]; ok {
			at = reserved.flag
			var err error
			if values, err = parseMap(flag, "="); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
		if err := kubelet.reserve(values); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	eviction, at2 := config.EvictionHard, "evictionHard"
	if flag, ok := args["eviction-hard"]; ok {
		at2 = "eviction-hard"
		var err error
		if eviction, err = parseMap(flag, "<"); err != nil {
			return nil, fmt.Errorf("%s: %w", at2, err)
		}
	}
	if err := kubelet.evict(eviction); err != nil {
		return nil, fmt.Errorf("%s: %w", at2, err)
	}
	return kubelet, nil
}

func (k *Kubelet) reserve(values map[string]string) error {
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
func (k *Kubelet) evict(values map[string]string) error {
	for _, signal := range sortedKeys(values) {
		var name corev1.ResourceName
		switch signal {
		case "memory.available":
			name = corev1.ResourceMemory
		case "nodefs.available":
			name = corev1.ResourceEphemeralStorage
		case "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "containerfs.available",
			"containerfs.inodesFree", "pid.available", "allocatableMemory.available":
			continue
		default:
			return fmt.Errorf("%q is no eviction signal", signal)
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

func (k *Kubelet) add(name corev1.ResourceName, quantity resource.Quantity) {
	sum := k.Reserved[name]
	sum.Add(quantity)
	k.Reserved[name] = sum
}

func sortedKeys(values map[string]string) []string {
	return slices.Sorted(maps.Keys(values))
}
