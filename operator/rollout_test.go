// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func awaitsStrayPod(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	deployment := &appsv1.Deployment{}
	g.Expect(management.Get(ctx, client.ObjectKey{Namespace: blueNamespace, Name: "karpenter"}, deployment)).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: blueNamespace, Name: "karpenter-stray", Labels: deployment.Spec.Template.Labels, Finalizers: []string{"autonode.io/test"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "karpenter", Image: image + strings.Repeat("9", 64)}}},
	}
	reports := func(status metav1.ConditionStatus, message string) {
		g.Eventually(func(g Gomega) {
			component := &v1beta1.ControlPlaneComponent{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: blueNamespace, Name: "karpenter"}, component)).To(Succeed())
			g.Expect(meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete)).To(And(
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
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	shown := func(g Gomega) string {
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: blueNamespace, Name: "karpenter"}, component)).To(Succeed())
		return component.Status.ImageOverride
	}
	other := image + strings.Repeat("7", 64)
	annotate := func(value string) {
		patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
			metav1.SetMetaDataAnnotation(&hc.ObjectMeta, v1beta1.OverrideImageAnnotation, value)
		})
	}
	annotate("karpenter-clusterapi=" + other)
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, other) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.ImageOverridden)).To(Equal("True/Overridden"))
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled).Message).To(ContainSubstring(other))
		g.Expect(shown(g)).To(Equal(other))
	}).Should(Succeed())

	annotate("karpenter-clusterapi=latest")
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.ImageOverridden)).To(Equal("False/OverrideInvalid"))
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(shown(g)).To(BeEmpty())
	}).Should(Succeed())

	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { delete(hc.Annotations, v1beta1.OverrideImageAnnotation) })
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, blue), v1beta1.ImageOverridden)).To(BeEmpty())
	}).Should(Succeed())
}

func keepsPayload(t *testing.T, host string) {
	g, ctx := NewWithT(t), t.Context()
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = host + "/release:9.9.9" })
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.ReleaseResolved)).To(Equal("False/ImageNotFound"))
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateWaiting))
		g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("/release:9.9.9"))
		g.Expect(hostedCluster.Status.Version.Desired.Version).To(Equal("1.36.2"))
	}).Should(Succeed())
	rollOut(g, ctx, blueNamespace, image+strings.Repeat("2", 64))
}

func completesRollout(t *testing.T, host string) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	runs := func(g Gomega, version string, state v1beta1.UpdateState, nodes string) {
		hostedCluster, component := get(g, ctx, blue), &v1beta1.ControlPlaneComponent{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: blueNamespace, Name: "karpenter"}, component)).To(Succeed())
		g.Expect(component.Status).To(And(HaveField("Version", version), HaveField("ReleaseImage", hostedCluster.Status.Version.Desired.Image)))
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
