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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// infrastructure holds the names of the infrastructure machines that are left.
type infrastructure struct{ left sync.Map }

func (i *infrastructure) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	if _, left := i.left.Load(name); left && kind == environment.TestMachine.GroupKind() {
		return &unstructured.Unstructured{}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

// registered runs the controller, and returns what counts its collections.
func (f *fixture) registered(left *infrastructure) *atomic.Int64 {
	f.t.Helper()
	guest := f.Manager()
	collections := &atomic.Int64{}
	machines := f.Machines(nil).Config
	machines.ChildKinds = func(ctx context.Context) []schema.GroupVersionKind {
		collections.Add(1)
		return environment.ChildKinds(ctx)
	}
	f.Expect(garbagecollection.New(garbagecollection.Config{
		Guest: guest.GetClient(), GuestLive: f.Admin, ManagementLive: f.Admin, ManagementCache: f.Management.GetCache(),
		Machines: machine.New(machines), Infrastructure: left, Clock: f.clock, Delay: time.Millisecond,
	}).Register(f.t.Context(), guest)).To(Succeed())
	f.Run(f.t.Context(), guest)
	f.Eventually(collections.Load).Should(BeEquivalentTo(1), "it starts with one")
	return collections
}

func TestRegister(t *testing.T) {
	t.Run("When a node comes and goes in order, it should not collect", func(t *testing.T) {
		f := newFixture(t, nil)
		collections := f.registered(&infrastructure{})
		nodeClaim := f.NodeClaim(t.Context(), "comes")
		m := f.create(nodeClaim)
		launched := nodeClaim.DeepCopy()
		launched.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
		f.Expect(f.Admin.Status().Patch(t.Context(), launched, client.MergeFrom(nodeClaim))).To(Succeed())
		f.removeMachine(m)
		f.remove(nodeClaim)
		f.Consistently(collections.Load).WithTimeout(500 * time.Millisecond).Should(BeEquivalentTo(1))
	})

	t.Run("When a Machine goes and its infrastructure stays, it should collect", func(t *testing.T) {
		f := newFixture(t, nil)
		left := &infrastructure{}
		collections := f.registered(left)
		m := f.create(f.NodeClaim(t.Context(), "forced"))
		left.left.Store(m.Spec.InfrastructureRef.Name, nil)
		f.removeMachine(m)
		f.Eventually(collections.Load).Should(BeNumerically(">", 1))
	})

	t.Run("When a NodeClaim goes before its Machine, or a Machine comes without its NodeClaim, it should collect", func(t *testing.T) {
		f := newFixture(t, nil)
		collections := f.registered(&infrastructure{})
		first := f.NodeClaim(t.Context(), "goes")
		m := f.create(first)
		launched := first.DeepCopy()
		launched.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
		f.Expect(f.Admin.Status().Patch(t.Context(), launched, client.MergeFrom(first))).To(Succeed())
		gone := f.NodeClaim(t.Context(), "gone")
		never := f.NodeClaim(t.Context(), "never-launched")
		for _, step := range []struct {
			what    string
			happens func()
		}{
			{"a NodeClaim goes whose Machine stays", func() { f.remove(first) }},
			{"a NodeClaim goes that has no provider ID", func() { f.remove(never) }},
			{"a Machine comes whose NodeClaim is gone", func() {
				f.remove(gone)
				f.create(gone)
			}},
		} {
			before := collections.Load()
			step.happens()
			f.Eventually(collections.Load).Should(BeNumerically(">", before), step.what)
		}
		i := 0
		f.Eventually(func() []string {
			f.clock.Step(garbagecollection.GracePeriod)
			i++
			f.Expect(f.Admin.Delete(t.Context(), f.NodeClaim(t.Context(), fmt.Sprint("goes-too-", i)))).To(Succeed())
			return f.Objects(t.Context(), machineKind)
		}).WithPolling(200*time.Millisecond).Should(BeEmpty(), "what is left is removed")
	})
}
