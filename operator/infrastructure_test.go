// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestReadProfiles(t *testing.T) {
	rack := schema.GroupKind{Group: "infrastructure.example.org", Kind: "RackMachine"}
	vsphere := schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "VSphereMachine"}
	file := func(t *testing.T, content string) string {
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		return path
	}
	t.Run("When there is no file, it should have the built-in profiles", func(t *testing.T) {
		g := NewWithT(t)
		kinds, problems, err := ReadProfiles("")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(problems).To(BeEmpty())
		g.Expect(kinds.For(vsphere).FromMachine("ExternalIP")).To(BeTrue())
	})
	t.Run("When a file adds a kind and has a mistake, it should name the mistake and have the kind", func(t *testing.T) {
		g := NewWithT(t)
		kinds, problems, err := ReadProfiles(file(t, "- {apiGroup: infrastructure.example.org, kind: RackMachine, addresses: {fromMachine: [Hostname, Phone]}}"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(`[0].addresses.fromMachine[1]: "Phone" is not one of Hostname`))))
		g.Expect(kinds.For(rack).FromMachine("Hostname")).To(BeTrue())
		g.Expect(kinds.For(vsphere).Known()).To(BeTrue())
	})
	t.Run("When the file is no list, or isn't there, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		_, _, err := ReadProfiles(file(t, "kind: RackMachine"))
		g.Expect(err).To(MatchError(ContainSubstring("isn't a list of profiles")))
		_, _, err = ReadProfiles("/nowhere/profiles.yaml")
		g.Expect(err).To(MatchError(os.ErrNotExist))
	})
}
