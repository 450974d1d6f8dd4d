// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// TestDefaultRelease has no registry: all that the operator needs is its own release.
func TestDefaultRelease(t *testing.T) {
	const label, name = "default-release", "plain"
	management := clusters.Management.Client
	provide(t)
	removeAll(t, label)
	platform(t, name)
	NewWithT(t).Expect(management.Create(t.Context(), &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Labels: map[string]string{label: ""}},
		Spec: v1beta1.HostedClusterSpec{InfraID: name, AutoNode: &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
			Name: v1beta1.ProvisionerKarpenter,
			Karpenter: &v1beta1.Karpenter{Platform: v1beta1.PlatformClusterAPI, ClusterAPI: &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{
				ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "general"}},
			}}},
		}}},
	})).To(Succeed())

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
				deployment := &appsv1.Deployment{}
				g.Expect(management.Get(t.Context(), client.ObjectKey{Namespace: "clusters-" + name, Name: "karpenter"}, deployment)).To(Succeed())
				g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(test.image))
				g.Expect(deployment.Spec.Template.Spec.Containers[0].Args).To(ContainElement("--node-version=" + desired.NodeVersion))
			}).Should(Succeed())
		})
	}
}
