// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
)

func TestNodeImages(t *testing.T) {
	t.Run("When patches have an image, it should wait for a payload that names it, and notify when that changes", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches = bootstrapPatch(f.bootstrapKind(), v1alpha1.JSONPatchAdd, "/spec/image", "image.aws.us-east-1")
		})
		f.Expect(f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.NodeImageMissingReason)).To(
			HavePrefix("the release names no image.aws.us-east-1 for amd64; correct the patch"))

		names := func(image string) {
			content := `[{"version": "1.36.2", "images": {"amd64": {"aws": {"us-east-1": "` + image + `"}}}}]`
			f.Expect(os.WriteFile(f.images+".new", []byte(content), 0o600)).To(Succeed())
			f.Expect(os.Rename(f.images+".new", f.images)).To(Succeed())
		}
		hash := func() (string, error) {
			nodeClass, err := f.get()
			if err != nil {
				return "", err
			}
			return nodeClass.Annotations[nodeclass.TemplatesHashAnnotation], nil
		}
		names("ami-1")
		f.ready()
		f.Eventually(hash).ShouldNot(BeEmpty())
		before, err := hash()
		f.Expect(err).NotTo(HaveOccurred())
		names("ami-2")
		f.Eventually(hash).ShouldNot(Equal(before), "Karpenter looks for drift when a node class changes")
		f.Expect(os.Remove(f.images)).To(Succeed())
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.NodeImageMissingReason)
	})
}
