// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

func TestResources(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	seven := int64(7)
	for name, test := range map[string]struct {
		capacity              corev1.ResourceList
		kubelet               bootstrap.Kubelet
		want, wantAllocatable corev1.ResourceList
	}{
		"When nothing is said, it should have the kubelet's default of pods, and all should be allocatable": {
			list("cpu", "2", "memory", "4Gi"), bootstrap.Kubelet{},
			list("cpu", "2", "memory", "4Gi", "pods", "110"), list("cpu", "2", "memory", "4Gi", "pods", "110"),
		},
		"When the machine declares how many pods, it should have that": {
			list("cpu", "2", "pods", "30"), bootstrap.Kubelet{}, list("cpu", "2", "pods", "30"), list("cpu", "2", "pods", "30"),
		},
		"When the kubelet's configuration declares how many pods, that should win": {
			list("cpu", "2", "pods", "30"), bootstrap.Kubelet{MaxPods: &seven}, list("cpu", "2", "pods", "7"), list("cpu", "2", "pods", "7"),
		},
		"When the kubelet limits the pods of a core, the smaller number should win": {
			list("cpu", "2", "pods", "30"), bootstrap.Kubelet{PodsPerCore: 8}, list("cpu", "2", "pods", "16"), list("cpu", "2", "pods", "16"),
		},
		"When the kubelet limits the pods of a core to more than it runs, that should not count": {
			list("cpu", "4"), bootstrap.Kubelet{MaxPods: &seven, PodsPerCore: 8}, list("cpu", "4", "pods", "7"), list("cpu", "4", "pods", "7"),
		},
		"When something is reserved, it should not be allocatable, and nothing should become negative or appear": {
			list("cpu", "2", "memory", "1Gi", "example.com/gpu", "4"),
			bootstrap.Kubelet{Reserved: list("cpu", "500m", "memory", "2Gi", "ephemeral-storage", "1Gi")},
			list("cpu", "2", "memory", "1Gi", "example.com/gpu", "4", "pods", "110"),
			list("cpu", "1500m", "memory", "0", "example.com/gpu", "4", "pods", "110"),
		},
		"When a share is kept free, it should count": {
			list("memory", "10Gi"), bootstrap.Kubelet{Reserved: list("memory", "1Gi"), EvictionShares: map[corev1.ResourceName]float64{"memory": 0.1}},
			list("memory", "10Gi", "pods", "110"), list("memory", "8Gi", "pods", "110"),
		},
		"When there is no capacity at all, it should still have pods": {
			nil, bootstrap.Kubelet{}, list("pods", "110"), list("pods", "110"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := node.New(node.Instance{Capacity: test.capacity}, &test.kubelet)
			equalQuantities := cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
			if diff := cmp.Diff(test.want, got.Status.Capacity, equalQuantities); diff != "" {
				t.Errorf("capacity (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wantAllocatable, got.Status.Allocatable, equalQuantities); diff != "" {
				t.Errorf("allocatable (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLabels(t *testing.T) {
	t.Run("When labels collide, the cloud's should win over the bootstrap data's, and those over the kubelet's", func(t *testing.T) {
		got := node.New(node.Instance{
			Type: "c4-large", Zone: "a", Architecture: "arm64", OperatingSystem: "linux",
		}, &bootstrap.Kubelet{NodeName: "n", Labels: map[string]string{
			corev1.LabelTopologyZone: "z", corev1.LabelArchStable: "amd64", "rack": "8", "team": "web",
		}})
		want := map[string]string{
			"kubernetes.io/hostname": "n", "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux",
			"kubernetes.io/arch": "amd64", "beta.kubernetes.io/arch": "arm64",
			"node.kubernetes.io/instance-type": "c4-large", "topology.kubernetes.io/zone": "a", "rack": "8", "team": "web",
		}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		settings map[string]string
		want     map[string]string
	}{
		"When the kubelet has settings that a Node doesn't show, an annotation should": {
			map[string]string{"pod-max-pids": "4096", "cluster-dns": "10.96.0.10"},
			map[string]string{node.ManagedAnnotation: node.ManagedValue, node.SettingsAnnotation: "cluster-dns=10.96.0.10 pod-max-pids=4096"},
		},
		"When the kubelet has none, there should be no annotation": {nil, map[string]string{node.ManagedAnnotation: node.ManagedValue}},
	} {
		t.Run(name, func(t *testing.T) {
			got := node.New(node.Instance{}, &bootstrap.Kubelet{Settings: test.settings})
			if diff := cmp.Diff(test.want, got.Annotations); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	t.Run("When addresses are made, they should be stable and within the shared address space", func(t *testing.T) {
		within := netip.MustParsePrefix("100.64.0.0/10")
		seen := map[string]bool{}
		for _, id := range []string{"", "kwok://a/b", "kwok://a/c", "kwok://b/b"} {
			address := node.Address(id)
			if address != node.Address(id) || !within.Contains(netip.MustParseAddr(address)) || seen[address] {
				t.Errorf("%q: address %s", id, address)
			}
			seen[address] = true
		}
	})
}
