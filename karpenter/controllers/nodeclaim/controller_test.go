// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
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
	*WithT
	t           *testing.T
	controller  *nodeclaim.Controller
	config      nodeclaim.Config
	clock       *clocktesting.FakeClock
	unavailable *offering.Unavailable
	recorder    *environment.Recorder
	suspended   bool
	nodeClaim   *karpv1.NodeClaim
	machine     *clusterv1.Machine
	// woken is what Karpenter was to look at again.
	woken []string
}

// newFixture makes a NodeClaim that Karpenter has launched, and its Machine.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	s := environment.New(t)
	clock := clocktesting.NewFakeClock(time.Now())
	f := &fixture{
		Environment: s,
		WithT:       NewWithT(t),
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
		Suspended:     func() bool { return f.suspended },
		WakeNode:      func(name string) { f.woken = append(f.woken, "Node "+name) },
		WakeNodeClaim: func(name string) { f.woken = append(f.woken, "NodeClaim "+name) },
		Recorder:      f.recorder,
		Clock:         clock,
	}
	f.controller = nodeclaim.New(f.config)
	f.nodeClaim = s.NodeClaim(t.Context(), "n")
	// As Karpenter does before it launches.
	f.nodeClaim.Finalizers = []string{karpv1.TerminationFinalizer}
	f.Expect(s.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
	f.machine = f.machineOf(f.nodeClaim)
	return f
}

// machineOf creates a NodeClaim's Machine.
func (f *fixture) machineOf(nodeClaim *karpv1.NodeClaim) *clusterv1.Machine {
	f.t.Helper()
	m, err := f.Machines(nil).Create(f.t.Context(), f.Plan(nodeClaim))
	f.Expect(err).NotTo(HaveOccurred())
	return m
}

func (f *fixture) launched() {
	f.t.Helper()
	f.nodeClaim.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(f.machine))
	f.update(f.nodeClaim, karpv1.ConditionTypeLaunched)
}

// say changes the Machine as Cluster API would, and waits until the cache has it.
func (f *fixture) say(change func(m *clusterv1.Machine)) {
	f.t.Helper()
	spec := f.machine.DeepCopy()
	change(spec)
	status := spec.DeepCopy()
	f.Expect(f.Admin.Patch(f.t.Context(), spec, client.MergeFrom(f.machine))).To(Succeed())
	spec.Status = status.Status
	f.Expect(f.Admin.Status().Update(f.t.Context(), spec)).To(Succeed())
	f.machine = spec
	f.settled()
}

// settled waits until the cache has the Machine.
func (f *fixture) settled() {
	f.t.Helper()
	f.Settle(f.Management, f.machine)
}

// stored is the NodeClaim as the API server has it.
func (f *fixture) stored() *karpv1.NodeClaim {
	f.t.Helper()
	nodeClaim := &karpv1.NodeClaim{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)).To(Succeed())
	return nodeClaim
}

// reconcile runs the controller on the stored NodeClaim, and returns what that is afterwards.
func (f *fixture) reconcile() *karpv1.NodeClaim {
	f.t.Helper()
	_, err := f.controller.Reconcile(f.t.Context(), f.stored())
	f.Expect(err).NotTo(HaveOccurred())
	return f.stored()
}

// isGivenUp reconciles, and reports whether the NodeClaim is being deleted then.
func (f *fixture) isGivenUp() bool {
	f.t.Helper()
	return f.reconcile().DeletionTimestamp != nil
}

// update writes the status of a NodeClaim after a change.
func (f *fixture) update(nodeClaim *karpv1.NodeClaim, conditions ...string) {
	f.t.Helper()
	for _, condition := range conditions {
		nodeClaim.StatusConditions().SetTrue(condition)
	}
	f.Expect(f.Admin.Status().Update(f.t.Context(), nodeClaim)).To(Succeed())
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

// denied is a client whose patches of statuses a policy denies without a reason of its own.
type denied struct{ client.Client }

func (d denied) Status() client.SubResourceWriter { return deniedStatus{d.Client.Status()} }

type deniedStatus struct{ client.SubResourceWriter }

func (deniedStatus) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: apis.Group, Kind: "NodeClaim"}, object.GetName(), nil)
}

func TestIdentity(t *testing.T) {
	t.Run("When a policy denies the write, it should say so: nothing else would have it tried again", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(provisioned("cloud://1"))
		f.config.Guest = denied{f.config.Guest}
		_, err := nodeclaim.New(f.config).Reconcile(t.Context(), f.stored())
		f.Expect(err).To(MatchError(ContainSubstring("setting the provider ID")))
	})

	t.Run("When the Machine gets its provider ID, it should give it to the NodeClaim", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.settled()
		f.Expect(f.reconcile().Status.ProviderID).To(HavePrefix("capi://"))
		f.say(provisioned("cloud://1"))
		after := f.reconcile()
		f.Expect(after.Status.ProviderID).To(Equal("cloud://1"))
		f.Expect(after.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
		f.Expect(f.reconcile().ResourceVersion).To(Equal(after.ResourceVersion), "it was written again")
	})

	t.Run("When the cache doesn't have the provider ID that was written, it should not write it again", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(provisioned("cloud://1"))
		counted := &statusPatches{Client: f.config.Guest}
		f.config.Guest = counted
		controller, stale := nodeclaim.New(f.config), f.nodeClaim.DeepCopy()
		for range 3 {
			_, err := controller.Reconcile(t.Context(), stale.DeepCopy())
			f.Expect(err).NotTo(HaveOccurred())
		}
		f.Expect(counted.count.Load()).To(BeEquivalentTo(1))
	})

	t.Run("When another controller has written a provider ID, it should leave that to Karpenter's garbage collection", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.nodeClaim.Status.ProviderID = "cloud://foreign"
		f.update(f.nodeClaim)
		f.say(provisioned("cloud://3"))
		f.Expect(f.reconcile().Status.ProviderID).To(Equal("cloud://foreign"))
	})

	t.Run("When another NodeClaim has the same instance, it should say so, and not have both share a node", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		other := f.NodeClaim(t.Context(), "other")
		other.Status.ProviderID = "cloud://shared"
		f.Expect(f.Admin.Status().Update(t.Context(), other)).To(Succeed())
		f.Settle(f.Guest, other)
		f.say(provisioned("cloud://shared"))
		f.Expect(f.reconcile().Status.ProviderID).To(HavePrefix("capi://"))
		f.Expect(f.recorder.Messages()).To(ContainElement(And(ContainSubstring("cloud://shared"), ContainSubstring(other.Name))))
	})

	t.Run("When Karpenter hasn't taken over what Create returned, it should wait", func(t *testing.T) {
		f := newFixture(t)
		f.say(provisioned("cloud://2"))
		f.Expect(f.reconcile().Status.ProviderID).To(BeEmpty())
	})

	for name, tc := range map[string]struct {
		// change is what another client writes after the NodeClaim was read.
		change func(f *fixture)
		want   string
	}{
		"When Karpenter core has changed the NodeClaim in between, it should give it the provider ID, and undo nothing": {
			change: func(f *fixture) { f.update(f.nodeClaim, karpv1.ConditionTypeDrifted) }, want: "cloud://3",
		},
		"When another client has written a provider ID in between, it should leave that": {
			change: func(f *fixture) {
				f.nodeClaim.Status.ProviderID = "cloud://foreign"
				f.update(f.nodeClaim, karpv1.ConditionTypeDrifted)
			}, want: "cloud://foreign",
		},
		"When the condition was added in between, it should leave it for the next time": {
			change: func(f *fixture) {
				f.update(f.nodeClaim, karpv1.ConditionTypeDrifted, nodeclaim.ConditionMachineProvisioned)
			}, want: "capi://",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.launched()
			f.say(provisioned("cloud://3"))
			stale := f.nodeClaim.DeepCopy()
			tc.change(f)
			_, err := f.controller.Reconcile(t.Context(), stale)
			f.Expect(err).NotTo(HaveOccurred())
			after := f.stored()
			f.Expect(after.Status.ProviderID).To(HavePrefix(tc.want))
			f.Expect(after.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue()).To(BeTrue())
			if tc.want == "capi://" {
				f.Expect(f.reconcile().Status.ProviderID).To(Equal("cloud://3"))
			}
		})
	}
}

func TestRemoval(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		suspended   bool
		reasons     []string
	}{
		"When the management cluster doesn't answer, it should decide nothing": {suspended: true},
		"When clusterctl moves the Machine to another management cluster, it should keep the NodeClaim and its node": {
			annotations: map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""},
		},
		"When a person deletes the Machine, it should delete the NodeClaim": {reasons: []string{nodeclaim.MachineDeletedReason}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.launched()
			f.say(func(m *clusterv1.Machine) {
				m.Annotations, m.Finalizers = tc.annotations, []string{environment.HoldFinalizer}
			})
			f.Expect(f.Admin.Delete(t.Context(), f.machine)).To(Succeed())
			f.settled()
			f.suspended = tc.suspended
			result, err := f.controller.Reconcile(t.Context(), f.stored())
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(result.RequeueAfter > 0).To(Equal(tc.suspended))
			f.Expect(f.stored().DeletionTimestamp != nil).To(Equal(tc.reasons != nil))
			f.Expect(f.recorder.Reasons()).To(HaveLen(len(tc.reasons)))
			f.Expect(f.recorder.Reasons()).To(ContainElements(tc.reasons))
		})
	}

	t.Run("When the Machine can't be seen, it should leave the NodeClaim", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.gone()
		f.Expect(f.isGivenUp()).To(BeFalse())
	})
}

// gone deletes the Machine, and waits until the cache has it no longer.
func (f *fixture) gone() {
	f.t.Helper()
	f.settled()
	f.Expect(f.Admin.Delete(f.t.Context(), f.machine)).To(Succeed())
	f.SettleGone(f.Management, f.machine)
}

func TestDeparture(t *testing.T) {
	terminating := func(f *fixture) {
		f.t.Helper()
		f.launched()
		f.update(f.nodeClaim, karpv1.ConditionTypeInstanceTerminating)
		f.Expect(f.Admin.Delete(f.t.Context(), f.nodeClaim)).To(Succeed())
	}
	t.Run("When the Machine that Karpenter waits for is gone, and the Node is, too, it should wake Karpenter", func(t *testing.T) {
		f := newFixture(t)
		f.nodeClaim.Status.NodeName = f.nodeClaim.Name
		terminating(f)
		f.settled()
		before := f.reconcile()
		f.Expect(f.woken).To(BeEmpty())
		f.gone()
		f.Expect(f.reconcile().ResourceVersion).To(Equal(before.ResourceVersion), "it was written to")
		f.Expect(f.woken).To(ConsistOf("NodeClaim " + f.nodeClaim.Name))
	})
	t.Run("When the Node is still there, it should wake what waits for the Node", func(t *testing.T) {
		f := newFixture(t)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: f.nodeClaim.Name, Finalizers: []string{karpv1.TerminationFinalizer}},
			Spec:       corev1.NodeSpec{ProviderID: machine.SyntheticProviderID(client.ObjectKeyFromObject(f.machine))},
		}
		f.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), node)).To(Succeed())
		f.Settle(f.Guest, node)
		f.nodeClaim.Status.NodeName = node.Name
		terminating(f)
		f.gone()
		f.reconcile()
		f.Expect(f.woken).To(ConsistOf("Node " + node.Name))
	})
	t.Run("When a Node of its name is another machine's, it should not wait for that", func(t *testing.T) {
		f := newFixture(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.nodeClaim.Name}, Spec: corev1.NodeSpec{ProviderID: "example://another"}}
		f.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
		f.Settle(f.Guest, node)
		f.nodeClaim.Status.NodeName = node.Name
		terminating(f)
		f.gone()
		f.reconcile()
		f.Expect(f.woken).To(ConsistOf("NodeClaim " + f.nodeClaim.Name))
	})
	t.Run("When Karpenter still drains, it should not disturb it", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.Expect(f.Admin.Delete(t.Context(), f.nodeClaim)).To(Succeed())
		f.gone()
		f.reconcile()
		f.Expect(f.woken).To(BeEmpty())
	})
}
