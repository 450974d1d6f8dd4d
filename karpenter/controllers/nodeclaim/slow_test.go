// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// maxSlow is when a launch of a template without an observed machine is slow.
const maxSlow = 10 * time.Minute

var elsewhere = offering.Key{InstanceType: "c4-large", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}

// slow is a fixture with a NodePool, whose NodeClaim waits for its machine.
type slow struct {
	*fixture
	nodePool *karpv1.NodePool
	// template is the template source of the machines; other tests' have another one.
	template   string
	rejections *offering.Rejections
	// What the controller is told.
	alternative, replacement bool
}

func newSlow(t *testing.T, changes ...func(*slow)) *slow {
	t.Helper()
	f := &slow{fixture: newFixture(t), alternative: true}
	f.template = "TestMachineTemplate/" + f.Namespace
	f.rejections = offering.NewRejections(f.clock)
	f.nodePool = &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
	f.nodePool.Spec.Template.Spec.NodeClassRef = f.nodeClaim.Spec.NodeClassRef
	f.nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	f.nodePool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1h")
	f.nodeClaim.Labels[karpv1.NodePoolLabelKey] = f.nodePool.Name
	f.nodeClaim.Annotations = map[string]string{}
	f.nodeClaim.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	for _, change := range changes {
		change(f)
	}
	used := f.nodePool.Status
	f.Expect(f.Admin.Create(t.Context(), f.nodePool)).To(Succeed())
	t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), f.nodePool) })
	f.nodePool.Status = used
	f.Expect(f.Admin.Status().Update(t.Context(), f.nodePool)).To(Succeed())
	f.Settle(f.Guest, f.nodePool)
	capacity := f.nodeClaim.Status.Capacity
	f.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
	f.nodeClaim.Status.Capacity = capacity
	f.launched()
	f.say(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.TemplateSourceAnnotation] = f.template })
	f.clock.SetTime(f.machine.CreationTimestamp.Time)
	f.config.Alternative = func(_ context.Context, _ *karpv1.NodeClaim, current offering.Key) (offering.Key, corev1.ResourceList, bool) {
		f.Expect(current).To(Equal(onDemand))
		return elsewhere, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, f.alternative
	}
	f.config.Machines.IsReplacement = func(string) bool { return f.replacement }
	f.config.Rejections = f.rejections
	f.controller = nodeclaim.New(f.config)
	return f
}

// look reconciles a NodeClaim as the API server has it, and returns when it is to do so again.
func (f *slow) look(nodeClaim *karpv1.NodeClaim) time.Duration {
	f.t.Helper()
	stored := &karpv1.NodeClaim{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(nodeClaim), stored)).To(Succeed())
	result, err := f.controller.Reconcile(f.t.Context(), stored)
	f.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

// another launches a second NodeClaim of the NodePool.
func (f *slow) another(name string) (*karpv1.NodeClaim, *clusterv1.Machine) {
	f.t.Helper()
	nodeClaim := f.NodeClaim(f.t.Context(), name)
	nodeClaim.Labels[karpv1.NodePoolLabelKey] = f.nodePool.Name
	f.Expect(f.Admin.Update(f.t.Context(), nodeClaim)).To(Succeed())
	m := f.machineOf(nodeClaim)
	f.Settle(f.Management, m)
	nodeClaim.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
	f.update(nodeClaim, karpv1.ConditionTypeLaunched)
	return nodeClaim, m
}

// isGone reports whether a NodeClaim has been given up.
func (f *slow) isGone(nodeClaim *karpv1.NodeClaim) bool {
	f.t.Helper()
	err := f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(nodeClaim), nodeClaim)
	f.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err != nil || nodeClaim.DeletionTimestamp != nil
}

func TestSlow(t *testing.T) {
	t.Run("When a launch is slow and another offering can be launched, it should be given up, and its offering rest for the NodePool", func(t *testing.T) {
		f := newSlow(t)
		f.Expect(f.look(f.nodeClaim)).To(BeNumerically("<=", maxSlow))
		f.clock.Step(maxSlow - time.Second)
		f.Expect(f.look(f.nodeClaim)).To(Equal(time.Second))
		f.clock.Step(time.Second)
		f.Expect(f.isGivenUp()).To(BeTrue())
		entry, closed := f.rejections.Entry(f.nodePool.Name, onDemand)
		f.Expect(closed).To(BeTrue())
		f.Expect(entry.Reason).To(Equal(nodeclaim.LaunchSlowReason))
		f.Expect(f.unavailable.Has(onDemand)).To(BeFalse())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchSlowReason}))
		f.Expect(f.recorder.Messages()[0]).To(And(
			HavePrefix("no provider ID for 10m0s (on-demand c4-large in zone a), where machines of template "+f.template+
				" usually take less: none has been seen yet; launching another offering, such as on-demand c4-large in zone b; the Machine reports "),
			ContainSubstring("; not tried again before "), HaveSuffix(" for NodePool "+f.nodePool.Name)))
		labels := map[string]string{"reason": "launch_slow", "nodepool": f.nodePool.Name}
		f.Expect(measured(f, "karpenter_nodeclaims_disrupted_total", labels)).To(HaveLen(1))
	})

	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("When machines of the template usually come sooner, a launch should be slow sooner; after a restart: %t", restarted), func(t *testing.T) {
			f := newSlow(t)
			usual := f.NodeClaim(t.Context(), "usual")
			m := f.machineOf(usual)
			f.update(usual, karpv1.ConditionTypeLaunched)
			if restarted {
				f.clock.Step(24 * time.Hour)
				f.controller = nodeclaim.New(f.config)
			}
			before := m.DeepCopy()
			m.Spec.ProviderID, m.Annotations[v1alpha1.TemplateSourceAnnotation] = "cloud://usual", f.template
			f.Expect(f.Admin.Patch(t.Context(), m, client.MergeFrom(before))).To(Succeed())
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready",
				LastTransitionTime: metav1.NewTime(m.CreationTimestamp.Add(80 * time.Second)),
			}}
			f.Expect(f.Admin.Status().Update(t.Context(), m)).To(Succeed())
			f.Settle(f.Management, m)
			f.clock.SetTime(m.CreationTimestamp.Add(map[bool]time.Duration{false: 80 * time.Second, true: 24 * time.Hour}[restarted]))
			f.look(usual)
			f.clock.SetTime(f.machine.CreationTimestamp.Time)
			f.Expect(f.look(f.nodeClaim)).To(Equal(4 * time.Minute))
			f.clock.Step(4*time.Minute + 12*time.Second)
			f.look(f.nodeClaim)
			f.Expect(f.recorder.Messages()).To(ConsistOf(And(ContainSubstring("no provider ID for 4m12s"), ContainSubstring("usually take 1m20s"))))
		})
	}

	t.Run("When an offering is slow three times in a row, it should rest for all NodePools", func(t *testing.T) {
		f := newSlow(t)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.LaunchSlowReason)
		}
		f.clock.Step(maxSlow)
		f.Expect(f.isGivenUp()).To(BeTrue())
		f.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
	})

	t.Run("When no other offering can be launched, the NodeClaim should stay and report once what it waits for, and where to look", func(t *testing.T) {
		f := newSlow(t)
		f.alternative = false
		f.say(infrastructure(metav1.ConditionFalse, "NotReady", "Condition VirtualMachineProvisioned not yet reported"))
		f.clock.Step(maxSlow)
		for range 3 {
			f.look(f.nodeClaim)
			f.clock.Step(time.Minute)
		}
		condition := f.stored().StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)
		f.Expect(condition).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", nodeclaim.LaunchSlowReason)))
		f.Expect(condition.Message).To(And(HavePrefix("no provider ID yet (on-demand c4-large in zone a), where machines of template "+f.template+
			" usually take less: none has been seen yet; no other offering can be launched. "+
			"The provider may report an unreachable infrastructure late: check its log. The Machine reports NotReady: "),
			ContainSubstring("check the conditions and events of TestMachine ")))
		f.Expect(f.recorder.Messages()).To(ConsistOf(condition.Message))
		version := f.stored().ResourceVersion
		f.Expect(f.look(f.nodeClaim)).To(BeNumerically("<=", time.Minute))
		f.Expect(f.stored().ResourceVersion).To(Equal(version), "nothing changed, so nothing is written")
		f.alternative = true
		f.Expect(f.isGivenUp()).To(BeTrue())
	})

	t.Run("When the machine has a provider ID that the cache lacks, it should stay", func(t *testing.T) {
		f := newSlow(t)
		f.config.Machines.Live = ahead{f.Admin}
		f.clock.Step(maxSlow)
		f.Expect(f.isGivenUp()).To(BeFalse())
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})

	t.Run("When bootstrap data came late, the launch should have its time from then", func(t *testing.T) {
		f := newSlow(t)
		f.say(func(m *clusterv1.Machine) {
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready",
				LastTransitionTime: metav1.NewTime(f.machine.CreationTimestamp.Add(5 * time.Minute)),
			}}
		})
		f.clock.Step(maxSlow)
		f.Expect(f.look(f.nodeClaim)).To(Equal(5 * time.Minute))
		f.Expect(f.isGivenUp()).To(BeFalse())
	})
}

// ahead is an API server whose Machines have a provider ID.
type ahead struct{ client.Reader }

func (a ahead) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := a.Reader.Get(ctx, key, object, options...)
	if m, ok := object.(*clusterv1.Machine); ok {
		m.Spec.ProviderID = "cloud://" + m.Name
	}
	return err
}

// created is a client of the management cluster that has a Machine as if it was created at another time.
type created struct {
	client.Client
	name string
	at   time.Time
}

func (c created) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.Client.List(ctx, list, options...)
	if machines, ok := list.(*clusterv1.MachineList); ok {
		machines.Items = slices.Clone(machines.Items) // the cache's
		for i := range machines.Items {
			if machines.Items[i].Name == c.name {
				machines.Items[i].CreationTimestamp = metav1.NewTime(c.at)
			}
		}
	}
	return err
}

func TestSlowLaunches(t *testing.T) {
	for name, tc := range map[string]struct {
		// later is after which time since the first was given up another Machine is created, and passed is which time has passed.
		later, passed time.Duration
		want          bool
	}{
		"When a Machine that was created later has its provider ID":  {time.Second, time.Minute, true},
		"When a Machine that was created before has its provider ID": {-time.Minute, time.Minute, false},
		"When ten minutes have passed":                               {-time.Minute, maxSlow, true},
	} {
		t.Run(fmt.Sprintf("%s, the next slow launch should be given up: %t", name, tc.want), func(t *testing.T) {
			f := newSlow(t)
			nodeClass := f.NodeClass(t.Context())
			nodeClass.Spec.Deadlines = minutes(60, 20)
			f.Expect(f.Admin.Update(t.Context(), nodeClass)).To(Succeed())
			f.Settle(f.Guest, nodeClass)
			waiting, m := f.another("waiting")
			f.clock.SetTime(m.CreationTimestamp.Add(maxSlow))
			f.Expect(f.isGivenUp()).To(BeTrue())
			f.Expect(f.look(waiting)).To(BeNumerically("<=", time.Minute))
			f.Expect(f.isGone(waiting)).To(BeFalse())
			f.Expect(waiting.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned).Message).To(
				ContainSubstring("; one slow launch is replaced at a time. "))

			other, m := f.another("other")
			before := m.DeepCopy()
			m.Spec.ProviderID = "cloud://" + m.Name
			f.Expect(f.Admin.Patch(t.Context(), m, client.MergeFrom(before))).To(Succeed())
			f.Settle(f.Management, m)
			f.config.Machines.Management = created{f.config.Machines.Management, m.Name, f.clock.Now().Add(tc.later)}
			f.clock.Step(tc.passed)
			f.look(other)
			f.look(waiting)
			f.Expect(f.isGone(waiting)).To(Equal(tc.want))
		})
	}
}

func TestNotSlow(t *testing.T) {
	for name, change := range map[string]func(*slow){
		"the NodePool's limit leaves too little": func(f *slow) {
			f.nodePool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("5")}
			f.nodePool.Status.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		},
		"the NodePool is static":        func(f *slow) { f.nodePool.Spec.Replicas = ptr.To(int64(1)) },
		"the NodeClaim has no NodePool": func(f *slow) { delete(f.nodeClaim.Labels, karpv1.NodePoolLabelKey) },
		"it may not be disrupted":       func(f *slow) { f.nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" },
		"it replaces a running node":    func(f *slow) { f.replacement = true },
		"the machine is reserved": func(f *slow) {
			f.say(func(m *clusterv1.Machine) { m.Labels[v1alpha1.ReservationIDLabel] = "block" })
		},
		"it fills a vacancy": func(f *slow) {
			f.say(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.ReplacesAnnotation] = "gone" })
		},
		"bootstrap data is missing": func(f *slow) { f.say(bootstrap("WaitingForControlPlane", "")) },
		"the Machine is paused": func(f *slow) {
			f.say(func(m *clusterv1.Machine) {
				m.Status.Conditions = []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: "Paused", LastTransitionTime: metav1.Now()}}
			})
		},
		"the Cluster's infrastructure isn't ready": func(f *slow) {
			f.infrastructure(metav1.ConditionFalse, "VCenterUnreachable", loginFailed)
		},
	} {
		t.Run("When "+name+", a slow launch should stay", func(t *testing.T) {
			f := newSlow(t, change)
			f.clock.SetTime(f.machine.CreationTimestamp.Add(maxSlow + time.Minute))
			f.Expect(f.isGivenUp()).To(BeFalse())
			f.Expect(f.rejections.Entries()).To(BeEmpty())
		})
	}

	t.Run("When the limit has room for the other offering once the slow machine is gone, it should be given up", func(t *testing.T) {
		f := newSlow(t, func(f *slow) {
			f.nodePool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("6"), "nodes": resource.MustParse("2")}
			f.nodePool.Status.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), "nodes": resource.MustParse("2")}
		})
		f.clock.Step(maxSlow)
		f.Expect(f.isGivenUp()).To(BeTrue())
	})

	t.Run("When deadlines.launch ends before a launch is slow, it should end with that", func(t *testing.T) {
		f := newSlow(t)
		nodeClass := f.NodeClass(t.Context())
		nodeClass.Spec.Deadlines = minutes(5, 20)
		f.Expect(f.Admin.Update(t.Context(), nodeClass)).To(Succeed())
		f.Settle(f.Guest, nodeClass)
		f.Expect(f.look(f.nodeClaim)).To(BeNumerically("<=", 5*time.Minute))
		f.clock.Step(5 * time.Minute)
		f.look(f.nodeClaim)
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
	})

	t.Run("When the management cluster was away, the launch should have its time from then", func(t *testing.T) {
		f := newSlow(t)
		f.clock.Step(maxSlow - time.Minute)
		f.suspended = true
		f.look(f.nodeClaim)
		f.suspended = false
		f.clock.Step(2 * time.Minute)
		f.Expect(f.isGivenUp()).To(BeFalse())
	})
}
