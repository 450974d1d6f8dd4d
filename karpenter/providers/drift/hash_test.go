// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestHashIsStable(t *testing.T) {
	t.Run("When a node class is the same, its hash should be the same for ever; otherwise raise HashVersion", func(t *testing.T) {
		nodeClass := &v1alpha1.ClusterAPINodeClass{}
		nodeClass.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		nodeClass.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{
			APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "AnyConfig", Patches: []v1alpha1.JSONPatch{{
				Op: v1alpha1.JSONPatchAdd, Path: "/spec/a", ValueFrom: &v1alpha1.JSONPatchValue{Variable: "taintList"},
			}},
		}}
		if got, want := HashVersion+" "+Hash(nodeClass), "v1 b4ab293ed2d96646"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
