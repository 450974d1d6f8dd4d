// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
)

func TestProfileFile(t *testing.T) {
	t.Run("When the profile file comes, has mistakes and goes, it should follow, and name each mistake", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small-profiled", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		described := func() (v1alpha1.TemplateStatus, error) {
			nodeClass, err := f.get()
			if err != nil || len(nodeClass.Status.Templates) != 1 {
				return v1alpha1.TemplateStatus{}, err
			}
			return nodeClass.Status.Templates[0], nil
		}
		f.Eventually(described).Should(And(HaveField("Architecture", "amd64"), HaveField("Profile", v1alpha1.ProfileMissing)))

		kind := "- apiGroup: " + environment.TestMachine.Group + "\n  kind: " + environment.TestMachine.Kind + "\n"
		f.write(f.profiles, kind+"  template: {architecture: [{value: arm64}]}\n")
		f.Eventually(described).Should(And(HaveField("Architecture", "arm64"), HaveField("Profile", "")))
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)

		f.write(f.profiles, kind+"  template: {architecture: [{value: arm64}], capacity: {cpu: [{path: spec.template.spec.size}]}, size: []}\n")
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ProfileInvalidReason, And(
			HavePrefix("profile file "+f.profiles+": [0].template.size: no such field"),
			ContainSubstring("the rest of it is in use"),
			ContainSubstring(`TestMachineTemplate `+f.Namespace+`/c2-small-profiled: cpu: "c2-small-profiled" is not a quantity; this field isn't in use`)))
		f.Eventually(described).Should(HaveField("Architecture", "arm64"))

		f.Expect(os.Remove(f.profiles)).To(Succeed())
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.Eventually(described).Should(And(HaveField("Architecture", "amd64"), HaveField("Profile", v1alpha1.ProfileMissing)))
	})
}
