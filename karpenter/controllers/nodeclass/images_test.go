// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
)

func TestNodeImages(t *testing.T) {
	t.Run("When patches have an image, it should wait for a payload that names it, and notify when that changes", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches = bootstrapPatch(environment.KubeadmConfig.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/image", "image.aws.us-east-1")
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.NodeImageMissingReason,
			HavePrefix("the release names no image.aws.us-east-1 for amd64; correct the patch"))

		names := func(image string) {
			content := `[{"version": "1.36.2", "images": {"amd64": {"aws": {"us-east-1": "` + image + `"}}}}]`
			f.write(f.images, content)
		}
		hash := func() string { return f.stored().Annotations[nodeclass.TemplatesHashAnnotation] }
		names("ami-1")
		f.ready()
		f.Eventually(hash).ShouldNot(BeEmpty())
		before := hash()
		names("ami-2")
		f.Eventually(hash).ShouldNot(Equal(before), "Karpenter looks for drift when a node class changes")
		f.Expect(os.Remove(f.images)).To(Succeed())
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.NodeImageMissingReason)
	})
}
