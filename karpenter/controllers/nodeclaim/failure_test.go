// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capierrors "sigs.k8s.io/cluster-api/api/deprecated/errors" //nolint:staticcheck // see failed
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func infrastructure(status metav1.ConditionStatus, reason, message string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.MachineInfrastructureReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
		}}
	}
}

func TestFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *clusterv1.Machine)
		reason string
	}{
		"When the infrastructure's reason is that it has no capacity, it should give the NodeClaim up and the offering for a while": {
			infrastructure(metav1.ConditionFalse, "InsufficientInstanceCapacity", ""), nodeclaim.InsufficientCapacityReason,
		},
		"When only the message reports that there is no capacity, it should give up too": {
			infrastructure(metav1.ConditionFalse, "InstanceProvisionFailed", "api error InsufficientInstanceCapacity: none left in eu-1a"), nodeclaim.InsufficientCapacityReason,
		},
		"When the account's quota is used up, it should say so": {
			infrastructure(metav1.ConditionFalse, "VMProvisionFailed", "Code=\"QuotaExceeded\": raise it"), nodeclaim.QuotaExceededReason,
		},
		"When the cloud limits the rate of requests and calls that a quota, it should wait": {
			infrastructure(metav1.ConditionFalse, "InstanceProvisionFailed", "googleapi: Error 403: Quota exceeded for quota metric 'Queries' and limit "+
				"'Queries per minute' of service 'compute.googleapis.com' for consumer 'project_number:4'., rateLimitExceeded"), "",
		},
		"When an API refuses a request for its rate limit, it should wait": {
			infrastructure(metav1.ConditionFalse, "LimitExceeded", "429: too many requests"), "",
		},
		"When the infrastructure isn't ready for another reason, it should wait": {
			infrastructure(metav1.ConditionFalse, "WaitingForBootstrapData", ""), "",
		},
		"When a longer word contains one that means no capacity, it should wait": {
			infrastructure(metav1.ConditionFalse, "Waiting", "AllocationFailedRecently is under investigation"), "",
		},
		"When the infrastructure isn't known to lack anything, it should wait": {
			infrastructure(metav1.ConditionUnknown, "InsufficientInstanceCapacity", ""), "",
		},
		"When the machine exists already, it should not give it up for what is said of capacity later": {
			func(m *clusterv1.Machine) {
				m.Spec.ProviderID = "cloud://4"
				infrastructure(metav1.ConditionFalse, "InsufficientInstanceCapacity", "")(m)
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.launched()
			f.say(tc.change)
			after, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			if tc.reason == "" {
				g.Expect(after.DeletionTimestamp).To(BeNil())
				g.Expect(f.unavailable.Has(onDemand)).To(BeFalse())
				g.Expect(f.recorder.Reasons()).To(BeEmpty())
				return
			}
			g.Expect(after.DeletionTimestamp).NotTo(BeNil())
			g.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
			g.Expect(f.recorder.Reasons()).To(ConsistOf(tc.reason))
			g.Expect(f.recorder.Messages()[0]).To(ContainSubstring("on-demand c4-large in zone a"))
		})
	}
}

// reasons gives the NodeClaim's node class failure reasons.
func (f *fixture) reasons(reasons ...v1alpha1.FailureReason) {
	f.t.Helper()
	g := NewWithT(f.t)
	nodeClass := f.NodeClass(f.t.Context())
	nodeClass.Spec.FailureReasons = reasons
	g.Expect(f.Admin.Update(f.t.Context(), nodeClass)).To(Succeed())
	g.Eventually(func(g Gomega) {
		cached := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(f.Guest.GetClient().Get(f.t.Context(), client.ObjectKeyFromObject(nodeClass), cached)).To(Succeed())
		g.Expect(cached.Spec.FailureReasons).To(Equal(reasons))
	}).Should(Succeed())
}

func bootstrap(reason, message string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
		}}
	}
}

func TestFailureReasonsOfNodeClass(t *testing.T) {
	reason := func(reason string, means v1alpha1.FailureMeaning) v1alpha1.FailureReason {
		return v1alpha1.FailureReason{Reason: reason, Means: means}
	}
	for name, tc := range map[string]struct {
		reasons []v1alpha1.FailureReason
		change  func(m *clusterv1.Machine)
		want    []string
		marked  bool
	}{
		"When the node class declares that a reason means no capacity, it should take its word": {
			[]v1alpha1.FailureReason{reason("OutOfHosts", v1alpha1.FailureInsufficientCapacity)},
			infrastructure(metav1.ConditionFalse, "OutOfHosts", ""), []string{nodeclaim.InsufficientCapacityReason}, true,
		},
		"When only the message has the node class's reason, it should take its word too": {
			[]v1alpha1.FailureReason{reason("OutOfHosts", v1alpha1.FailureQuotaExceeded)},
			infrastructure(metav1.ConditionFalse, "NotReady", "* HostFound: OutOfHosts in rack 4"), []string{nodeclaim.QuotaExceededReason}, true,
		},
		"When the node class declares that a reason is a failure, it should give the NodeClaim up and not the offering": {
			[]v1alpha1.FailureReason{reason("BootstrapFailed", v1alpha1.FailureTerminal)},
			infrastructure(metav1.ConditionFalse, "BootstrapFailed", "exit code 1"), []string{nodeclaim.MachineFailedReason}, false,
		},
		"When the node class's reason is of the bootstrap's condition, it should take its word too": {
			[]v1alpha1.FailureReason{reason("DataSecretGenerationFailed", v1alpha1.FailureTerminal)},
			bootstrap("DataSecretGenerationFailed", "no token"), []string{nodeclaim.MachineFailedReason}, false,
		},
		"When the bootstrap's condition has a word that is known, it should not take it for the infrastructure's": {
			nil, bootstrap("NotReady", "QuotaExceeded: secrets"), nil, false,
		},
		"When a reason that means no capacity to the node class is final for a machine that exists, it should report the machine": {
			[]v1alpha1.FailureReason{reason("InstanceTerminated", v1alpha1.FailureInsufficientCapacity)},
			func(m *clusterv1.Machine) {
				m.Spec.ProviderID = "cloud://8"
				infrastructure(metav1.ConditionFalse, "InstanceTerminated", "spot")(m)
			}, []string{nodeclaim.MachineFailedReason}, false,
		},
		"When the node class ignores a reason, it should wait, whatever the message": {
			[]v1alpha1.FailureReason{reason("InstanceProvisionFailed", v1alpha1.FailureIgnored)},
			infrastructure(metav1.ConditionFalse, "InstanceProvisionFailed", "InsufficientInstanceCapacity"), nil, false,
		},
		"When the node class ignores a word that is known, it should wait": {
			[]v1alpha1.FailureReason{reason("AllocationFailed", v1alpha1.FailureIgnored)},
			infrastructure(metav1.ConditionFalse, "NotReady", "AllocationFailed: trying the next rack"), nil, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.reasons(tc.reasons...)
			f.launched()
			f.say(tc.change)
			after, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(f.recorder.Reasons()).To(HaveLen(len(tc.want)))
			g.Expect(f.recorder.Reasons()).To(ContainElements(tc.want))
			g.Expect(after.DeletionTimestamp != nil).To(Equal(len(tc.want) > 0))
			g.Expect(f.unavailable.Has(onDemand)).To(Equal(tc.marked))
		})
	}
}

// failed is what Cluster API repeats of a provider of the contract v1beta1 that has given up.
//
//nolint:staticcheck // deprecated together with that contract, which many providers still follow.
func failed(reason, message string) func(m *clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Status.Deprecated = &clusterv1.MachineDeprecatedStatus{V1Beta1: &clusterv1.MachineV1Beta1DeprecatedStatus{
			FailureReason: ptr.To(capierrors.MachineStatusError(reason)), FailureMessage: ptr.To(message),
		}}
	}
}

func TestTerminalFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *clusterv1.Machine)
		want   []string
	}{
		"When a provider of the contract v1beta1 has given up, it should report that": {
			failed("CreateError", "the image doesn't boot"), []string{nodeclaim.MachineFailedReason},
		},
		"When such a provider lacks resources, it should take that as no capacity": {
			failed("InsufficientResources", "none left"), []string{nodeclaim.InsufficientCapacityReason},
		},
		"When the instance is gone before it has become a node, it should report that": {
			func(m *clusterv1.Machine) {
				m.Spec.ProviderID = "cloud://5"
				infrastructure(metav1.ConditionFalse, "InstanceTerminated", "spot")(m)
			}, []string{nodeclaim.MachineFailedReason},
		},
		"When a machine that exists is gone because capacity was taken back, it should report that it is gone": {
			func(m *clusterv1.Machine) {
				m.Spec.ProviderID = "cloud://6"
				infrastructure(metav1.ConditionFalse, "InstanceTerminated", "Server.InsufficientInstanceCapacity: taken back")(m)
			}, []string{nodeclaim.MachineFailedReason},
		},
		"When a machine that exists has failed, it should report that, whatever else is said of capacity": {
			func(m *clusterv1.Machine) {
				m.Spec.ProviderID = "cloud://7"
				infrastructure(metav1.ConditionFalse, "QuotaExceeded", "for disks")(m)
				failed("CreateError", "the image doesn't boot")(m)
			}, []string{nodeclaim.MachineFailedReason},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.launched()
			f.say(tc.change)
			after, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(after.DeletionTimestamp).NotTo(BeNil())
			g.Expect(f.recorder.Reasons()).To(Equal(tc.want))
		})
	}

	t.Run("When a machine has become a node, it should leave its failures to others", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "InstanceStateError", "it may still run"))
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).To(BeNil())
	})

	t.Run("When the account's quota is used up, it should give up the family that the NodeClaim's label declares, in all zones", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		metav1.SetMetaDataLabel(&f.nodeClaim.ObjectMeta, v1alpha1.InstanceFamilyLabel, "general")
		g.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "VMProvisionFailed", "Code=\"QuotaExceeded\": raise it"))
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		other := offering.Key{InstanceType: "c8-xlarge", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}
		counted := func(family string) offering.Quota {
			return offering.Quota{QuotaName: offering.QuotaName{Name: "on-demand " + family}}
		}
		g.Expect(f.unavailable.Has(other, counted("general"))).To(BeTrue())
		g.Expect(f.unavailable.Has(other, counted("another"))).To(BeFalse())
		g.Expect(f.recorder.Messages()).To(ConsistOf(MatchRegexp(`quota "on-demand general" is exhausted, until one launch probes it at \d\d:\d\d:\d\d UTC$`)))
	})

	t.Run("When machines of an offering fail three times in a row, it should let the offering rest", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)
		}
		f.launched()
		f.say(failed("CreateError", "the image doesn't boot"))
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
		g.Expect(f.recorder.Messages()[0]).To(And(ContainSubstring("the image doesn't boot"), ContainSubstring("not tried again before")))
	})
}

// withInfrastructure lets the controller read infrastructure machines, of which this one then reports what is given.
func (f *fixture) withInfrastructure(status map[string]any) {
	f.t.Helper()
	g := NewWithT(f.t)
	management, err := dynamic.NewForConfig(f.Management.GetConfig())
	g.Expect(err).NotTo(HaveOccurred())
	set := informer.New(informer.Config{Management: management, Mapper: f.Management.GetRESTMapper(), Namespace: f.Namespace})
	ctx, stop := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- set.Start(ctx) }()
	f.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
	f.config.Infrastructure = set
	f.controller = nodeclaim.New(f.config)
	_, err = set.Get(f.t.Context(), environment.TestMachine.GroupKind(), f.machine.Spec.InfrastructureRef.Name)
	g.Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(environment.TestMachine)
	g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: f.machine.Spec.InfrastructureRef.Name}, u)).To(Succeed())
	u.Object["status"] = status
	g.Expect(f.Admin.Status().Update(f.t.Context(), u)).To(Succeed())
	g.Eventually(func(g Gomega) {
		cached, err := set.Get(f.t.Context(), environment.TestMachine.GroupKind(), f.machine.Spec.InfrastructureRef.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cached.GetResourceVersion()).To(Equal(u.GetResourceVersion()))
	}).Should(Succeed())
}

func TestInfrastructureConditions(t *testing.T) {
	list := func(kind, status, reason, message string) map[string]any {
		return map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "False", "reason": "NotReady", "message": "* " + kind + ": " + message},
			map[string]any{"type": kind, "status": status, "reason": reason, "message": message},
		}}
	}
	for name, tc := range map[string]struct {
		status map[string]any
		want   []string
	}{
		"When only a condition of its own has the reason, it should find it there": {
			list("InstanceReady", "False", "InsufficientInstanceCapacity", "none left"), []string{nodeclaim.InsufficientCapacityReason},
		},
		"When that is among conditions of a contract in transition, it should find it too": {
			map[string]any{"v1beta2": list("VMProvisioned", "False", "QuotaExceeded", "raise it")}, []string{nodeclaim.QuotaExceededReason},
		},
		"When the condition is fine, it should not mind its reason": {
			list("InstanceReady", "True", "InsufficientInstanceCapacity", "was yesterday"), nil,
		},
		"When the conditions are no conditions, it should not mind them": {
			map[string]any{"conditions": "none", "deprecated": []any{}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.launched()
			f.say(infrastructure(metav1.ConditionFalse, "NotReady", "* InstanceReady: see there"))
			f.withInfrastructure(tc.status)
			after, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(after.DeletionTimestamp != nil).To(Equal(len(tc.want) > 0))
			g.Expect(f.recorder.Reasons()).To(HaveLen(len(tc.want)))
			g.Expect(f.recorder.Reasons()).To(ContainElements(tc.want))
		})
	}
}

func TestDocs(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/failures.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, reason := range []string{
		nodeclaim.InsufficientCapacityReason, nodeclaim.QuotaExceededReason, nodeclaim.LaunchTimeoutReason, nodeclaim.RegistrationTimeoutReason,
		nodeclaim.MachineFailedReason, nodeclaim.MachineDeletedReason, nodeclaim.MachineUnhealthyReason, nodeclaim.RepairHeldReason,
		nodeclaim.MisconfiguredReason, nodeclaim.InterruptedReason, nodeclaim.InstanceTerminatedReason,
		nodeclaim.AllocatableShortfallReason,
	} {
		t.Run("When an event reports "+reason+", docs/failures.md should say what to do", func(t *testing.T) {
			NewWithT(t).Expect(string(docs)).To(ContainSubstring("\n| `" + reason + "` |"))
		})
	}
}
