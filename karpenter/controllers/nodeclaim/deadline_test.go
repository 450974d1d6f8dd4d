// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
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
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

var onDemand = offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}

// nothing is a cloud provider that only reports which node classes are its own.
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
	f := newFixture(t)
	nodeClass := f.NodeClass(t.Context())
	nodeClass.Spec.Deadlines = deadlines
	f.Expect(f.Admin.Update(t.Context(), nodeClass)).To(Succeed())
	f.Expect(f.Guest.GetFieldIndexer().IndexField(t.Context(), &corev1.Node{}, "spec.providerID", func(o client.Object) []string {
		return []string{o.(*corev1.Node).Spec.ProviderID}
	})).To(Succeed())
	f.launched()
	f.settled()
	f.Settle(f.Guest, nodeClass)
	health := nodepoolhealth.NewState()
	return &race{fixture: f, health: health, karpenter: karplifecycle.NewController(f.clock, f.Guest.GetClient(), nothing{}, f.recorder, nil, health, nil)}
}

// until lets both controllers act whenever they want to, and at least every two minutes, until the time is reached or the NodeClaim
// is being deleted. It returns the NodeClaim, and how long it took.
func (r *race) until(limit time.Duration) (*karpv1.NodeClaim, time.Duration) {
	r.t.Helper()
	ctx := r.t.Context()
	end := r.machine.CreationTimestamp.Add(limit)
	for {
		nodeClaim := r.stored()
		age := r.clock.Now().Sub(r.machine.CreationTimestamp.Time)
		if nodeClaim.DeletionTimestamp != nil || !r.clock.Now().Before(end) {
			return nodeClaim, age
		}
		next := 2 * time.Minute
		ours, err := r.controller.Reconcile(ctx, nodeClaim)
		r.Expect(err).NotTo(HaveOccurred())
		theirs, err := r.karpenter.Reconcile(ctx, r.stored())
		r.Expect(err).NotTo(HaveOccurred())
		if after := r.stored(); after.DeletionTimestamp != nil {
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

func minutes(launch, registration int) *v1alpha1.Deadlines {
	return &v1alpha1.Deadlines{
		Launch:       &scalar.Duration{Duration: time.Duration(launch) * time.Minute},
		Registration: &scalar.Duration{Duration: time.Duration(registration) * time.Minute},
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
		r := newRace(t, minutes(60, 30))
		nodeClaim, age := r.until(40 * time.Minute)
		r.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.say(provisioned("cloud://40"))
		nodeClaim, age = r.until(69 * time.Minute)
		r.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.Expect(r.recorder.Reasons()).To(BeEmpty())
		nodeClaim, age = r.until(2 * time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(70 * time.Minute))
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.RegistrationTimeoutReason}))
	})

	t.Run("When the node class declares nothing, it should give each stage a quarter of an hour", func(t *testing.T) {
		r := newRace(t, nil)
		r.until(14 * time.Minute)
		r.say(provisioned("cloud://14"))
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(29 * time.Minute))
	})

	t.Run("When bootstrap data come late, it should give the machine its whole time from then on, once", func(t *testing.T) {
		r := newRace(t, minutes(20, 15))
		ready := func(m *clusterv1.Machine) {
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(r.clock.Now()),
			}}
		}
		r.until(18 * time.Minute)
		r.say(ready)
		nodeClaim, age := r.until(30 * time.Minute)
		r.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.say(ready)
		nodeClaim, age = r.until(2 * time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(40 * time.Minute))
	})

	t.Run("When conditions come and go, it should not take that for progress", func(t *testing.T) {
		r := newRace(t, minutes(5, 15))
		for _, reason := range []string{"Trying", "Waiting", "Trying"} {
			r.say(infrastructure(metav1.ConditionFalse, reason, ""))
			r.until(r.clock.Now().Sub(r.machine.CreationTimestamp.Time) + time.Minute)
		}
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(5 * time.Minute))
	})

	t.Run("When the machine comes within ten minutes, it should cost no write", func(t *testing.T) {
		r := newRace(t, minutes(60, 60))
		r.until(time.Minute)
		before := r.stored()
		after, _ := r.until(9 * time.Minute)
		r.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
	})
}
