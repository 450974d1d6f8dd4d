// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// Story 1: a platform team turns AutoNode on, a cluster admin asks for nodes, and they go when they aren't needed.
func TestEnable(t *testing.T) {
	t.Parallel()
	c := take(t, blue)

	t.Run("When AutoNode is enabled, it should establish Karpenter's CRDs in the guest", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{"nodepools." + apis.Group, "nodeclaims." + apis.Group, "clusterapinodeclasses." + v1alpha1.Group} {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: name}, crd)).To(Succeed())
			g.Expect(crd.Status.Conditions).To(ContainElement(And(
				HaveField("Type", apiextensionsv1.Established), HaveField("Status", apiextensionsv1.ConditionTrue))), name)
		}
	})

	t.Run("When AutoNode is enabled, it should run Karpenter at exactly the payload's digest", func(t *testing.T) {
		g := NewWithT(t)
		wanted := world.ComponentImage(initialRelease)
		g.Expect(wanted).To(ContainSubstring("@sha256:"))
		deployment := &appsv1.Deployment{}
		g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", wanted)))
		pods := &corev1.PodList{}
		g.Expect(c.management.List(t.Context(), pods, client.InNamespace(c.namespace()), client.MatchingLabels(deployment.Spec.Selector.MatchLabels))).To(Succeed())
		g.Expect(pods.Items).To(HaveLen(2))
		_, digest, _ := strings.Cut(wanted, "@")
		for _, pod := range pods.Items {
			g.Expect(pod.Status.ContainerStatuses).To(ConsistOf(HaveField("ImageID", HaveSuffix(digest))))
		}
	})

	t.Run("When a person removes the labels of Karpenter's component, it should put them back", func(t *testing.T) {
		g := NewWithT(t)
		component := &v1beta1.ControlPlaneComponent{}
		key := client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}
		g.Expect(c.management.Get(t.Context(), key, component)).To(Succeed())
		labels := maps.Clone(component.Labels)
		before := client.MergeFrom(component.DeepCopy())
		delete(component.Labels, v1beta1.PlatformLabel)
		g.Expect(c.management.Patch(t.Context(), component, before)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.management.Get(ctx, key, component)).To(Succeed())
			g.Expect(component.Labels).To(Equal(labels))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When 30 pods are pending, it should run them all, and take every node away when they go", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "general")
		c.workload(t, "web", 30, "250m")
		c.waitRunning(t, "web")
		g.Expect(c.nodes(g, t.Context())).NotTo(BeEmpty())
		g.Eventually(func(g Gomega, ctx context.Context) {
			status := c.hostedCluster(g, ctx).Status.AutoNode
			g.Expect(status).NotTo(BeNil())
			g.Expect(status.NodeCount).To(HaveValue(BeEquivalentTo(len(c.nodes(g, ctx)))))
			g.Expect(status.NodeVersions).To(ConsistOf(HaveField("Version", strings.TrimPrefix(initialRelease, "v"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

		c.scale(t, "web", 0)
		c.waitNothingLeft(t)
	})
}
