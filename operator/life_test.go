// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// blue is the HostedCluster whose life is tested.
const blue, blueNamespace = "blue", "clusters-blue"

// life goes through the steps of a HostedCluster from its creation to its end; each finds what the one before has left.
func life(t *testing.T, host string) {
	platform(t, blue)
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: blue},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: push(t, host, "1.36.2")}},
	})).To(Succeed())

	t.Run("When AutoNode isn't set, it should say so and hold nothing", holdsNothing)
	t.Run("When AutoNode is set, it should run the payload's Karpenter", enables)
	t.Run("When AutoNode runs, its metrics should say so", servesMetrics)
	t.Run("When a person deletes the Role or the NetworkPolicy, or edits the Deployment, it should heal them", healsComponent)
	healing(t)
	t.Run("When a pod has another image, the rollout should not be complete until it has ended", awaitsStrayPod)
	t.Run("When an annotation overrides the image, it should run that and show it until the annotation goes", overridesImage)
	t.Run("When it is paused, it should scale Karpenter to zero, change nothing else, and resume when the time has come", func(t *testing.T) { pauses(t, host) })
	t.Run("When an input went missing during a pause, it should let run what ran before", func(t *testing.T) { resumesWithout(t, host) })
	t.Run("When Cluster API is paused, it should be paused for as long", pausesWithClusterAPI)
	t.Run("When it sleeps, it should apply a payload without a replica, and wake whatever is missing", func(t *testing.T) { sleeps(t, host) })
	t.Run("When the rollout is complete, it should complete the update, unless the guest's API server is older", func(t *testing.T) { completesRollout(t, host) })
	t.Run("When the HostedCluster is deleted during a pause, it should hold the drain, and let Karpenter drain after it", deletesPaused)
	t.Run("When nothing of it is left, it should let the HostedCluster go", ends)
}

func holdsNothing(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeNotConfigured"))
		g.Expect(hostedCluster.Finalizers).To(BeEmpty())
	}).Should(Succeed())
}

func enables(t *testing.T) {
	g, ctx, guest := NewWithT(t), t.Context(), clusters.Guest.Client
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = scopetest.AutoNode() })
	runs(t, blue, image+strings.Repeat("2", 64))
	g.Expect(reasonOf(get(g, ctx, blue), v1beta1.Ready)).To(Equal("Unknown/NodeClassPending"))
	g.Eventually(func(g Gomega) { reportReady(g, ctx) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(hostedCluster.Status.AutoNode).NotTo(BeNil())
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"), "%+v", hostedCluster.Status)
		g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateEnabled))
		g.Expect(hostedCluster.Status.AutoNode.Message).To(BeEmpty())
		g.Expect(hostedCluster.Status.Version.History).To(HaveLen(1))
		g.Expect(hostedCluster.Status.Version.History[0].State).To(Equal(v1beta1.UpdateCompleted))
		g.Expect(hostedCluster.Status.Version.NodeVersion).To(Equal("1.36.2"))
		g.Expect(hostedCluster.Finalizers).To(ContainElement(v1beta1.HostedClusterFinalizer))
	}).Should(Succeed())
	g.Expect(deploymentOf(g, ctx, blueNamespace).Spec.Template.Spec.Containers[0].Args).To(ContainElement("--node-version=1.36.2"))
	g.Expect(componentOf(g, ctx, blueNamespace).Status.Version).To(Equal("1.36.2"))
	g.Expect(guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, &v1alpha1.ClusterAPINodeClass{})).To(Succeed())
}

func servesMetrics(t *testing.T) {
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		g.Expect(served(g, "name", blue)).To(And(
			HaveKeyWithValue("autonode_enabled", 1.0), HaveKeyWithValue("autonode_component_info", 1.0),
			HaveKeyWithValue("autonode_guest_reachable", 1.0), HaveKeyWithValue("autonode_progressing_seconds", 0.0),
		))
	}).Should(Succeed())
}

func healsComponent(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	for _, object := range []client.Object{&rbacv1.Role{}, &networkingv1.NetworkPolicy{}} {
		object.SetNamespace(blueNamespace)
		object.SetName("karpenter")
		g.Expect(management.Delete(ctx, object)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed(), "%T", object)
		}).Should(Succeed())
	}
	deployment := deploymentOf(g, ctx, blueNamespace)
	deployment.Spec.Template.Spec.Containers[0].Image = "evil.example/miner:latest"
	g.Expect(management.Update(ctx, deployment)).To(Succeed())
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
}

func ends(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	g.Eventually(func(g Gomega) {
		scopetest.ExpectGone(ctx, g, management, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: blue}})
	}).Should(Succeed())
	scopetest.ExpectGone(ctx, g, management, &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: blueNamespace, Name: v1beta1.KarpenterComponent}})
	g.Eventually(func(g Gomega) { g.Expect(served(g, "name", blue)).To(BeEmpty()) }).Should(Succeed())
}
