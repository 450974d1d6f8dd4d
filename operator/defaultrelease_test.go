// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// TestDefaultRelease has no registry: all that the operator needs is its own release.
func TestDefaultRelease(t *testing.T) {
	const label, name = "default-release", "plain"
	provide(t)
	removeAll(t, label)
	platform(t, name)
	hosted := newHosted("clusters", name, "", label)
	hosted.Spec.InfraID = name
	hosted.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI = &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{
		ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "general"}},
	}}
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), hosted)).To(Succeed())

	for _, test := range []struct {
		name, image, version, reason string
		history                      []string
	}{
		{"When the operator has no default release, it should ask for a payload", "", "v0.0.9", "False/ReleaseMissing", nil},
		{"When it has one, it should run its Karpenter", image + strings.Repeat("d", 64), "v0.1.0", "True/DefaultRelease", []string{"0.1.0"}},
		{"When the operator is upgraded, its Karpenter should follow", image + strings.Repeat("e", 64), "v0.2.0", "True/DefaultRelease", []string{"0.2.0", "0.1.0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := selecting(label)
			options.KarpenterImage, options.Version = test.image, test.version
			run(t, clusters.Management.Config, options)
			NewWithT(t).Eventually(func(g Gomega) {
				hostedCluster := get(g, t.Context(), name)
				g.Expect(reasonOf(hostedCluster, v1beta1.ReleaseResolved)).To(Equal(test.reason))
				if test.image == "" {
					g.Expect(hostedCluster.Status.AutoNode.Message).To(HavePrefix("spec.release isn't set, and this operator has no default release"))
					return
				}
				desired := hostedCluster.Status.Version.Desired
				g.Expect(desired).To(HaveField("Source", v1beta1.ReleaseSourceDefault))
				g.Expect(desired).To(HaveField("Image", test.image))
				var history []string
				for _, entry := range hostedCluster.Status.Version.History {
					history = append(history, strings.TrimPrefix(entry.Version, desired.NodeVersion+"+autonode."))
				}
				g.Expect(history).To(Equal(test.history))
				container := deploymentOf(g, t.Context(), "clusters-"+name).Spec.Template.Spec.Containers[0]
				g.Expect(container.Image).To(Equal(test.image))
				g.Expect(container.Args).To(ContainElement("--node-version=" + desired.NodeVersion))
			}).Should(Succeed())
		})
	}
}
