// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// move does to a Cluster's objects what clusterctl move does: each is made again in another management cluster, with the same
// name, labels, annotations and spec, without status, with another UID, and with owner references to the new UIDs; owners come
// first. Here it comes back to the same one. Between looks at what is there after each object.
func move(t *testing.T, f *fixture, name string, between func()) {
	t.Helper()
	g := NewWithT(t)
	uids := map[types.UID]types.UID{}
	var moved []*unstructured.Unstructured
	for _, o := range []struct {
		kind schema.GroupVersionKind
		name string
	}{{clusterv1.GroupVersion.WithKind("Cluster"), f.Cluster.Name}, {machineKind, name}, {environment.TestMachine, f.Name(environment.TestMachine, name)}, {environment.KubeadmConfig, name}} {
		object := f.child(o.kind, o.name)
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		g.Expect(f.Admin.Delete(t.Context(), object.DeepCopy())).To(Succeed())
		moved = append(moved, object)
	}
	g.Eventually(func() bool {
		return apierrors.IsNotFound(f.Management.GetClient().Get(t.Context(), types.NamespacedName{Namespace: f.Namespace, Name: name}, &clusterv1.Machine{}))
	}).Should(BeTrue())
	for _, object := range moved {
		before := object.GetUID()
		owners := object.GetOwnerReferences()
		for i := range owners {
			owners[i].UID = uids[owners[i].UID]
		}
		object.SetOwnerReferences(owners)
		object.SetUID("")
		object.SetResourceVersion("")
		unstructured.RemoveNestedField(object.Object, "status")
		g.Expect(f.Admin.Create(t.Context(), object)).To(Succeed())
		uids[before] = object.GetUID()
		between()
	}
}

func TestMove(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t, nil)
	nodeClaim := f.NodeClaim(t.Context(), "moves")
	m := f.create(t, nodeClaim)
	patched := m.DeepCopy()
	patched.Spec.ProviderID = "cloud://moves"
	g.Expect(f.Admin.Patch(t.Context(), patched, client.MergeFrom(m))).To(Succeed())
	// Cluster API makes the Machine the controller of its infrastructure and bootstrap objects.
	controller := true
	for _, kind := range environment.ChildKinds(t.Context()) {
		child := f.child(kind, f.Name(kind, nodeClaim.Name))
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(child), child)).To(Succeed())
		child.SetOwnerReferences(append(child.GetOwnerReferences(), metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID, Controller: &controller,
		}))
		g.Expect(f.Admin.Update(t.Context(), child)).To(Succeed())
	}
	paused := f.Cluster.DeepCopy()
	paused.Spec.Paused = &controller
	g.Expect(f.Admin.Patch(t.Context(), paused, client.MergeFrom(f.Cluster))).To(Succeed())

	t.Run("When clusterctl moves a Cluster, it should remove nothing of what has arrived so far", func(t *testing.T) {
		g := NewWithT(t)
		move(t, f, nodeClaim.Name, func() { g.Expect(f.twice(t.Context())).To(Succeed()) })
	})
	machines := f.Machines(nil)
	t.Run("When clusterctl has moved a Cluster, it should find a NodeClaim's Machine by its UID and by both provider IDs", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			found, err := machines.ForNodeClaim(t.Context(), nodeClaim.UID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.UID).NotTo(Equal(m.UID))
			for _, id := range []string{"cloud://moves", machine.SyntheticProviderID(client.ObjectKeyFromObject(m))} {
				byID, err := machines.ForProviderID(t.Context(), id)
				g.Expect(err).NotTo(HaveOccurred(), id)
				g.Expect(byID.UID).To(Equal(found.UID))
			}
		}).Should(Succeed())
	})
	t.Run("When the moved Cluster resumes, it should take what has moved for its own: keep it, make no other, and delete it when asked", func(t *testing.T) {
		g := NewWithT(t)
		resumed := &clusterv1.Cluster{}
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.Cluster), resumed)).To(Succeed())
		g.Expect(resumed.Spec.Paused).To(HaveValue(BeTrue()))
		stored := resumed.DeepCopy()
		resumed.Spec.Paused = nil
		g.Expect(f.Admin.Patch(t.Context(), resumed, client.MergeFrom(stored))).To(Succeed())
		g.Eventually(func() (bool, error) { return machines.Paused(t.Context()) }).Should(BeFalse())
		g.Expect(f.twice(t.Context())).To(Succeed())

		plan := f.Plan(nodeClaim)
		plan.Cluster = resumed
		_, err := machines.Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
			g.Expect(f.Objects(t.Context(), kind)).To(ConsistOf(f.Name(kind, nodeClaim.Name)), kind.Kind)
		}
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})
}

func TestClaimDeletedEarly(t *testing.T) {
	f := newFixture(t, nil)
	for objects := int64(1); objects <= 3; objects++ {
		t.Run(fmt.Sprintf("When a NodeClaim goes before it has a provider ID and Create had made %d objects, it should leave nothing", objects), func(t *testing.T) {
			g := NewWithT(t)
			nodeClaim := f.NodeClaim(t.Context(), fmt.Sprintf("early-%d", objects))
			_, err := f.Machines(&environment.Faults{Client: f.Management.GetClient(), FailAt: objects + 1}).Create(t.Context(), f.Plan(nodeClaim))
			if objects < 3 {
				g.Expect(err).To(MatchError(environment.ErrFault))
			} else {
				f.cached(t, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: nodeClaim.Name}})
			}
			// Karpenter requests no deletion then.
			f.remove(t, nodeClaim)
			g.Eventually(func(g Gomega) {
				g.Expect(f.twice(t.Context())).To(Succeed())
				for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
					g.Expect(f.Objects(t.Context(), kind)).To(BeEmpty(), kind.Kind)
				}
			}).Should(Succeed())
		})
	}
}
