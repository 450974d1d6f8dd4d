// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestCheck(t *testing.T) {
	checks := 0
	failing := ""
	store := newProvider(Config{Check: func(_ *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) error {
		checks++
		if tmpl.Source.Name == failing {
			return errors.New("patch 0 doesn't apply")
		}
		return nil
	}})
	version := func(resourceVersion string) []template.Template {
		small, large := newTemplate("c2-small", 2, 0.02, nil), newTemplate("c4-large", 4, 0.1, nil)
		large.Source.ResourceVersions = resourceVersion
		return []template.Template{small, large}
	}
	available := func(instanceType string) (offered, available bool) {
		choice, offered, err := store.Resolve("default", instanceType, "a", "on-demand")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return offered, offered && choice.Offering.Available
	}
	set(store, nodeClass(1), version("1"), manyZones())
	t.Run("When nothing has changed, it should not check again", func(t *testing.T) {
		set(store, nodeClass(1), version("1"), manyZones())
		NewWithT(t).Expect(checks).To(BeEquivalentTo(2))
	})
	t.Run("When a template that was offered fails, it should launch nothing from it, keep it for its nodes, and say why", func(t *testing.T) {
		failing = "c4-large"
		set(store, nodeClass(1), version("2"), manyZones())
		NewWithT(t).Expect(checks).To(BeEquivalentTo(3))
		if offered, free := available("c4-large"); !offered || free {
			t.Errorf("offered %t, available %t", offered, free)
		}
		if _, free := available("c2-small"); !free {
			t.Error("the other template is closed too")
		}
		listing, err := store.Refresh(t.Context(), nodeClass(1))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if len(listing.Found.Invalid) != 1 || !strings.HasSuffix(listing.Found.Invalid[0].Error(), "c4-large: patch 0 doesn't apply") {
			t.Errorf("got %v", listing.Found.Invalid)
		}
	})
	t.Run("When the node class changes, it should check all again", func(t *testing.T) {
		failing, checks = "", 0
		set(store, nodeClass(2), version("2"), manyZones())
		if _, free := available("c4-large"); !free || checks != 2 {
			t.Errorf("available %t after %d checks", free, checks)
		}
	})
}

func TestPatchedKubelet(t *testing.T) {
	reads := 0
	store := newProvider(Config{Kubelet: func(class *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (kubelet.Settings, bool) {
		reads++
		return kubelet.Settings{
			KubeletConfiguration: v1alpha1.KubeletConfiguration{
				MaxPods: ptr.To(int32(class.Generation)), SystemReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "1"},
			},
			Patched: kubelet.Patched{MaxPods: true, SystemReserved: true},
		}, tmpl.Source.Name == "c4-large"
	}})
	class := func(generation int64) *v1alpha1.ClusterAPINodeClass {
		nodeClass := nodeClass(generation)
		nodeClass.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}}
		return nodeClass
	}
	templates := []template.Template{newTemplate("c2-small", 2, 0.02, nil), newTemplate("c4-large", 4, 0.1, nil)}
	has := func(t *testing.T, instanceType string, pods, cpu int64) {
		t.Helper()
		types, err := store.InstanceTypes("default")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(types).To(HaveLen(2))
		for _, it := range types {
			if allocatable := it.Allocatable(); it.Name == instanceType && (allocatable.Pods().Value() != pods || allocatable.Cpu().Value() != cpu) {
				t.Errorf("%s has %d pods and %d CPUs, want %d and %d", it.Name, allocatable.Pods().Value(), allocatable.Cpu().Value(), pods, cpu)
			}
		}
	}
	t.Run("When patches change what kubelets reserve, it should count for the templates that they apply to", func(t *testing.T) {
		set(store, class(7), templates, manyZones())
		has(t, "c4-large", 7, 3)
		has(t, "c2-small", 110, 2)
	})
	t.Run("When nothing has changed, it should not read them again", func(t *testing.T) {
		set(store, class(7), templates, manyZones())
		NewWithT(t).Expect(reads).To(BeEquivalentTo(2))
		has(t, "c4-large", 7, 3)
	})
	t.Run("When the node class changes, it should", func(t *testing.T) {
		set(store, class(8), templates, manyZones())
		has(t, "c4-large", 8, 3)
	})
	t.Run("When it has no patches any more, templates should have their own settings", func(t *testing.T) {
		set(store, nodeClass(9), templates, manyZones())
		has(t, "c4-large", 110, 4)
	})
}
