// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

func TestMove(t *testing.T) {
	const name, namespace, label = "move", "clusters-move", "move"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	provide(t)
	host := serveRegistry(t)
	removeAll(t, label)
	run(t, clusters.Management.Config, selecting(label))
	platform(t, name)
	hosted := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Labels: map[string]string{label: ""}},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: push(t, host, "1.36.2")}, AutoNode: scopetest.AutoNode()},
	}
	g.Expect(management.Create(ctx, hosted)).To(Succeed())
	g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, name), v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
	}).Should(Succeed())
	claim := countedClaim(0)
	claim.Name, claim.Finalizers = "moves", []string{karpv1.TerminationFinalizer}
	g.Expect(clusters.Guest.Client.Create(ctx, claim)).To(Succeed())
	t.Cleanup(func() {
		claim.SetFinalizers(nil)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		g.Expect(clusters.Guest.Client.Patch(context.WithoutCancel(ctx), claim, patch)).To(Succeed())
		g.Expect(client.IgnoreNotFound(clusters.Guest.Client.Delete(context.WithoutCancel(ctx), claim))).To(Succeed())
	})

	t.Run("When clusterctl has moved a HostedCluster, it should leave the nodes and what is in the guest, and remove Karpenter here", func(t *testing.T) {
		g := NewWithT(t)
		// As clusterctl does it, which replaces all annotations; it removes the finalizers only afterwards.
		annotate := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"add","path":"/metadata/annotations","value":{%q:""}}]`, clusterctlv1.DeleteForMoveAnnotation))
		g.Expect(management.Patch(ctx, hosted, annotate)).To(Succeed())
		g.Expect(management.Delete(ctx, hosted)).To(Succeed())
		g.Eventually(func(g Gomega) {
			for _, object := range []client.Object{
				&v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}},
				&v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.KarpenterComponent}},
			} {
				err := management.Get(ctx, client.ObjectKeyFromObject(object), object)
				g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T: %v", object, err)
			}
		}).Should(Succeed())
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp).To(BeNil())
		// envtest has no garbage collector: the owner shows what it would collect.
		deployment := &appsv1.Deployment{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1beta1.KarpenterComponent}, deployment)).To(Succeed())
		g.Expect(deployment.OwnerReferences).To(ConsistOf(HaveField("Kind", "ControlPlaneComponent")))
	})
}
