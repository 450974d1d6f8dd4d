// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
)

// TestConsent has a HostedCluster name another tenant's control plane.
func TestConsent(t *testing.T) {
	const label = "hostile-consent"
	ctx, management := t.Context(), clusters.Management.Client
	serve(t, label)

	// prod is the API server of a plain Cluster in a namespace of another team.
	prod := listen(t, true, nil)
	content, err := clientcmd.Write(*prod.kubeconfig())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	clusterOf := func(t *testing.T, namespace string) *clusterv1.Cluster {
		return controlPlane(t, client.ObjectKey{Namespace: namespace, Name: "prod"}, "", content)
	}
	toProd := func(hostedCluster *v1beta1.HostedCluster) { hostedCluster.Spec.InfraID = "prod" }
	componentIn := func(namespace string) error {
		return management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1beta1.KarpenterComponent}, &v1beta1.ControlPlaneComponent{})
	}
	annotate := func(t *testing.T, object client.Object, key, value string) {
		before := object.DeepCopyObject().(client.Object)
		object.SetAnnotations(map[string]string{key: value})
		NewWithT(t).Expect(management.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
	}

	t.Run("When names join to another team's namespace, its control plane should not be touched, and the message should say who has to write what", func(t *testing.T) {
		g := NewWithT(t)
		clusterOf(t, "team-a")
		thief := hosted(t, "team", "a", label, toProd)
		g.Eventually(condition(t, thief, v1beta1.ValidConfiguration)).Should(Equal("False/ConsentMissing: neither Namespace team-a nor Cluster team-a/prod " +
			"names this HostedCluster; the control plane's owner has to annotate one of them with autonode.io/consents-to=team/a"))
		g.Consistently(prod.asked, 2*time.Second).Should(BeEmpty())
		g.Expect(apierrors.IsNotFound(componentIn("team-a"))).To(BeTrue())
		g.Expect(condition(t, thief, v1beta1.GuestReachable)()).To(BeEmpty())
	})

	t.Run("When spec.controlPlaneNamespace leads to a plain Cluster beside the HostedCluster, it should not be touched either", func(t *testing.T) {
		g := NewWithT(t)
		clusterOf(t, "shared")
		thief := hosted(t, "shared", "mine", label, func(hostedCluster *v1beta1.HostedCluster) {
			toProd(hostedCluster)
			hostedCluster.Spec.ControlPlaneNamespace = "shared"
		})
		g.Eventually(condition(t, thief, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
		g.Consistently(prod.asked, time.Second).Should(BeEmpty())
		g.Expect(apierrors.IsNotFound(componentIn("shared"))).To(BeTrue())
	})

	t.Run("When another part of the spec is wrong as well, it should not be touched", func(t *testing.T) {
		g := NewWithT(t)
		clusterOf(t, "team-window")
		thief := hosted(t, "team", "window", label, func(hostedCluster *v1beta1.HostedCluster) {
			toProd(hostedCluster)
			hostedCluster.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{
				Policy:            v1beta1.NodeUpgradeMaintenanceWindow,
				MaintenanceWindow: &v1beta1.MaintenanceWindow{Schedule: "0 0 30 2 *", Duration: scalar.Duration{Duration: time.Hour}},
			}
		})
		g.Eventually(condition(t, thief, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
		g.Consistently(prod.asked, time.Second).Should(BeEmpty())
	})

	t.Run("When the author writes the operator's finalizer and deletes the HostedCluster, no drain should reach the control plane", func(t *testing.T) {
		g := NewWithT(t)
		clusterOf(t, "team-finalizer")
		thief := hosted(t, "team", "finalizer", label, func(hostedCluster *v1beta1.HostedCluster) {
			toProd(hostedCluster)
			hostedCluster.Finalizers = []string{v1beta1.HostedClusterFinalizer}
		})
		g.Eventually(condition(t, thief, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
		g.Expect(management.Delete(ctx, thief)).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(management.Get(ctx, client.ObjectKeyFromObject(thief), &v1beta1.HostedCluster{}))
		}).Should(BeTrue())
		g.Expect(prod.asked()).To(BeEmpty())
	})

	t.Run("When consent names another HostedCluster, it should be none", func(t *testing.T) {
		g := NewWithT(t)
		cluster := clusterOf(t, "team-other")
		annotate(t, cluster, v1beta1.ConsentAnnotation, "team/others")
		thief := hosted(t, "team", "other", label, toProd)
		g.Eventually(condition(t, thief, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
	})

	t.Run("When HyperShift's annotation names the HostedCluster, it should be consent, and withdrawn it should be none", func(t *testing.T) {
		g := NewWithT(t)
		cluster := controlPlane(t, client.ObjectKey{Namespace: "team-hyper", Name: "hyper"}, "", []byte("none"))
		hostedCluster := hosted(t, "team", "hyper", label, nil)
		g.Eventually(condition(t, hostedCluster, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
		annotate(t, cluster, consent.HyperShiftAnnotation, "team/hyper")
		g.Eventually(condition(t, hostedCluster, v1beta1.ValidConfiguration)).Should(HavePrefix("True/"))
		g.Eventually(func() error { return componentIn("team-hyper") }).Should(Succeed())
		annotate(t, cluster, consent.HyperShiftAnnotation, "team/another")
		g.Eventually(condition(t, hostedCluster, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ConsentMissing: "))
	})
}
