// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "testing"

func TestHashIsStable(t *testing.T) {
	t.Run("When a node class is the same, its hash should be the same for ever; otherwise raise NodeClassHashVersion", func(t *testing.T) {
		maxPods := int32(20)
		nodeClass := &ClusterAPINodeClass{}
		nodeClass.Spec.Kubelet = &KubeletConfiguration{MaxPods: &maxPods}
		nodeClass.Spec.BootstrapPatches = []BootstrapPatches{{
			APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "AnyConfig", Patches: []JSONPatch{{
				Op: JSONPatchAdd, Path: "/spec/a", ValueFrom: &JSONPatchValue{Variable: "taintList"},
			}},
		}}
		if got, want := NodeClassHashVersion+" "+nodeClass.Hash(), "v1 b4ab293ed2d96646"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
