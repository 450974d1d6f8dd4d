// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestDrained(t *testing.T) {
	t.Run("When the Machine declares that its node is drained, the deletion should be one write", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim, created := s.create("drained")
		s.Expect(s.Machines(nil).Drained(t.Context(), created)).To(Succeed())
		s.Eventually(func(g Gomega) {
			cached := &clusterv1.Machine{}
			g.Expect(s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), cached)).To(Succeed())
			g.Expect(cached.Annotations).To(And(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation)))
		}).Should(Succeed())
		counted := &environment.Faults{Client: s.Management.GetClient()}
		s.Expect(s.Machines(counted).Delete(t.Context(), nodeClaim)).To(Succeed())
		s.Expect(counted.Writes()).To(BeEquivalentTo(1))
	})
}

func TestDeletion(t *testing.T) {
	t.Run("When a template already declares one half of not draining, it should declare the other half too", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim, created := s.create("half-said", func(p *machine.Plan) { p.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = "true" })
		s.hold(created)
		s.Expect(s.Machines(nil).Delete(t.Context(), nodeClaim)).To(Succeed())
		s.Expect(s.read(created).Annotations).To(And(
			HaveKeyWithValue(clusterv1.ExcludeNodeDrainingAnnotation, "true"), HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation)))
	})

	t.Run("When Karpenter tries again after the last object has gone, it should answer without a request", func(t *testing.T) {
		s := newFixture(t)
		calls := &environment.Calls{}
		machines := failing(s, calls)
		nodeClaim, _ := s.create("gone")
		s.Eventually(func() error { return machines.Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
		before := calls.Count()
		for range 3 {
			s.Expect(machines.Delete(t.Context(), nodeClaim)).To(MatchError(machine.ErrNotFound))
		}
		s.Expect(calls.Count()).To(Equal(before))
	})

	t.Run("When a watch has reported that the Machine is gone, it should ask only while the infrastructure machine is there", func(t *testing.T) {
		s := newFixture(t)
		live := &environment.Calls{}
		machines := s.Machines(nil)
		machines.Live, machines.Infrastructure = live.Client(s.Admin), infrastructure{s}
		s.Expect(machines.Watch(t.Context(), s.Management.GetCache())).To(Succeed())
		nodeClaim, created := s.create("watched")
		before := live.Count()
		s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		s.Eventually(func() error {
			return s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), &clusterv1.Machine{})
		}).ShouldNot(Succeed())
		s.Expect(live.Count()).To(Equal(before))
		s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "a person has removed the Machine's finalizer")
		s.Expect(live.Count()).To(BeNumerically(">", before))
		s.Eventually(func() []string { return s.Objects(t.Context(), environment.TestMachine) }).Should(BeEmpty())
		before = live.Count()
		s.Expect(machines.Delete(t.Context(), nodeClaim)).To(MatchError(machine.ErrNotFound))
		s.Expect(live.Count()).To(Equal(before))
	})

	t.Run("When the cache doesn't show yet that a Machine was annotated and deleted, it should do neither again", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim, created := s.create("lagging")
		counted := &environment.Faults{Client: laggingCache{s.Management.GetClient(), created}}
		machines := s.Machines(counted)
		for range 3 {
			s.Expect(machines.Drained(t.Context(), created)).To(Succeed())
		}
		for range 3 {
			s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "the cache reports that it is still there")
		}
		s.Expect(counted.Writes()).To(BeEquivalentTo(2), "one patch, one deletion")
	})

	t.Run("When a Machine is garbage-collected before its node was drained, it should leave the draining to Cluster API", func(t *testing.T) {
		s := newFixture(t)
		machines := s.Machines(nil)
		_, created := s.create("collected")
		s.hold(created)
		s.Expect(machines.GarbageCollect(t.Context(), created)).To(Succeed())
		after := s.read(created)
		s.Expect(after.DeletionTimestamp).NotTo(BeNil())
		s.Expect(after.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
		s.Expect(machines.GarbageCollect(t.Context(), &clusterv1.Machine{})).To(MatchError(machine.ErrTaken))
	})
}

// telling is a management cluster with one Machine, which answers a patch once answer is closed.
type telling struct {
	laggingCache
	answer  chan struct{}
	patches atomic.Int32
}

// Get implements client.Client: the Cluster isn't paused.
func (*telling) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// Patch implements client.Client.
func (c *telling) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	c.patches.Add(1)
	<-c.answer
	return nil
}

// Delete implements client.Client.
func (*telling) Delete(context.Context, client.Object, ...client.DeleteOption) error { return nil }

func TestDrainedWhileDeleted(t *testing.T) {
	t.Run("When the deletion comes while Cluster API is being told that the node is drained, it should be told once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			created := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "drained", UID: "drained", Labels: map[string]string{
				v1alpha1.NodeClaimLabel: v1alpha1.NodeClaimLabelValue("drained"), v1alpha1.NodeClaimUIDLabel: "drained",
			}}}
			management := &telling{laggingCache: laggingCache{machine: created}, answer: make(chan struct{})}
			machines := machine.New(machine.Config{Management: management})
			errs := make(chan error, 2)
			go func() { errs <- machines.Drained(t.Context(), created) }()
			go func() { errs <- machines.Delete(t.Context(), &karpv1.NodeClaim{}) }()
			synctest.Wait()
			close(management.answer)
			g.Expect(<-errs).To(Succeed())
			g.Expect(<-errs).To(Succeed())
			g.Expect(management.patches.Load()).To(BeEquivalentTo(1))
		})
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
type infrastructure struct{ *fixture }

func (i infrastructure) Get(ctx context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind.WithVersion(environment.TestMachine.Version))
	return object, i.Admin.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: name}, object)
}
