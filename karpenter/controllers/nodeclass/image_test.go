// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"fmt"
	"maps"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// The payload is 1.36.2, and so is the API server.
func TestImageVersion(t *testing.T) {
	f := start(t, "")
	booting := func(version string) map[string]string {
		annotations := maps.Clone(sized("2", "4Gi", "0.021"))
		annotations[v1alpha1.KubernetesVersionAnnotation], annotations[v1alpha1.InstanceTypeAnnotation] = version, "c2-small"
		return annotations
	}
	f.template("c2-small-old", booting("1.36.1"))
	f.nodeClass(nil)
	f.ready()
	// seen lists each template with the version of its nodes, if it isn't the node class's, and what holds it.
	seen := func() ([]string, error) {
		nodeClass, err := f.get()
		var lines []string
		for _, s := range nodeClass.Status.Templates {
			lines = append(lines, fmt.Sprintf("%s %s %s %s", s.Source, s.Version, s.Image, s.Unavailable))
		}
		return lines, err
	}
	const old = "TestMachineTemplate/c2-small-old 1.36.1 "

	t.Run("When the payload is ahead of the only template, it should be ready and say which image is needed", func(t *testing.T) {
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ImageOlderReason, Equal(fmt.Sprintf(
			"TestMachineTemplate %s/c2-small-old: its image has 1.36.1, and nodes get 1.36.2; its nodes stay at 1.36.1 until a template with the same instance type has an image with 1.36.2", f.Namespace)))
		f.Expect(seen()).To(Equal([]string{old + "Older "}))
		f.Expect(f.available("c2-small")).To(BeTrue(), "a new node is better than none")
	})
	t.Run("When a template's image is ahead of the payload, it should launch nothing from it and say so", func(t *testing.T) {
		newer := f.template("c2-small-newer", booting("1.36.3"))
		f.Eventually(seen).Should(ConsistOf(old+"Older ", "TestMachineTemplate/c2-small-newer 1.36.3  ImageNewer"))
		f.Expect(f.resolve("c2-small").Template.Source.Name).To(Equal("c2-small-old"))
		f.Expect(f.Admin.Delete(t.Context(), newer)).To(Succeed())
		f.Eventually(seen).Should(HaveLen(1))
	})
	t.Run("When a template with the payload's version stands beside the old one, it should launch from it and have nothing to say", func(t *testing.T) {
		f.template("c2-small-new", booting("v1.36.2"))
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.Expect(seen()).To(ConsistOf(old+" ", "TestMachineTemplate/c2-small-new   "))
		f.Expect(f.resolve("c2-small").Template.Source.Name).To(Equal("c2-small-new"))
	})
}
