// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestHashIsStable(t *testing.T) {
	patches := []BootstrapPatches{{
		APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "AnyConfig", Patches: []JSONPatch{{
			Op: JSONPatchAdd, Path: "/spec/a", ValueFrom: &JSONPatchValue{Variable: "taintList"},
		}},
	}}
	for name, tc := range map[string]struct {
		spec ClusterAPINodeClassSpec
		want string
	}{
		"sets nothing":                   {ClusterAPINodeClassSpec{}, "v1 2ae1c1a5781c4580"},
		"sets maximum pods, and patches": {ClusterAPINodeClassSpec{Kubelet: &KubeletConfiguration{MaxPods: new(int32(20))}, BootstrapPatches: patches}, "v1 b4ab293ed2d96646"},
		// What spec.kubelet had in the first releases.
		"sets the kubelet's first four fields": {ClusterAPINodeClassSpec{Kubelet: &KubeletConfiguration{
			MaxPods:        new(int32(20)),
			KubeReserved:   map[string]ReservedQuantity{"cpu": "100m", "memory": "1Gi"},
			SystemReserved: map[string]ReservedQuantity{"pid": "1k"},
			EvictionHard:   map[string]EvictionThreshold{"memory.available": "5%"},
		}}, "v1 2b3081c5dcc32e25"},
	} {
		t.Run("When a node class "+name+", its hash should be the same for ever; otherwise raise NodeClassHashVersion", func(t *testing.T) {
			if got := NodeClassHashVersion + " " + (&ClusterAPINodeClass{Spec: tc.spec}).Hash(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestHashChanges(t *testing.T) {
	thresholds := map[string]EvictionThreshold{"memory.available": "1Gi"}
	changes := map[KubeletField]func(*KubeletConfiguration){
		"clusterDNS":  func(k *KubeletConfiguration) { k.ClusterDNS = []string{"10.96.0.10"} },
		"maxPods":     func(k *KubeletConfiguration) { k.MaxPods = new(int32(20)) },
		"podsPerCore": func(k *KubeletConfiguration) { k.PodsPerCore = new(int32(0)) },
		"kubeReserved": func(k *KubeletConfiguration) {
			k.KubeReserved = map[string]ReservedQuantity{"cpu": "1"}
		},
		"systemReserved": func(k *KubeletConfiguration) {
			k.SystemReserved = map[string]ReservedQuantity{"cpu": "1"}
		},
		"evictionHard": func(k *KubeletConfiguration) { k.EvictionHard = thresholds },
		"evictionSoft": func(k *KubeletConfiguration) { k.EvictionSoft = thresholds },
		"evictionSoftGracePeriod": func(k *KubeletConfiguration) {
			k.EvictionSoftGracePeriod = map[string]EvictionGracePeriod{"memory.available": "90s"}
		},
		"evictionMaxPodGracePeriod":   func(k *KubeletConfiguration) { k.EvictionMaxPodGracePeriod = new(int32(0)) },
		"imageGCHighThresholdPercent": func(k *KubeletConfiguration) { k.ImageGCHighThresholdPercent = new(int32(90)) },
		"imageGCLowThresholdPercent":  func(k *KubeletConfiguration) { k.ImageGCLowThresholdPercent = new(int32(0)) },
		"cpuCFSQuota":                 func(k *KubeletConfiguration) { k.CPUCFSQuota = new(false) },
		"podPidsLimit":                func(k *KubeletConfiguration) { k.PodPidsLimit = new(int64(-1)) },
		"maxParallelImagePulls": func(k *KubeletConfiguration) {
			k.Other = map[string]apiextensionsv1.JSON{"maxParallelImagePulls": {Raw: []byte("5")}}
		},
	}
	all := &KubeletConfiguration{}
	for _, change := range changes {
		change(all)
	}
	if fields := reflect.TypeFor[KubeletConfiguration]().NumField(); len(changes) != fields || len(all.Fields()) != fields {
		t.Errorf("spec.kubelet has %d fields, %d changes set %d", fields, len(changes), len(all.Fields()))
	}
	seen := map[string]KubeletField{(&ClusterAPINodeClass{}).Hash(): "none"}
	for field, change := range changes {
		t.Run("When a node class sets "+string(field)+", its nodes should drift", func(t *testing.T) {
			nodeClass := &ClusterAPINodeClass{Spec: ClusterAPINodeClassSpec{Kubelet: &KubeletConfiguration{}}}
			change(nodeClass.Spec.Kubelet)
			hash := nodeClass.Hash()
			if other, ok := seen[hash]; ok {
				t.Errorf("the hash is that of %s", other)
			}
			seen[hash] = field
		})
	}
}
