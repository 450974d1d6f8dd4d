// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

func pauses(t *testing.T, host string) {
	g, ctx := NewWithT(t), t.Context()
	upgrade := push(t, host, "1.36.3")
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
		hc.Spec.PausedUntil = ptr.To(time.Now().Add(time.Hour).Format(time.RFC3339))
		hc.Spec.Release.Image = upgrade
	})
	g.Eventually(func(g Gomega) {
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero())
		scaledDown(g, ctx, blueNamespace, image+strings.Repeat("2", 64))
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/Paused"))
		g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
		g.Expect(hostedCluster.Status.AutoNode.Message).To(And(
			HavePrefix("paused until "), HaveSuffix("; Karpenter is scaled to zero; nodes and pods go on running")))
		g.Expect(hostedCluster.Status.Version.Desired.Version).To(Equal("1.36.2"))
		available := meta.FindStatusCondition(componentOf(g, ctx, blueNamespace).Status.Conditions, v1beta1.Available)
		g.Expect(available).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.PausedReason)))
	}).Should(Succeed())
	// Resumes, with the upgrade.
	until := time.Now().Add(4 * time.Second).Truncate(time.Second)
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To(until.Format(time.RFC3339)) })
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, blue)
		g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateUpgrading), "%+v", hostedCluster.Status.AutoNode)
		g.Expect(hostedCluster.Status.AutoNode.Message).To(HavePrefix("Karpenter is being upgraded from release 1.36.2 to 1.36.3: "))
		g.Expect(hostedCluster.Status.Version.History[0].Version).To(Equal("1.36.3"))
		g.Expect(hostedCluster.Status.Version.History[0].State).To(Equal(v1beta1.UpdatePartial))
	}).Should(Succeed())
	g.Expect(time.Now()).To(BeTemporally(">=", until))
	g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1))
	g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
}

func resumesWithout(t *testing.T, host string) {
	g, ctx := NewWithT(t), t.Context()
	wanted := get(g, ctx, blue).Spec.DeepCopy()
	for _, missing := range []struct {
		change   func(*v1beta1.HostedClusterSpec)
		reported func(*v1beta1.HostedCluster) string
		want     string
	}{
		{
			change:   func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = host + "/release:9.9.8" },
			reported: func(hc *v1beta1.HostedCluster) string { return reasonOf(hc, v1beta1.ReleaseResolved) },
			want:     "False/ImageNotFound",
		},
		{
			change:   func(spec *v1beta1.HostedClusterSpec) { spec.PullSecret = &corev1.LocalObjectReference{Name: "missing"} },
			reported: func(hc *v1beta1.HostedCluster) string { return hc.Status.AutoNode.Message },
			want:     "Secret clusters/missing",
		},
	} {
		patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To("true") })
		g.Eventually(func(g Gomega) { g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero()) }).Should(Succeed())
		patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
			hc.Spec.PausedUntil = nil
			missing.change(&hc.Spec)
		})
		g.Eventually(func(g Gomega) {
			g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1))
			g.Expect(missing.reported(get(g, ctx, blue))).To(ContainSubstring(missing.want))
		}).Should(Succeed())
		patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) {
			hc.Spec.Release, hc.Spec.PullSecret = wanted.Release, wanted.PullSecret
		})
		g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
	}
}

func pausesWithClusterAPI(t *testing.T) {
	ctx, management := t.Context(), clusters.Management.Client
	annotate := func(object *metav1.ObjectMeta, paused bool) {
		metav1.SetMetaDataAnnotation(object, clusterv1.PausedAnnotation, "")
		if !paused {
			delete(object.Annotations, clusterv1.PausedAnnotation)
		}
	}
	change := func(g Gomega, change func(*clusterv1.Cluster)) {
		cluster := scopetest.Get(ctx, g, management, blueNamespace, blue, &clusterv1.Cluster{})
		before := cluster.DeepCopy()
		change(cluster)
		g.Expect(management.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	}
	const byCluster = "Cluster clusters-blue/blue is paused; unpause it to go on"
	for _, test := range []struct {
		name, message string
		set           func(g Gomega, paused bool)
	}{
		{
			name: "by the annotation of the HostedCluster", message: "paused by an annotation of the HostedCluster; remove cluster.x-k8s.io/paused to go on",
			set: func(g Gomega, paused bool) {
				patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { annotate(&hc.ObjectMeta, paused) })
			},
		}, {
			name: "by the annotation of the Cluster", message: byCluster,
			set: func(g Gomega, paused bool) {
				change(g, func(cluster *clusterv1.Cluster) { annotate(&cluster.ObjectMeta, paused) })
			},
		}, {
			name: "by the field of the Cluster", message: byCluster,
			set: func(g Gomega, paused bool) {
				change(g, func(cluster *clusterv1.Cluster) { cluster.Spec.Paused = ptr.To(paused) })
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			test.set(g, true)
			g.Eventually(func(g Gomega) {
				g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero())
				hostedCluster := get(g, ctx, blue)
				g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/Paused"))
				g.Expect(hostedCluster.Status.AutoNode.Message).To(HavePrefix(test.message + "; Karpenter is "))
			}).Should(Succeed())
			test.set(g, false)
			g.Eventually(func(g Gomega) {
				g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1))
				g.Expect(get(g, ctx, blue).Status.AutoNode.State).NotTo(Equal(v1beta1.AutoNodeStatePaused))
			}).Should(Succeed())
			g.Eventually(func(g Gomega) { rollOut(g, ctx, blueNamespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
		})
	}
}

func deletesPaused(t *testing.T) {
	g, ctx, management, guest := NewWithT(t), t.Context(), clusters.Management.Client, clusters.Guest.Client
	claim := scopetest.NodeClaim("general-x")
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(guest.Create(ctx, claim)).To(Succeed())
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To("true") })
	g.Eventually(func(g Gomega) {
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeZero())
		g.Expect(get(g, ctx, blue).Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
	}).Should(Succeed())
	g.Expect(management.Delete(ctx, get(g, ctx, blue))).To(Succeed())
	g.Consistently(func(g Gomega) {
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp.IsZero()).To(BeTrue())
		g.Expect(get(g, ctx, blue).Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
	}, "500ms").Should(Succeed())
	patch(g, ctx, blue, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = nil })
	g.Eventually(func(g Gomega) {
		g.Expect(replicas(g, ctx, blueNamespace)).To(BeEquivalentTo(1))
		g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp.IsZero()).To(BeFalse())
		hostedCluster := get(g, ctx, blue)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeDraining"))
		g.Expect(hostedCluster.Status.AutoNode.DrainStartedTime).NotTo(BeNil())
	}).Should(Succeed())
	machine := newMachine(blueNamespace, blue, claim.Name)
	machine.Finalizers = []string{clusterv1.MachineFinalizer}
	g.Expect(management.Create(ctx, machine)).To(Succeed())
	claim.Finalizers = nil
	g.Expect(guest.Update(ctx, claim)).To(Succeed())
	const waits = "1 Machine is to be deleted by Cluster API"
	g.Eventually(func(g Gomega) {
		g.Expect(get(g, ctx, blue).Status.AutoNode).To(HaveField("Message", HavePrefix(waits)))
	}).Should(Succeed())
	g.Expect(management.Patch(ctx, machine, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := &v1beta1.HostedCluster{}
		if err := management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: blue}, hostedCluster); err != nil {
			g.Expect(client.IgnoreNotFound(err)).To(Succeed())
			return
		}
		g.Expect(hostedCluster.Status.AutoNode).To(Or(BeNil(), HaveField("Message", Not(HavePrefix(waits)))))
	}).Should(Succeed())
}
