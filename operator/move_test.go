// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
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
	hosted := newHosted("clusters", name, push(t, host, "1.36.2"), label)
	g.Expect(management.Create(ctx, hosted)).To(Succeed())
	runs(t, name, image+strings.Repeat("2", 64))
	claim := scopetest.NodeClaim("moves")
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
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
				scopetest.ExpectGone(ctx, g, management, object)
			}
		}).Should(Succeed())
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp).To(BeNil())
		// envtest has no garbage collector: the owner shows what it would collect.
		g.Expect(deploymentOf(g, ctx, namespace).OwnerReferences).To(ConsistOf(HaveField("Kind", "ControlPlaneComponent")))
	})
}
