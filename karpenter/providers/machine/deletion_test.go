// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestDrained(t *testing.T) {
	t.Run("When the Machine declares that its node is drained, the deletion should be one write", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "drained")
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Machines(nil).Drained(t.Context(), created)).To(Succeed())
		g.Eventually(func(g Gomega) {
			cached := &clusterv1.Machine{}
			g.Expect(s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), cached)).To(Succeed())
			g.Expect(cached.Annotations).To(And(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation)))
		}).Should(Succeed())
		counted := &environment.Faults{Client: s.Management.GetClient()}
		g.Expect(s.Machines(counted).Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(counted.Writes()).To(BeEquivalentTo(1))
	})
}

func TestDeletion(t *testing.T) {
	const (
		preDrain     = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/migrate"
		preTerminate = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/backup"
	)
	t.Run("When a Machine has deletion hooks, it should leave them to their owners and wait until Cluster API lets the Machine go", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		nodeClaim := s.NodeClaim(t.Context(), "hooked")
		plan := s.Plan(nodeClaim)
		plan.Annotations[preDrain], plan.Annotations[preTerminate] = "live-migrator", "velero"
		created, err := machines.Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		held := created.DeepCopy()
		held.Finalizers = []string{environment.HoldFinalizer}
		g.Expect(s.Admin.Patch(t.Context(), held, client.MergeFrom(created))).To(Succeed())

		for range 3 {
			g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "it is still there")
			after := &clusterv1.Machine{}
			g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(created), after)).To(Succeed())
			g.Expect(after.DeletionTimestamp).NotTo(BeNil())
			g.Expect(after.Annotations).To(And(HaveKeyWithValue(preDrain, "live-migrator"), HaveKeyWithValue(preTerminate, "velero")))
		}
		expectOne(t, s, nodeClaim)
	})

	t.Run("When a template already declares one half of not draining, it should declare the other half too", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		nodeClaim := s.NodeClaim(t.Context(), "half-said")
		plan := s.Plan(nodeClaim)
		plan.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = "true"
		created, err := machines.Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		held := created.DeepCopy()
		held.Finalizers = []string{environment.HoldFinalizer}
		g.Expect(s.Admin.Patch(t.Context(), held, client.MergeFrom(created))).To(Succeed())
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		after := &clusterv1.Machine{}
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(created), after)).To(Succeed())
		g.Expect(after.Annotations).To(And(
			HaveKeyWithValue(clusterv1.ExcludeNodeDrainingAnnotation, "true"), HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation)))
	})

	t.Run("When Karpenter tries again and again, it should write once", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "patient")
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		held := created.DeepCopy()
		held.Finalizers = []string{environment.HoldFinalizer}
		g.Expect(s.Admin.Patch(t.Context(), held, client.MergeFrom(created))).To(Succeed())
		g.Expect(s.Machines(nil).Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Eventually(func(g Gomega) {
			cached := &clusterv1.Machine{}
			g.Expect(s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), cached)).To(Succeed())
			g.Expect(cached.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		counted := &environment.Faults{Client: s.Management.GetClient()}
		for range 3 {
			g.Expect(s.Machines(counted).Delete(t.Context(), nodeClaim)).To(Succeed())
		}
		g.Expect(counted.Writes()).To(BeZero())
	})

	t.Run("When Karpenter tries again after the last object has gone, it should answer without a request", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		calls := &environment.Calls{}
		machines := failing(s, calls)
		nodeClaim := s.NodeClaim(t.Context(), "gone")
		_, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() error { return machines.Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
		before := calls.Count()
		for range 3 {
			g.Expect(machines.Delete(t.Context(), nodeClaim)).To(MatchError(machine.ErrNotFound))
		}
		g.Expect(calls.Count()).To(Equal(before))
	})

	t.Run("When a watch has reported that the Machine is gone, it should ask only while the infrastructure machine is there", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		live := &environment.Calls{}
		machines := s.Machines(nil)
		machines.Live, machines.Infrastructure = live.Client(s.Admin), infrastructure{s}
		g.Expect(machines.Watch(t.Context(), s.Management.GetCache())).To(Succeed())
		nodeClaim := s.NodeClaim(t.Context(), "watched")
		created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		before := live.Count()
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Eventually(func() error {
			return s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), &clusterv1.Machine{})
		}).ShouldNot(Succeed())
		g.Expect(live.Count()).To(Equal(before))
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "a person has removed the Machine's finalizer")
		g.Expect(live.Count()).To(BeNumerically(">", before))
		g.Eventually(func() []string { return s.Objects(t.Context(), environment.TestMachine) }).Should(BeEmpty())
		before = live.Count()
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(MatchError(machine.ErrNotFound))
		g.Expect(live.Count()).To(Equal(before))
	})

	t.Run("When the cache doesn't show yet that a Machine was deleted, it should not delete it again", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "lagging")
		created, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		counted := &environment.Faults{Client: laggingCache{s.Management.GetClient(), created}}
		machines := s.Machines(counted)
		for range 3 {
			g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "the cache reports that it is still there")
		}
		g.Expect(counted.Writes()).To(BeEquivalentTo(2), "one patch, one deletion")
	})

	t.Run("When a Machine is garbage-collected before its node was drained, it should leave the draining to Cluster API", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		created, err := machines.Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "collected")))
		g.Expect(err).NotTo(HaveOccurred())
		held := created.DeepCopy()
		held.Finalizers = []string{environment.HoldFinalizer}
		g.Expect(s.Admin.Patch(t.Context(), held, client.MergeFrom(created))).To(Succeed())
		g.Expect(machines.GarbageCollect(t.Context(), created)).To(Succeed())
		after := &clusterv1.Machine{}
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(created), after)).To(Succeed())
		g.Expect(after.DeletionTimestamp).NotTo(BeNil())
		g.Expect(after.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
		g.Expect(machines.GarbageCollect(t.Context(), &clusterv1.Machine{})).To(MatchError(machine.ErrTaken))
	})
}

// laggingCache shows a Machine as it was.
type laggingCache struct {
	client.Client
	machine *clusterv1.Machine
}

func (c laggingCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	machines, ok := list.(*clusterv1.MachineList)
	if !ok {
		return fmt.Errorf("listing %T", list)
	}
	machines.Items = []clusterv1.Machine{*c.machine.DeepCopy()}
	return nil
}

// infrastructure reads infrastructure machines from the API server.
type infrastructure struct{ *environment.Environment }

func (i infrastructure) Get(ctx context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind.WithVersion(environment.TestMachine.Version))
	return object, i.Admin.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: name}, object)
}
