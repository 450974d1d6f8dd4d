// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

type fixture struct {
	*environment.Environment
	t           *testing.T
	controller  *nodeclaim.Controller
	config      nodeclaim.Config
	clock       *clocktesting.FakeClock
	unavailable *offering.Unavailable
	recorder    *environment.Recorder
	suspended   bool
	nodeClaim   *karpv1.NodeClaim
	machine     *clusterv1.Machine
}

// newFixture makes a NodeClaim that Karpenter has launched, and its Machine.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	s := environment.New(t)
	clock := clocktesting.NewFakeClock(time.Now())
	f := &fixture{
		Environment: s,
		t:           t,
		clock:       clock,
		unavailable: offering.NewUnavailable(clock),
		recorder:    &environment.Recorder{},
	}
	f.config = nodeclaim.Config{
		Guest:       s.Guest.GetClient(),
		GuestLive:   s.Admin,
		Machines:    s.Machines(nil),
		Profiles:    profile.Embedded(),
		Unavailable: f.unavailable,
		// It has no node class.
		InstanceTypes: instancetype.New(instancetype.Config{}),
		// A vacancy is one of the reasons for which nothing is launched beside a slow launch.
		Second:    &nodeclaim.SecondLaunches{Vacancies: func(string) int { return 1 }},
		Suspended: func() bool { return f.suspended },
		Recorder:  f.recorder,
		Clock:     clock,
	}
	f.controller = nodeclaim.New(f.config)
	f.nodeClaim = s.NodeClaim(t.Context(), "n")
	// As Karpenter does before it launches.
	f.nodeClaim.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(s.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
	created, err := s.Machines(nil).Create(t.Context(), s.Plan(f.nodeClaim))
	g.Expect(err).NotTo(HaveOccurred())
	f.machine = created
	return f
}

func (f *fixture) launched() {
	f.t.Helper()
	f.nodeClaim.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(f.machine))
	f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	NewWithT(f.t).Expect(f.Admin.Status().Update(f.t.Context(), f.nodeClaim)).To(Succeed())
}

// say changes the Machine as Cluster API would, and waits until the cache has it.
func (f *fixture) say(change func(m *clusterv1.Machine)) {
	f.t.Helper()
	g := NewWithT(f.t)
	spec := f.machine.DeepCopy()
	change(spec)
	status := spec.DeepCopy()
	g.Expect(f.Admin.Patch(f.t.Context(), spec, client.MergeFrom(f.machine))).To(Succeed())
	spec.Status = status.Status
	g.Expect(f.Admin.Status().Update(f.t.Context(), spec)).To(Succeed())
	f.machine = spec
	f.settled()
}

func (f *fixture) settled() {
	f.t.Helper()
	f.cached(f.machine)
}

// cached waits until the cache has a Machine as it is.
func (f *fixture) cached(machine *clusterv1.Machine) {
	f.t.Helper()
	NewWithT(f.t).Eventually(func(g Gomega) {
		m := &clusterv1.Machine{}
		g.Expect(f.Management.GetClient().Get(f.t.Context(), client.ObjectKeyFromObject(machine), m)).To(Succeed())
		g.Expect(m.ResourceVersion).To(Equal(machine.ResourceVersion))
	}).Should(Succeed())
}

// reconcile runs the controller on the NodeClaim as the API server has it, and returns what that has afterwards.
func (f *fixture) reconcile() (*karpv1.NodeClaim, error) {
	f.t.Helper()
	g := NewWithT(f.t)
	nodeClaim := &karpv1.NodeClaim{}
	g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)).To(Succeed())
	_, err := f.controller.Reconcile(f.t.Context(), nodeClaim)
	after := &karpv1.NodeClaim{}
	g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), after)).To(Succeed())
	return after, err
}

// statusPatches counts patches of statuses.
type statusPatches struct {
	client.Client
	count atomic.Int64
}

func (s *statusPatches) Status() client.SubResourceWriter {
	s.count.Add(1)
	return s.Client.Status()
}

func TestIdentity(t *testing.T) {
	t.Run("When the Machine gets its provider ID, it should give it to the NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.settled()
		before, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(before.Status.ProviderID).To(HavePrefix("capi://"))

		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://1" })
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Status.ProviderID).To(Equal("cloud://1"))
		g.Expect(after.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
		again, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.ResourceVersion).To(Equal(after.ResourceVersion), "it was written again")
	})

	t.Run("When the cache doesn't have the provider ID that was written, it should not write it again", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://1" })
		counted := &statusPatches{Client: f.config.Guest}
		f.config.Guest = counted
		controller, stale := nodeclaim.New(f.config), f.nodeClaim.DeepCopy()
		for range 3 {
			_, err := controller.Reconcile(t.Context(), stale.DeepCopy())
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(counted.count.Load()).To(BeEquivalentTo(1))
	})

	t.Run("When another controller has written a provider ID, it should leave that to Karpenter's garbage collection", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.nodeClaim.Status.ProviderID = "cloud://foreign"
		g.Expect(f.Admin.Status().Update(t.Context(), f.nodeClaim)).To(Succeed())
		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://3" })
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Status.ProviderID).To(Equal("cloud://foreign"))
	})

	t.Run("When Karpenter hasn't taken over what Create returned, it should wait", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://2" })
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Status.ProviderID).To(BeEmpty())
	})

	t.Run("When the NodeClaim has changed in between, it should leave it for the next time", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://3" })
		stale := f.nodeClaim.DeepCopy()
		f.nodeClaim.Labels["changed"] = "true"
		g.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
		_, err := f.controller.Reconcile(t.Context(), stale)
		g.Expect(err).NotTo(HaveOccurred())
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Status.ProviderID).To(Equal("cloud://3"))
	})
}

func TestRemoval(t *testing.T) {
	t.Run("When the management cluster doesn't answer, it should decide nothing and look again", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Finalizers = []string{environment.HoldFinalizer} })
		g.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
		f.suspended = true
		result, err := f.controller.Reconcile(t.Context(), f.nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).To(BeNil())
	})

	t.Run("When clusterctl moves the Machine to another management cluster, it should keep the NodeClaim and its node", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) {
			// As clusterctl does: it replaces what was there.
			m.Annotations = map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""}
			m.Finalizers = []string{environment.HoldFinalizer}
		})
		g.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
		g.Eventually(func(g Gomega) {
			m := &clusterv1.Machine{}
			g.Expect(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.machine), m)).To(Succeed())
			g.Expect(m.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).To(BeNil())
		g.Expect(f.recorder.Reasons()).To(BeEmpty())
	})

	t.Run("When a person deletes the Machine, it should delete the NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Finalizers = []string{environment.HoldFinalizer} })
		g.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
		g.Eventually(func(g Gomega) {
			m := &clusterv1.Machine{}
			g.Expect(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.machine), m)).To(Succeed())
			g.Expect(m.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).NotTo(BeNil())
		g.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.MachineDeletedReason))
	})

	t.Run("When the Machine can't be seen, it should leave the NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.settled()
		g.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.machine), &clusterv1.Machine{}))
		}).Should(BeTrue())
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).To(BeNil())
	})
}

func TestDeparture(t *testing.T) {
	terminating := func(f *fixture) {
		f.t.Helper()
		g := NewWithT(f.t)
		f.launched()
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeInstanceTerminating)
		g.Expect(f.Admin.Status().Update(f.t.Context(), f.nodeClaim)).To(Succeed())
		g.Expect(f.Admin.Delete(f.t.Context(), f.nodeClaim)).To(Succeed())
	}
	gone := func(f *fixture) {
		f.t.Helper()
		g := NewWithT(f.t)
		g.Expect(f.Admin.Delete(f.t.Context(), f.machine)).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(f.Management.GetClient().Get(f.t.Context(), client.ObjectKeyFromObject(f.machine), &clusterv1.Machine{}))
		}).Should(BeTrue())
	}
	t.Run("When the Machine that Karpenter waits for is gone, it should wake Karpenter once", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		terminating(f)
		f.settled()
		before, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(before.Annotations).NotTo(HaveKey(nodeclaim.MachineGoneAnnotation))
		gone(f)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Annotations).To(HaveKey(nodeclaim.MachineGoneAnnotation))
		again, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.ResourceVersion).To(Equal(after.ResourceVersion))
	})
	t.Run("When the Node is still there, it should wake what waits for the Node", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: f.nodeClaim.Name, Finalizers: []string{karpv1.TerminationFinalizer}},
			Spec:       corev1.NodeSpec{ProviderID: machine.SyntheticProviderID(client.ObjectKeyFromObject(f.machine))},
		}
		g.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
		g.Expect(f.Admin.Delete(t.Context(), node)).To(Succeed())
		g.Eventually(func(g Gomega) {
			cached := &corev1.Node{}
			g.Expect(f.Guest.GetClient().Get(t.Context(), client.ObjectKeyFromObject(node), cached)).To(Succeed())
			g.Expect(cached.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		f.nodeClaim.Status.NodeName = node.Name
		terminating(f)
		f.settled()
		gone(f)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Annotations).NotTo(HaveKey(nodeclaim.MachineGoneAnnotation))
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
		g.Expect(node.Annotations).To(HaveKey(nodeclaim.MachineGoneAnnotation))
	})
	t.Run("When Karpenter still drains, it should not disturb it", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		g.Expect(f.Admin.Delete(t.Context(), f.nodeClaim)).To(Succeed())
		f.settled()
		gone(f)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.Annotations).NotTo(HaveKey(nodeclaim.MachineGoneAnnotation))
	})
}
