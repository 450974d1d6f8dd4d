// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestNext(t *testing.T) {
	t.Run("When everything has an owner, it should collect again only after long", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		f.create(t, f.NodeClaim(t.Context(), "there"))
		result, err := f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(garbagecollection.Interval))
	})

	t.Run("When something seems to have no owner, it should collect again when its grace period is over", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "gone")
		f.create(t, nodeClaim)
		f.remove(t, nodeClaim)
		result, err := f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(garbagecollection.GracePeriod))
		f.clock.Step(garbagecollection.GracePeriod - 10*time.Second)
		result, err = f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(10 * time.Second))
		f.clock.Step(10 * time.Second)
		result, err = f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
		g.Expect(result.RequeueAfter).To(Equal(garbagecollection.Interval))
	})
}

// infrastructure holds the names of the infrastructure machines that are left.
type infrastructure struct{ left sync.Map }

func (i *infrastructure) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	if _, left := i.left.Load(name); left && kind == environment.TestMachine.GroupKind() {
		return &unstructured.Unstructured{}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

// registered runs the controller, and returns what counts its collections.
func (f *fixture) registered(t *testing.T, left *infrastructure) *atomic.Int64 {
	t.Helper()
	g := NewWithT(t)
	guest := f.Manager()
	collections := &atomic.Int64{}
	machines := f.Machines(nil).Config
	machines.ChildKinds = func(ctx context.Context) []schema.GroupVersionKind {
		collections.Add(1)
		return environment.ChildKinds(ctx)
	}
	g.Expect(garbagecollection.New(garbagecollection.Config{
		Guest: guest.GetClient(), GuestLive: f.Admin, ManagementLive: f.Admin, ManagementCache: f.Management.GetCache(),
		Machines: machine.New(machines), Infrastructure: left, Clock: f.clock, Delay: time.Millisecond,
	}).Register(t.Context(), guest)).To(Succeed())
	f.Run(t.Context(), guest)
	g.Eventually(collections.Load).Should(BeEquivalentTo(1), "it starts with one")
	return collections
}

func TestRegister(t *testing.T) {
	t.Run("When a node comes and goes in order, it should not collect", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		collections := f.registered(t, &infrastructure{})
		nodeClaim := f.NodeClaim(t.Context(), "comes")
		m := f.create(t, nodeClaim)
		launched := nodeClaim.DeepCopy()
		launched.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
		g.Expect(f.Admin.Status().Patch(t.Context(), launched, client.MergeFrom(nodeClaim))).To(Succeed())
		f.removeMachine(t, m)
		f.remove(t, nodeClaim)
		g.Consistently(collections.Load).WithTimeout(500 * time.Millisecond).Should(BeEquivalentTo(1))
	})

	t.Run("When a Machine goes and its infrastructure stays, it should collect", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		left := &infrastructure{}
		collections := f.registered(t, left)
		m := f.create(t, f.NodeClaim(t.Context(), "forced"))
		left.left.Store(m.Spec.InfrastructureRef.Name, nil)
		f.removeMachine(t, m)
		g.Eventually(collections.Load).Should(BeNumerically(">", 1))
	})

	t.Run("When a NodeClaim goes before its Machine, or a Machine comes without its NodeClaim, it should collect", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		collections := f.registered(t, &infrastructure{})
		first := f.NodeClaim(t.Context(), "goes")
		m := f.create(t, first)
		launched := first.DeepCopy()
		launched.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
		g.Expect(f.Admin.Status().Patch(t.Context(), launched, client.MergeFrom(first))).To(Succeed())
		gone := f.NodeClaim(t.Context(), "gone")
		never := f.NodeClaim(t.Context(), "never-launched")
		for _, step := range []struct {
			what    string
			happens func()
		}{
			{"a NodeClaim goes whose Machine stays", func() { f.remove(t, first) }},
			{"a NodeClaim goes that has no provider ID", func() { f.remove(t, never) }},
			{"a Machine comes whose NodeClaim is gone", func() {
				f.remove(t, gone)
				f.create(t, gone)
			}},
		} {
			before := collections.Load()
			step.happens()
			g.Eventually(collections.Load).Should(BeNumerically(">", before), step.what)
		}
		i := 0
		g.Eventually(func() []string {
			f.clock.Step(garbagecollection.GracePeriod)
			i++
			g.Expect(f.Admin.Delete(t.Context(), f.NodeClaim(t.Context(), fmt.Sprint("goes-too-", i)))).To(Succeed())
			return f.Objects(t.Context(), machineKind)
		}).WithPolling(200*time.Millisecond).Should(BeEmpty(), "what is left is removed")
	})
}

// removeMachine deletes a Machine and waits until the cache lacks it.
func (f *fixture) removeMachine(t *testing.T, m *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(f.Admin.Delete(t.Context(), m)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(m), &clusterv1.Machine{}))
	}).Should(BeTrue())
}
