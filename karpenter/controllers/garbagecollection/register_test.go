// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/test/environment"
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

func TestRegister(t *testing.T) {
	t.Run("When nothing goes, it should not collect; when a NodeClaim goes, or a Machine comes or goes, it should", func(t *testing.T) {
		g := NewWithT(t)
		g.SetDefaultEventuallyTimeout(20 * time.Second)
		f := newFixture(t, nil)
		guest := f.Manager()
		var collections atomic.Int64
		machines := f.Machines(nil).Config
		machines.ChildKinds = func(ctx context.Context) []schema.GroupVersionKind {
			collections.Add(1)
			return environment.ChildKinds(ctx)
		}
		g.Expect(garbagecollection.New(garbagecollection.Config{
			Guest: guest.GetClient(), GuestLive: f.Admin, ManagementLive: f.Admin, ManagementCache: f.Management.GetCache(),
			Machines: machine.New(machines), Clock: f.clock, Delay: time.Millisecond,
		}).Register(t.Context(), guest)).To(Succeed())
		f.Run(t.Context(), guest)
		g.Eventually(collections.Load).Should(BeNumerically(">", 0), "it starts with one")

		nodeClaim := f.NodeClaim(t.Context(), "comes")
		g.Consistently(collections.Load).WithTimeout(500 * time.Millisecond).Should(BeEquivalentTo(1))
		for what, happens := range map[string]func(){
			"a Machine comes":  func() { f.create(t, nodeClaim) },
			"a NodeClaim goes": func() { g.Expect(f.Admin.Delete(t.Context(), f.NodeClaim(t.Context(), "goes"))).To(Succeed()) },
		} {
			before := collections.Load()
			happens()
			g.Eventually(collections.Load).Should(BeNumerically(">", before), what)
		}
		f.remove(t, nodeClaim)
		i := 0
		g.Eventually(func() []string {
			f.clock.Step(garbagecollection.GracePeriod)
			i++
			g.Expect(f.Admin.Delete(t.Context(), f.NodeClaim(t.Context(), fmt.Sprint("goes-too-", i)))).To(Succeed())
			return f.Objects(t.Context(), machineKind)
		}).WithPolling(200*time.Millisecond).Should(BeEmpty(), "what is left is removed")
	})
}
