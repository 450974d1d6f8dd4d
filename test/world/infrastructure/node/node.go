// SPDX-License-Identifier: Apache-2.0

// Package node makes the Node that a kubelet would register, and what a cloud's controller-manager would add to it.
package node

import (
	"cmp"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
)

const (
	// ManagedAnnotation marks, with the value ManagedValue, the Nodes whose kubelet is kwok.
	ManagedAnnotation = "kwok.x-k8s.io/node"
	// ManagedValue is the value of ManagedAnnotation.
	ManagedValue = "fake"

	// SettingsAnnotation has the kubelet's flags that change nothing else of the Node, as "name=value", sorted and separated by spaces. A real
	// kubelet shows them at /configz, and no kubelet of the world serves anything.
	SettingsAnnotation = "kubelet.infrastructure.autonode.io/settings"

	// DefaultMaxPods is the kubelet's own default.
	DefaultMaxPods = 110
)

// Instance is the machine as the cloud sees it.
type Instance struct {
	// ID is a unique ID, for the Node's machine ID.
	ID              string
	ProviderID      string
	Type            string
	Zone            string
	Region          string
	Architecture    string
	OperatingSystem string
	Capacity        corev1.ResourceList
	// KubeletVersion has its v.
	KubeletVersion string
	// Address is its internal IP address. Default: Address of its provider ID.
	Address string
}

// New returns the Node that registers when the kubelet starts on the instance. It isn't ready.
func New(instance Instance, kubelet *bootstrap.Kubelet) *corev1.Node {
	capacity := capacity(instance, kubelet)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        kubelet.NodeName,
			Labels:      labels(instance, kubelet),
			Annotations: annotations(kubelet),
		},
		Spec: corev1.NodeSpec{
			ProviderID: instance.ProviderID,
			Taints:     kubelet.Taints,
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: allocatable(capacity, kubelet),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: cmp.Or(instance.Address, Address(instance.ProviderID))},
				{Type: corev1.NodeHostName, Address: kubelet.NodeName},
			},
			Conditions: []corev1.NodeCondition{{
				Type:               corev1.NodeReady,
				Status:             corev1.ConditionFalse,
				Reason:             "KubeletNotReady",
				Message:            "the kubelet has just started",
				LastHeartbeatTime:  metav1.Now(),
				LastTransitionTime: metav1.Now(),
			}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID:       instance.ID,
				SystemUUID:      instance.ID,
				BootID:          instance.ID,
				OSImage:         "kwok",
				Architecture:    instance.Architecture,
				OperatingSystem: instance.OperatingSystem,
				KubeletVersion:  instance.KubeletVersion,
			},
		},
	}
}

func annotations(kubelet *bootstrap.Kubelet) map[string]string {
	annotations := map[string]string{ManagedAnnotation: ManagedValue}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(kubelet.Settings)) {
		settings = append(settings, name+"="+kubelet.Settings[name])
	}
	if len(settings) > 0 {
		annotations[SettingsAnnotation] = strings.Join(settings, " ")
	}
	return annotations
}

// Address returns the address of a machine: one of 100.64.0.0/10, always the same for the same provider ID.
func Address(providerID string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(providerID)) // never fails
	sum := hash.Sum32()
	return netip.AddrFrom4([4]byte{100, 64 | byte(sum>>16)&0x3f, byte(sum >> 8), byte(sum)}).String()
}

// labels are the kubelet's own, then those of --node-labels, then what the cloud passes to the kubelet: each may overwrite those before
// it, as it does on a real node.
func labels(instance Instance, kubelet *bootstrap.Kubelet) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:      kubelet.NodeName,
		corev1.LabelOSStable:      instance.OperatingSystem,
		corev1.LabelArchStable:    instance.Architecture,
		"beta.kubernetes.io/os":   instance.OperatingSystem,
		"beta.kubernetes.io/arch": instance.Architecture,
	}
	maps.Copy(labels, kubelet.Labels)
	for key, value := range map[string]string{
		corev1.LabelInstanceTypeStable: instance.Type,
		corev1.LabelTopologyZone:       instance.Zone,
		corev1.LabelTopologyRegion:     instance.Region,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	return labels
}

func capacity(instance Instance, kubelet *bootstrap.Kubelet) corev1.ResourceList {
	capacity := instance.Capacity.DeepCopy()
	if capacity == nil {
		capacity = corev1.ResourceList{}
	}
	if kubelet.MaxPods != nil {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(*kubelet.MaxPods, resource.DecimalSI)
	} else if _, ok := capacity[corev1.ResourcePods]; !ok {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(DefaultMaxPods, resource.DecimalSI)
	}
	if limit := kubelet.PodsPerCore * capacity.Cpu().Value(); kubelet.PodsPerCore > 0 && limit < capacity.Pods().Value() {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(limit, resource.DecimalSI)
	}
	return capacity
}

// allocatable is the capacity without what is reserved, and never negative.
func allocatable(capacity corev1.ResourceList, kubelet *bootstrap.Kubelet) corev1.ResourceList {
	allocatable := capacity.DeepCopy()
	for name, quantity := range allocatable {
		if reserved, ok := kubelet.Reserved[name]; ok {
			quantity.Sub(reserved)
		}
		if share, ok := kubelet.EvictionShares[name]; ok {
			total := capacity[name]
			quantity.Sub(*resource.NewQuantity(int64(math.Round(share*float64(total.Value()))), total.Format))
		}
		if quantity.Sign() < 0 {
			quantity = *resource.NewQuantity(0, quantity.Format)
		}
		allocatable[name] = quantity
	}
	return allocatable
}
