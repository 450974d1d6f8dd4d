// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

var onDemand = offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}

// nothing is a cloud provider that only says which node classes are its own.
type nothing struct {
	karpcloudprovider.CloudProvider
}

func (nothing) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// race is our controller and Karpenter's own on one NodeClaim.
type race struct {
	*fixture
	karpenter *karplifecycle.Controller
	health    *nodepoolhealth.State
}

func newRace(t *testing.T, deadlines *v1alpha1.Deadlines) *race {
	t.Helper()
	g := NewWithT(t)
	f := newFixture(t)
	nodeClass := f.NodeClass(t.Context())
	nodeClass.Spec.Deadlines = deadlines
	g.Expect(f.Admin.Update(t.Context(), nodeClass)).To(Succeed())
	g.Expect(f.Guest.GetFieldIndexer().IndexField(t.Context(), &corev1.Node{}, "spec.providerID", func(o client.Object) []string {
		return []string{o.(*corev1.Node).Spec.ProviderID}
	})).To(Succeed())
	f.launched()
	f.settled()
	g.Eventually(func(g Gomega) {
		cached := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(f.Guest.GetClient().Get(t.Context(), client.ObjectKeyFromObject(nodeClass), cached)).To(Succeed())
		g.Expect(cached.Spec.Deadlines).To(Equal(deadlines))
	}).Should(Succeed())
	health := nodepoolhealth.NewState()
	return &race{fixture: f, health: health, karpenter: karplifecycle.NewController(f.clock, f.Guest.GetClient(), nothing{}, f.recorder, health, nil)}
}

// until lets both controllers act whenever they want to, and at least every two minutes, until the time is reached or the NodeClaim
// is being deleted. It returns the NodeClaim, and how long it took.
func (r *race) until(limit time.Duration) (*karpv1.NodeClaim, time.Duration) {
	r.t.Helper()
	g := NewWithT(r.t)
	ctx := r.t.Context()
	end := r.machine.CreationTimestamp.Add(limit)
	for {
		nodeClaim := r.read()
		age := r.clock.Now().Sub(r.machine.CreationTimestamp.Time)
		if nodeClaim.DeletionTimestamp != nil || !r.clock.Now().Before(end) {
			return nodeClaim, age
		}
		next := 2 * time.Minute
		ours, err := r.controller.Reconcile(ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		theirs, err := r.karpenter.Reconcile(ctx, r.read())
		g.Expect(err).NotTo(HaveOccurred())
		if after := r.read(); after.DeletionTimestamp != nil {
			return after, age
		}
		for _, again := range []time.Duration{ours.RequeueAfter, theirs.RequeueAfter, end.Sub(r.clock.Now())} {
			if again > 0 {
				next = min(next, again)
			}
		}
		r.clock.Step(next)
	}
}

func (r *race) read() *karpv1.NodeClaim {
	r.t.Helper()
	nodeClaim := &karpv1.NodeClaim{}
	NewWithT(r.t).Expect(r.Admin.Get(r.t.Context(), client.ObjectKeyFromObject(r.nodeClaim), nodeClaim)).To(Succeed())
	return nodeClaim
}

func minutes(launch, registration int) *v1alpha1.Deadlines {
	return &v1alpha1.Deadlines{
		Launch:       &metav1.Duration{Duration: time.Duration(launch) * time.Minute},
		Registration: &metav1.Duration{Duration: time.Duration(registration) * time.Minute},
	}
}

func provisioned(id string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) { m.Spec.ProviderID = id }
}

// about is a deadline that was met, but for what the controllers take.
func about(want time.Duration) OmegaMatcher {
	return And(BeNumerically(">=", want), BeNumerically("<", want+30*time.Second))
}

func TestDeadline(t *testing.T) {
	t.Run("When bare metal may take an hour, it should keep Karpenter from giving up earlier", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(60, 30))
		nodeClaim, age := r.until(40 * time.Minute)
		g.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.say(provisioned("cloud://40"))
		nodeClaim, age = r.until(69 * time.Minute)
		g.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		g.Expect(r.recorder.Reasons()).To(BeEmpty())
		nodeClaim, age = r.until(2 * time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(70 * time.Minute))
		g.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.RegistrationTimeoutReason}))
	})

	t.Run("When the node class says nothing, it should give each stage a quarter of an hour", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, nil)
		r.until(14 * time.Minute)
		r.say(provisioned("cloud://14"))
		nodeClaim, age := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(29 * time.Minute))
	})

	t.Run("When bootstrap data come late, it should give the machine its whole time from then on, once", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(20, 15))
		ready := func(m *clusterv1.Machine) {
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(r.clock.Now()),
			}}
		}
		r.until(18 * time.Minute)
		r.say(ready)
		nodeClaim, age := r.until(30 * time.Minute)
		g.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.say(ready)
		nodeClaim, age = r.until(2 * time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(40 * time.Minute))
	})

	t.Run("When conditions come and go, it should not take that for progress", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(5, 15))
		for _, reason := range []string{"Trying", "Waiting", "Trying"} {
			r.say(infrastructure(metav1.ConditionFalse, reason, ""))
			r.until(r.clock.Now().Sub(r.machine.CreationTimestamp.Time) + time.Minute)
		}
		nodeClaim, age := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(5 * time.Minute))
	})

	t.Run("When the machine comes within ten minutes, it should cost no write", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(60, 60))
		r.until(time.Minute)
		before := r.read()
		after, _ := r.until(9 * time.Minute)
		g.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
	})

	t.Run("When there is no machine in time, it should give up the NodeClaim, and the offering for a while", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(2, 15))
		r.say(infrastructure(metav1.ConditionFalse, "WaitingForHost", "no host has answered yet"))
		nodeClaim, age := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(2 * time.Minute))
		g.Expect(r.unavailable.Entries()).To(HaveExactElements(And(HaveField("Key", onDemand), HaveField("Reason", nodeclaim.LaunchTimeoutReason))))
		g.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
		g.Expect(r.recorder.Messages()[0]).To(And(
			ContainSubstring("no machine within 2m0s (on-demand c4-large in zone a)"),
			ContainSubstring("InfrastructureReady: WaitingForHost: no host has answered yet"),
			ContainSubstring("not tried again before")))
	})

	t.Run("When it is its bootstrap data that a machine waits for, it should not blame the offering", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(2, 15))
		r.say(func(m *clusterv1.Machine) {
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionFalse, Reason: "NotReady", Message: "no token", LastTransitionTime: metav1.Now(),
			}}
		})
		nodeClaim, _ := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(r.unavailable.Entries()).To(BeEmpty())
		g.Expect(r.recorder.Messages()[0]).To(ContainSubstring("BootstrapConfigReady: NotReady: no token"))
	})

	t.Run("When the node doesn't come in time, it should leave it to Karpenter, which counts it for the NodePool's health", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(15, 3))
		nodePool := &karpv1.NodePool{
			ObjectMeta: metav1.ObjectMeta{Name: r.Namespace},
			Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
				NodeClassRef: r.nodeClaim.Spec.NodeClassRef, Requirements: r.nodeClaim.Spec.Requirements,
			}}},
		}
		g.Expect(r.Admin.Create(t.Context(), nodePool)).To(Succeed())
		t.Cleanup(func() { _ = r.Admin.Delete(context.WithoutCancel(t.Context()), nodePool) })
		g.Eventually(func() error {
			return r.Guest.GetClient().Get(t.Context(), client.ObjectKeyFromObject(nodePool), &karpv1.NodePool{})
		}).Should(Succeed())
		nodeClaim := r.read()
		nodeClaim.Labels[karpv1.NodePoolLabelKey] = nodePool.Name
		nodeClaim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: nodePool.Name, UID: nodePool.UID}}
		g.Expect(r.Admin.Update(t.Context(), nodeClaim)).To(Succeed())
		r.health.Update(nodePool.UID, false)

		r.until(time.Minute)
		r.say(provisioned("cloud://1"))
		nodeClaim, age := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(4 * time.Minute))
		g.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.RegistrationTimeoutReason}))
		g.Expect(r.recorder.Messages()[0]).To(ContainSubstring("no node within 3m0s"))
		g.Expect(r.unavailable.Entries()).To(BeEmpty(), "one node that doesn't come says nothing of the offering")
		g.Expect(r.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodePool), nodePool)).To(Succeed())
		g.Expect(nodePool.StatusConditions().Get(karpv1.ConditionTypeNodeRegistrationHealthy).IsFalse()).To(BeTrue())
	})

	t.Run("When the deadline has passed and Karpenter hasn't acted yet, it should say so once", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(2, 15))
		r.clock.Step(3 * time.Minute)
		first, err := r.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		second, err := r.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second.ResourceVersion).To(Equal(first.ResourceVersion))
		g.Expect(r.recorder.Reasons()).To(HaveLen(1))
		g.Expect(second.StatusConditions().Get(karpv1.ConditionTypeRegistered).Reason).To(Equal(nodeclaim.LaunchTimeoutReason))
	})

	t.Run("When the management cluster is away for an hour, it should keep Karpenter from giving up what it can't see", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(2, 15))
		r.suspended = true
		nodeClaim, age := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.suspended = false
		nodeClaim, age = r.until(2 * time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(And(BeNumerically(">", time.Hour), BeNumerically("<=", time.Hour+3*time.Minute)))
		g.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
	})

	t.Run("When the Machine is paused, it should wait, and count anew when it is resumed", func(t *testing.T) {
		g := NewWithT(t)
		r := newRace(t, minutes(2, 15))
		pause := func(status metav1.ConditionStatus) func(*clusterv1.Machine) {
			return func(m *clusterv1.Machine) {
				m.Status.Conditions = []metav1.Condition{{
					Type: clusterv1.PausedCondition, Status: status, Reason: "Test", LastTransitionTime: metav1.NewTime(r.clock.Now()),
				}}
			}
		}
		r.say(pause(metav1.ConditionTrue))
		nodeClaim, _ := r.until(time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).To(BeNil())
		r.say(pause(metav1.ConditionFalse))
		nodeClaim, age := r.until(2 * time.Hour)
		g.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(age).To(about(62 * time.Minute))
	})
}

// answers stands in for a management cluster that says something else than the cache does.
type answers struct {
	client.Reader
	get func(*clusterv1.Machine) error
}

func (a answers) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := a.Reader.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	return a.get(o.(*clusterv1.Machine))
}

func TestDeadlineOfWhatCannotBeSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		get  func(*clusterv1.Machine) error
		want OmegaMatcher
	}{
		"When the cache hasn't seen that the machine has come, it should not give it up": {
			func(m *clusterv1.Machine) error { m.Spec.ProviderID = "cloud://late"; return nil }, Not(HaveOccurred()),
		},
		"When the management cluster can't be asked, it should not give anything up": {
			func(*clusterv1.Machine) error { return errors.New("network is unreachable") }, MatchError(ContainSubstring("before giving it up")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newRace(t, minutes(2, 15))
			machines := r.Machines(nil).Config
			machines.Live = answers{machines.Live, tc.get}
			r.config.Machines = machine.New(machines)
			r.controller = nodeclaim.New(r.config)
			r.clock.Step(3 * time.Minute)
			before := r.read()
			after, err := r.reconcile()
			g.Expect(err).To(tc.want)
			g.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
			g.Expect(r.recorder.Reasons()).To(BeEmpty())
			g.Expect(r.unavailable.Entries()).To(BeEmpty())
		})
	}
}
