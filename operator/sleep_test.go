// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

func sleeps(t *testing.T, host string) {
	g, ctx, guest := NewWithT(t), t.Context(), clusters.Guest.Client
	wanted, next := get(g, ctx, blue).Spec.DeepCopy(), push(t, host, "1.36.4")
	class := func(g Gomega) *v1alpha1.ClusterAPINodeClass {
		return scopetest.Get(ctx, g, guest, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
	}
	claim := scopetest.NodeClaim("sleeper")
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(guest.Create(ctx, claim)).To(Succeed())
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode.Sleep = &v1beta1.Sleep{Suspend: true} })
	g.Eventually(func(g Gomega) {
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(get(g, ctx, blue).Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateFallingAsleep))
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1), "it drains the node")
	}).Should(Succeed())
	claim.Finalizers = nil
	g.Expect(guest.Update(ctx, claim)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero())
		scaledDown(g, ctx, blueNamespace, image+strings.Repeat("3", 64))
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/Asleep"))
		g.Expect(reasonOf(hostedCluster, v1beta1.Ready)).To(Equal("True/Asleep"))
		g.Expect(class(g).Annotations).To(HaveKeyWithValue(v1alpha1.AsleepUntilAnnotation, "someone wakes it"))
	}).Should(Succeed())

	// Cluster API deletes the Node of a Machine, and Karpenter's finalizer holds it.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: claim.Name, Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}, Finalizers: []string{karpv1.TerminationFinalizer},
	}}
	g.Expect(guest.Create(ctx, node)).To(Succeed())
	g.Expect(guest.Delete(ctx, node)).To(Succeed())
	g.Eventually(func(g Gomega) { scopetest.ExpectGone(ctx, g, guest, node) }).Should(Succeed())

	// A payload is applied meanwhile, without a replica, and isn't complete.
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = next })
	g.Eventually(func(g Gomega) {
		scaledDown(g, ctx, blueNamespace, image+strings.Repeat("4", 64))
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero())
		g.Expect(get(g, ctx, blue).Status.Version.History[0]).To(And(HaveField("Version", "1.36.4"), HaveField("State", v1beta1.UpdatePartial)))
		g.Expect(componentOf(g, ctx, blueNamespace).Status.Version).To(Equal("1.36.4"))
	}).Should(Succeed())

	// It wakes although an input is missing, with the payload that was applied.
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
		hc.Spec.Release.Image = host + "/release:9.9.8"
		hc.Spec.AutoNode.Sleep.Suspend = false
	})
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.ReleaseResolved)).To(Equal("False/ImageNotFound"))
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1))
		g.Expect(hostedCluster.Status.AutoNode.Sleep).To(BeNil())
		g.Expect(class(g).Annotations).NotTo(Or(HaveKey(v1alpha1.AsleepUntilAnnotation), HaveKey(v1alpha1.DrainingAnnotation)))
	}).Should(Succeed())

	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
		metav1.SetMetaDataAnnotation(&hc.ObjectMeta, v1beta1.SleepUntilAnnotation, "tomorrow")
	})
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, blue), v1beta1.ValidConfiguration)).To(Equal("False/InvalidSpec"))
	}).Should(Succeed())
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
		delete(hc.Annotations, v1beta1.SleepUntilAnnotation)
		hc.Spec.Release, hc.Spec.AutoNode.Sleep = wanted.Release, wanted.AutoNode.Sleep
	})
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
}
