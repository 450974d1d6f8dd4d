// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/apiserver"
)

const (
	hostedClusters = "hostedclusters.autonode.io"
	components     = "controlplanecomponents.autonode.io"
)

func definition(name string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// machineOf makes the Machine of a NodeClaim's node.
func machineOf(t *testing.T, namespace, cluster, name string) *clusterv1.Machine {
	t.Helper()
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Finalizers: []string{clusterv1.MachineFinalizer},
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster, v1alpha1.NodeClaimUIDLabel: "uid-" + name, v1alpha1.NodeClaimLabel: name},
		},
		Spec: clusterv1.MachineSpec{ClusterName: cluster, ProviderID: "kwok://" + name},
	}
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), machine)).To(Succeed())
	return machine
}

// TestDeletion deletes what the operator needs to find its machines again: CustomResourceDefinitions, or a whole installation.
func TestDeletion(t *testing.T) {
	const label = "hostile-deletion"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	gone := func(object client.Object) func() bool {
		return func() bool {
			return apierrors.IsNotFound(management.Get(ctx, client.ObjectKeyFromObject(object), object))
		}
	}
	release := servePayload(t)

	t.Run("When a pruned installation took the record of what was made, a HostedCluster should not go before its nodes", func(t *testing.T) {
		g := NewWithT(t)
		// Deleted while no operator runs; Karpenter ran there since before consent was required.
		cluster := controlPlane(t, client.ObjectKey{Namespace: "pruned-blue", Name: "blue"}, "", []byte("none"))
		machine := machineOf(t, "pruned-blue", "blue", "pruned-1")
		pruned := hosted(t, "pruned", "blue", label, func(h *v1beta1.HostedCluster) { h.Finalizers = []string{v1beta1.HostedClusterFinalizer} })
		pruned.Status.AutoNode = &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateEnabled, NodeClaimCount: ptr.To[int32](1), NodeCount: ptr.To[int32](1)}
		g.Expect(management.Status().Update(ctx, pruned)).To(Succeed())
		g.Expect(management.Delete(ctx, pruned)).To(Succeed())

		operator, stop := context.WithCancel(ctx)
		defer stop()
		serveUntil(t, operator, clusters.Management.Config, label)
		g.Eventually(condition(t, pruned, v1beta1.AutoNodeEnabled)).Should(Equal("False/ConsentMissing: ControlPlaneComponent pruned-blue/karpenter is missing, and nodes remain (last count: 1): " +
			"annotate Cluster pruned-blue/blue with autonode.io/consents-to=pruned/blue to drain them, or remove finalizer " + v1beta1.HostedClusterFinalizer + " to keep them running"))
		g.Consistently(func() error { return management.Get(ctx, client.ObjectKeyFromObject(pruned), pruned) }, 2*time.Second).Should(Succeed())
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(machine.DeletionTimestamp).To(BeNil(), "nothing was touched without consent")

		before := cluster.DeepCopy()
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, v1beta1.ConsentAnnotation, "pruned/blue")
		g.Expect(management.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		g.Eventually(condition(t, pruned, v1beta1.AutoNodeEnabled)).Should(And(HavePrefix("False/AutoNodeDraining: "), ContainSubstring("1 Machine")))
	})

	operator, stop := context.WithCancel(ctx)
	defer stop()
	serveUntil(t, operator, clusters.Management.Config, label)
	cluster := controlPlane(t, client.ObjectKey{Namespace: "deletion-green", Name: "green"}, "deletion/green", guestKubeconfig(t))
	component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: "deletion-green", Name: v1beta1.KarpenterComponent}}
	hostedCluster := hosted(t, "deletion", "green", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = release })
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "deletion-1", Finalizers: []string{karpv1.TerminationFinalizer}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		},
	}
	g.Eventually(func() error { return clusters.Guest.Client.Create(ctx, claim) }).Should(Succeed())
	machine := machineOf(t, "deletion-green", "green", "deletion-1")
	counts := func() int32 {
		read := &v1beta1.HostedCluster{}
		if management.Get(ctx, client.ObjectKeyFromObject(hostedCluster), read) != nil || read.Status.AutoNode == nil {
			return -1
		}
		return ptr.Deref(read.Status.AutoNode.NodeClaimCount, -1)
	}
	g.Eventually(counts).Should(Equal(int32(1)))

	t.Run("When the definition of ControlPlaneComponents is deleted and comes back, the operator should make its own again and lose no machine", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(component), component)).To(Succeed())
		g.Expect(management.Delete(ctx, definition(components))).To(Succeed())
		g.Eventually(gone(definition(components))).Should(BeTrue())
		installDefinitions(t)
		before := component.UID
		g.Eventually(func() bool {
			again := component.DeepCopy()
			return management.Get(ctx, client.ObjectKeyFromObject(again), again) == nil && again.UID != before
		}).Should(BeTrue())
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(machine.DeletionTimestamp).To(BeNil())
	})

	outer := t
	t.Run("When the definition of HostedClusters is deleted without its guard, the nodes should stay, and be those of the HostedCluster that is restored", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(component), component)).To(Succeed())
		g.Expect(management.Delete(ctx, definition(hostedClusters))).To(Succeed())
		g.Eventually(condition(t, hostedCluster, v1beta1.AutoNodeEnabled)).Should(HavePrefix("False/AutoNodeDrainUnconfirmed: "))
		// As docs/platform/maintain.md states: the operator ends, the finalizer goes, and so does the definition.
		stop()
		g.Eventually(func(g Gomega) {
			released := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			g.Expect(client.IgnoreNotFound(management.Patch(ctx, hostedCluster.DeepCopy(), released))).To(Succeed())
			g.Expect(gone(definition(hostedClusters))()).To(BeTrue())
		}).Should(Succeed())
		installDefinitions(t)
		serveUntil(outer, ctx, clusters.Management.Config, label)
		hostedCluster = hosted(outer, "deletion", "green", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = release })
		g.Eventually(counts).Should(Equal(int32(1)))
		for _, object := range []client.Object{claim, machine, component} {
			reader, before := management, object.GetUID()
			if object == claim {
				reader = clusters.Guest.Client
			}
			g.Expect(reader.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetUID()).To(Equal(before), "%T", object)
			g.Expect(object.GetDeletionTimestamp()).To(BeNil(), "%T", object)
		}
	})

	t.Run("When the deletion of the definition of HostedClusters is confirmed, it should stay until every node was drained", func(t *testing.T) {
		g := NewWithT(t)
		confirmed := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, v1beta1.ConfirmDeletionAnnotation))
		g.Expect(management.Patch(ctx, definition(hostedClusters), confirmed)).To(Succeed())
		g.Expect(management.Delete(ctx, definition(hostedClusters))).To(Succeed())
		g.Eventually(func() bool {
			return clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim) == nil && !claim.DeletionTimestamp.IsZero()
		}).Should(BeTrue(), "the NodeClaim is drained")
		g.Eventually(condition(t, hostedCluster, v1beta1.AutoNodeEnabled)).Should(HavePrefix("False/AutoNodeDraining: 1 node is left to drain"))
		g.Consistently(gone(definition(hostedClusters)), time.Second).Should(BeFalse())

		claim.Finalizers = nil // as Karpenter does once the node is drained
		g.Expect(clusters.Guest.Client.Update(ctx, claim)).To(Succeed())
		g.Eventually(func() bool {
			return management.Get(ctx, client.ObjectKeyFromObject(machine), machine) == nil && !machine.DeletionTimestamp.IsZero()
		}).Should(BeTrue(), "the Machine is deleted, which takes as long as it takes")
		g.Consistently(gone(definition(hostedClusters)), 2*time.Second).Should(BeFalse())
		machine.Finalizers = nil // as Cluster API does once the infrastructure is gone
		g.Expect(management.Update(ctx, machine)).To(Succeed())
		g.Eventually(gone(definition(hostedClusters))).Should(BeTrue())
	})

	t.Run("When it is installed again, the operator that runs should serve HostedClusters; and when a Cluster goes with its namespace, the counts should end at zero", func(t *testing.T) {
		g := NewWithT(t)
		installDefinitions(t)
		hostedCluster = hosted(t, "deletion", "green", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = release })
		g.Eventually(condition(t, hostedCluster, v1beta1.ValidConfiguration)).Should(HavePrefix("True/"))
		definitions, err := crds.Embedded()
		g.Expect(err).NotTo(HaveOccurred())
		err = apiserver.InstallCRDs(clusters.Guest.Config, envtest.CRDInstallOptions{CRDs: definitions})
		g.Expect(err).NotTo(HaveOccurred())
		claim.ObjectMeta = metav1.ObjectMeta{Name: "deletion-2"}
		g.Eventually(func() error { return clusters.Guest.Client.Create(ctx, claim) }).Should(Succeed())
		g.Eventually(counts).Should(Equal(int32(1)))
		// A namespace's controller deletes in no order; this is the worst one for whoever counts through the guest.
		g.Expect(management.DeleteAllOf(ctx, &clusterv1.Machine{}, client.InNamespace("deletion-green"))).To(Succeed())
		secret := kubeconfigSecret("deletion-green", "green")
		g.Expect(management.Delete(ctx, secret)).To(Succeed())
		g.Expect(management.Delete(ctx, cluster)).To(Succeed())
		g.Eventually(counts).Should(Equal(int32(0)))
		g.Eventually(condition(t, hostedCluster, v1beta1.ValidConfiguration)).Should(HavePrefix("False/ClusterNotFound: "))
		g.Expect(clusters.Guest.Client.Delete(ctx, claim)).To(Succeed())
	})
}
