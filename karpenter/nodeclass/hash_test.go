// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/nodeclass"
)

// hashed reads a node class of testdata/hash. The file's first line is its hash by the rule of version v1.
func hashed(t *testing.T, file string) (nodeClass *v1alpha1.ClusterAPINodeClass, want string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	nodeClass = &v1alpha1.ClusterAPINodeClass{}
	if err := yaml.UnmarshalStrict(content, nodeClass); err != nil {
		t.Fatal(err)
	}
	firstLine, _, _ := strings.Cut(string(content), "\n")
	return nodeClass, strings.TrimPrefix(firstLine, "# ")
}

func TestHash(t *testing.T) {
	files, err := filepath.Glob("testdata/hash/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run("When the provider is upgraded, it should not drift a fleet with "+name, func(t *testing.T) {
			nodeClass, want := hashed(t, file)
			if got := nodeclass.Hash(nodeClass); got != want || nodeclass.HashVersion != "v1" {
				t.Errorf("got %s, want %s: the rule has changed; raise HashVersion, or every node of every user is replaced", got, want)
			}
		})
	}
	t.Run("When only names, labels or the order of the kinds differ, it should be the same", func(t *testing.T) {
		nodeClass, want := hashed(t, "testdata/hash/bootstrap-patches.yaml")
		nodeClass.Name, nodeClass.Labels = "other", map[string]string{"a": "b"}
		slices.Reverse(nodeClass.Spec.BootstrapPatches)
		if got := nodeclass.Hash(nodeClass); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("When a patch changes, or the order of the patches of a kind, it should differ", func(t *testing.T) {
		for _, change := range []func(patches []v1alpha1.BootstrapPatch){
			func(patches []v1alpha1.BootstrapPatch) { patches[0].Value = "x" },
			func(patches []v1alpha1.BootstrapPatch) { slices.Reverse(patches) },
		} {
			nodeClass, before := hashed(t, "testdata/hash/bootstrap-patches.yaml")
			change(nodeClass.Spec.BootstrapPatches[0].Patches)
			if got := nodeclass.Hash(nodeClass); got == before {
				t.Errorf("got %s as before", got)
			}
		}
	})
}
