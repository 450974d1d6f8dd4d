// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
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
	uids := map[types.UID]types.UID{}
	var moved []*unstructured.Unstructured
	for _, o := range []struct {
		kind schema.GroupVersionKind
		name string
	}{{clusterv1.GroupVersion.WithKind("Cluster"), f.Cluster.Name}, {machineKind, f.MachineName(name)}, {environment.TestMachine, f.MachineName(name)}, {environment.KubeadmConfig, f.MachineName(name)}} {
		object := f.child(o.kind, o.name)
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), object.DeepCopy())).To(Succeed())
		moved = append(moved, object)
	}
	f.SettleGone(f.Management, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.MachineName(name)}})
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
		f.Expect(f.Admin.Create(t.Context(), object)).To(Succeed())
		uids[before] = object.GetUID()
		between()
	}
}

func TestMove(t *testing.T) {
	f := newFixture(t, nil)
	nodeClaim := f.NodeClaim(t.Context(), "moves")
	m := f.create(nodeClaim)
	patched := m.DeepCopy()
	patched.Spec.ProviderID = "cloud://moves"
	f.Expect(f.Admin.Patch(t.Context(), patched, client.MergeFrom(m))).To(Succeed())
	f.own(m)
	paused := f.Cluster.DeepCopy()
	paused.Spec.Paused = ptr.To(true)
	f.Expect(f.Admin.Patch(t.Context(), paused, client.MergeFrom(f.Cluster))).To(Succeed())

	t.Run("When clusterctl moves a Cluster, it should remove nothing of what has arrived so far", func(t *testing.T) {
		move(t, f, nodeClaim.Name, func() { f.Expect(f.twice(t.Context())).To(Succeed()) })
	})
	machines := f.Machines(nil)
	t.Run("When clusterctl has moved a Cluster, it should find a NodeClaim's Machine by its UID and by both provider IDs", func(t *testing.T) {
		f.Eventually(func(g Gomega) {
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
		resumed := &clusterv1.Cluster{}
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.Cluster), resumed)).To(Succeed())
		f.Expect(resumed.Spec.Paused).To(HaveValue(BeTrue()))
		stored := resumed.DeepCopy()
		resumed.Spec.Paused = nil
		f.Expect(f.Admin.Patch(t.Context(), resumed, client.MergeFrom(stored))).To(Succeed())
		f.Eventually(func() (bool, error) { return machines.Paused(t.Context()) }).Should(BeFalse())
		f.Expect(f.twice(t.Context())).To(Succeed())

		plan := f.Plan(nodeClaim)
		plan.Cluster = resumed
		_, err := machines.Create(t.Context(), plan)
		f.Expect(err).NotTo(HaveOccurred())
		f.expect(f, nodeClaim.Name)
		f.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		f.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})
}

func TestClaimDeletedEarly(t *testing.T) {
	f := newFixture(t, nil)
	for objects := int64(1); objects <= 3; objects++ {
		t.Run(fmt.Sprintf("When a NodeClaim goes before it has a provider ID and Create had made %d objects, it should leave nothing", objects), func(t *testing.T) {
			nodeClaim := f.NodeClaim(t.Context(), fmt.Sprintf("early-%d", objects))
			_, err := f.Machines(&environment.Faults{Client: f.Management.GetClient(), FailAt: objects + 1}).Create(t.Context(), f.Plan(nodeClaim))
			if objects < 3 {
				f.Expect(err).To(MatchError(environment.ErrFault))
				f.Expect(f.twice(t.Context())).To(Succeed())
				f.Expect(f.Objects(t.Context(), environment.TestMachine)).To(HaveLen(1), "the NodeClaim may yet get its Machine")
			} else {
				f.Settle(f.Management, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.MachineName(nodeClaim.Name)}})
			}
			// Karpenter requests no deletion then.
			f.remove(nodeClaim)
			f.Eventually(func(g Gomega) {
				g.Expect(f.twice(t.Context())).To(Succeed())
				f.expect(g)
			}).Should(Succeed())
		})
	}
}
