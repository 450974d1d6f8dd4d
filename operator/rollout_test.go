// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func awaitsStrayPod(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: blueNamespace, Name: "karpenter-stray", Labels: deploymentOf(g, ctx, blueNamespace).Spec.Template.Labels, Finalizers: []string{"autonode.io/test"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "karpenter", Image: image + strings.Repeat("9", 64)}}},
	}
	reports := func(status metav1.ConditionStatus, message string) {
		g.Eventually(func(g Gomega) {
			g.Expect(meta.FindStatusCondition(componentOf(g, ctx, blueNamespace).Status.Conditions, v1beta1.RolloutComplete)).To(And(
				HaveField("Status", status), HaveField("Message", HavePrefix(message))))
		}).Should(Succeed())
	}
	reports(metav1.ConditionTrue, "")
	g.Expect(management.Create(ctx, pod)).To(Succeed())
	reports(metav1.ConditionFalse, "Pod karpenter-stray has image "+image)
	g.Expect(management.Delete(ctx, pod)).To(Succeed())
	reports(metav1.ConditionFalse, "1 old replicas are still to end")
	g.Expect(management.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
	pod.Finalizers = nil
	g.Expect(management.Update(ctx, pod)).To(Succeed())
	reports(metav1.ConditionTrue, "")
}

func overridesImage(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	shown := func(g Gomega) string { return componentOf(g, ctx, blueNamespace).Status.ImageOverride }
	other := image + strings.Repeat("7", 64)
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
		metav1.SetMetaDataAnnotation(&hc.ObjectMeta, v1beta1.OverrideImageAnnotation, "karpenter-clusterapi="+other)
	})
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, other) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.ImageOverridden)).To(Equal("True/Overridden"))
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled).Message).To(ContainSubstring(other))
		g.Expect(shown(g)).To(Equal(other))
	}).Should(Succeed())

	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { delete(hc.Annotations, v1beta1.OverrideImageAnnotation) })
	runs(t, blue, image+strings.Repeat("2", 64))
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, blue), v1beta1.ImageOverridden)).To(BeEmpty())
		g.Expect(shown(g)).To(BeEmpty())
	}).Should(Succeed())
}

func completesRollout(t *testing.T, host string) {
	g, ctx := NewWithT(t), t.Context()
	runs := func(g Gomega, version string, state v1beta1.UpdateState, nodes string) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(componentOf(g, ctx, blueNamespace).Status).To(And(HaveField("Version", version), HaveField("ReleaseImage", hostedCluster.Status.Version.Desired.Image)))
		g.Expect(hostedCluster.Status.Version.History[0]).To(And(HaveField("Version", version), HaveField("State", state)))
		g.Expect(reasonOf(hostedCluster, v1beta1.NodesUpToDate)).To(Equal(nodes))
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
	}
	g.Eventually(func(g Gomega) { runs(g, "1.36.3", v1beta1.UpdateCompleted, "True/AsExpected") }).Should(Succeed())

	before, applied := rollouts(g, ctx, blueNamespace)
	g.Expect(before).To(And(Not(BeEmpty()), Equal(applied)))
	upgrade := push(t, host, "1.37.1") // the API server is of 1.36
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = upgrade })
	g.Eventually(func(g Gomega) {
		complete, applied := rollouts(g, ctx, blueNamespace)
		g.Expect(applied).NotTo(Equal(before))
		g.Expect(complete).To(Equal(before), "the new Karpenter is to replace no nodes yet")
		rollOut(g, ctx, blueNamespace, image+strings.Repeat("1", 64))
	}).Should(Succeed())
	g.Eventually(func(g Gomega) {
		complete, applied := rollouts(g, ctx, blueNamespace)
		g.Expect(complete).To(Equal(applied))
	}).Should(Succeed())
	older := func(g Gomega) { runs(g, "1.37.1", v1beta1.UpdatePartial, "False/ControlPlaneOlder") }
	g.Eventually(older).Should(Succeed())
	g.Consistently(older, "500ms").Should(Succeed())
}
