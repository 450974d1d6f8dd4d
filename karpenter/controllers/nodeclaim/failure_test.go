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
	"github.com/autonode-io/autonode/capacity"
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

// reasons gives the NodeClaim's node class failure reasons.
func (f *fixture) reasons(reasons ...v1alpha1.FailureReason) {
	f.t.Helper()
	nodeClass := f.NodeClass(f.t.Context())
	nodeClass.Spec.FailureReasons = reasons
	f.Expect(f.Admin.Update(f.t.Context(), nodeClass)).To(Succeed())
	f.Settle(f.Guest, nodeClass)
}

func bootstrap(reason, message string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
		}}
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

// TestFailure has a row for each place where a failure is reported; what the words of providers mean is in assets/infrastructure.
func TestFailure(t *testing.T) {
	reason := func(reason string, means v1alpha1.FailureMeaning) []v1alpha1.FailureReason {
		return []v1alpha1.FailureReason{{Reason: reason, Means: means}}
	}
	exists := func(change func(*clusterv1.Machine)) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) {
			m.Spec.ProviderID = "cloud://4"
			change(m)
		}
	}
	list := func(kind, status, reason, message string) map[string]any {
		return map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "False", "reason": "NotReady", "message": "* " + kind + ": " + message},
			map[string]any{"type": kind, "status": status, "reason": reason, "message": message},
		}}
	}
	seeThere := infrastructure(metav1.ConditionFalse, "NotReady", "* InstanceReady: see there")
	for name, tc := range map[string]struct {
		// reasons of the node class.
		reasons []v1alpha1.FailureReason
		change  func(m *clusterv1.Machine)
		// status of the infrastructure machine.
		status map[string]any
		want   string
		marked bool
	}{
		"When the infrastructure's reason is that it has no capacity, it should give the NodeClaim up and the offering for a while": {
			change: infrastructure(metav1.ConditionFalse, "InsufficientInstanceCapacity", ""), want: nodeclaim.InsufficientCapacityReason, marked: true,
		},
		"When the account's quota is used up, it should say so": {
			change: infrastructure(metav1.ConditionFalse, "VMProvisionFailed", "Code=\"QuotaExceeded\": raise it"), want: nodeclaim.QuotaExceededReason, marked: true,
		},
		"When the infrastructure isn't ready for another reason, it should wait": {
			change: infrastructure(metav1.ConditionFalse, "WaitingForBootstrapData", ""),
		},
		"When the node class declares that a reason means no capacity, it should take its word": {
			reasons: reason("OutOfHosts", v1alpha1.FailureInsufficientCapacity), change: infrastructure(metav1.ConditionFalse, "OutOfHosts", ""),
			want: nodeclaim.InsufficientCapacityReason, marked: true,
		},
		"When only the message has the node class's reason, it should take its word too": {
			reasons: reason("OutOfHosts", v1alpha1.FailureQuotaExceeded), change: infrastructure(metav1.ConditionFalse, "NotReady", "* HostFound: OutOfHosts in rack 4"),
			want: nodeclaim.QuotaExceededReason, marked: true,
		},
		"When the node class's reason is of the bootstrap's condition, it should give the NodeClaim up and not the offering": {
			reasons: reason("DataSecretGenerationFailed", v1alpha1.FailureTerminal), change: bootstrap("DataSecretGenerationFailed", "no token"),
			want: nodeclaim.MachineFailedReason,
		},
		"When the bootstrap's condition has a word that is known, it should not take it for the infrastructure's": {
			change: bootstrap("NotReady", "QuotaExceeded: secrets"),
		},
		"When a reason that means no capacity to the node class is final for a machine that exists, it should report the machine": {
			reasons: reason("InstanceTerminated", v1alpha1.FailureInsufficientCapacity), change: exists(infrastructure(metav1.ConditionFalse, "InstanceTerminated", "spot")),
			want: nodeclaim.MachineFailedReason,
		},
		"When the node class ignores a reason, it should wait, whatever the message": {
			reasons: reason("InstanceProvisionFailed", v1alpha1.FailureIgnored),
			change:  infrastructure(metav1.ConditionFalse, "InstanceProvisionFailed", "InsufficientInstanceCapacity"),
		},
		"When the node class ignores a word that is known, it should wait": {
			reasons: reason("AllocationFailed", v1alpha1.FailureIgnored), change: infrastructure(metav1.ConditionFalse, "NotReady", "AllocationFailed: trying the next rack"),
		},
		"When a provider of the contract v1beta1 lacks resources, it should take that as no capacity": {
			change: failed("InsufficientResources", "none left"), want: nodeclaim.InsufficientCapacityReason, marked: true,
		},
		"When a machine that exists has failed, it should report that, whatever else is said of capacity": {
			change: exists(func(m *clusterv1.Machine) {
				infrastructure(metav1.ConditionFalse, "QuotaExceeded", "for disks")(m)
				failed("CreateError", "the image doesn't boot")(m)
			}), want: nodeclaim.MachineFailedReason,
		},
		"When only a condition of the infrastructure machine has the reason, it should find it there": {
			change: seeThere, status: list("InstanceReady", "False", "InsufficientInstanceCapacity", "none left"),
			want: nodeclaim.InsufficientCapacityReason, marked: true,
		},
		"When that is among conditions of a contract in transition, it should find it too": {
			change: seeThere, status: map[string]any{"v1beta2": list("VMProvisioned", "False", "QuotaExceeded", "raise it")},
			want: nodeclaim.QuotaExceededReason, marked: true,
		},
		"When the condition is fine, it should not mind its reason": {
			change: seeThere, status: list("InstanceReady", "True", "InsufficientInstanceCapacity", "was yesterday"),
		},
		"When the conditions are no conditions, it should not mind them": {
			change: seeThere, status: map[string]any{"conditions": "none", "deprecated": []any{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if tc.reasons != nil {
				f.reasons(tc.reasons...)
			}
			f.launched()
			f.say(tc.change)
			if tc.status != nil {
				f.withInfrastructure(tc.status)
			}
			f.Expect(f.isGivenUp()).To(Equal(tc.want != ""))
			f.Expect(f.unavailable.Has(onDemand)).To(Equal(tc.marked))
			if tc.want == "" {
				f.Expect(f.recorder.Reasons()).To(BeEmpty())
				return
			}
			f.Expect(f.recorder.Reasons()).To(Equal([]string{tc.want}))
			f.Expect(f.recorder.Messages()[0]).To(ContainSubstring("on-demand c4-large in zone a"))
		})
	}
}

func TestTerminalFailure(t *testing.T) {
	t.Run("When a machine has become a node, it should leave its failures to others", func(t *testing.T) {
		f := newFixture(t)
		f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "InstanceStateError", "it may still run"))
		f.Expect(f.isGivenUp()).To(BeFalse())
	})

	t.Run("When the account's quota is used up, it should give up the family that the NodeClaim's label declares, in all zones", func(t *testing.T) {
		f := newFixture(t)
		metav1.SetMetaDataLabel(&f.nodeClaim.ObjectMeta, v1alpha1.InstanceFamilyLabel, "general")
		f.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "VMProvisionFailed", "Code=\"QuotaExceeded\": raise it"))
		f.reconcile()
		other := offering.Key{InstanceType: "c8-xlarge", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}
		counted := func(family string) offering.Quota {
			return offering.Quota{QuotaName: capacity.QuotaName{Name: "on-demand " + family}}
		}
		f.Expect(f.unavailable.Has(other, counted("general"))).To(BeTrue())
		f.Expect(f.unavailable.Has(other, counted("another"))).To(BeFalse())
		f.Expect(f.recorder.Messages()).To(ConsistOf(MatchRegexp(`quota "on-demand general" is exhausted, until \d\d:\d\d:\d\d UTC$`)))
	})

	t.Run("When machines of an offering fail three times in a row, it should let the offering rest", func(t *testing.T) {
		f := newFixture(t)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.MachineFailedReason)
		}
		f.launched()
		f.say(failed("CreateError", "the image doesn't boot"))
		f.reconcile()
		f.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
		f.Expect(f.recorder.Messages()[0]).To(And(ContainSubstring("the image doesn't boot"), ContainSubstring("not tried again before")))
	})
}

// withInfrastructure lets the controller read infrastructure machines, of which this one then reports what is given.
func (f *fixture) withInfrastructure(status map[string]any) {
	f.t.Helper()
	management, err := dynamic.NewForConfig(f.Management.GetConfig())
	f.Expect(err).NotTo(HaveOccurred())
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
	f.Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(environment.TestMachine)
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: f.machine.Spec.InfrastructureRef.Name}, u)).To(Succeed())
	u.Object["status"] = status
	f.Expect(f.Admin.Status().Update(f.t.Context(), u)).To(Succeed())
	f.Eventually(func(g Gomega) {
		cached, err := set.Get(f.t.Context(), environment.TestMachine.GroupKind(), f.machine.Spec.InfrastructureRef.Name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cached.GetResourceVersion()).To(Equal(u.GetResourceVersion()))
	}).Should(Succeed())
}

func TestDocs(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/platform/failures.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, reason := range []string{
		nodeclaim.InsufficientCapacityReason, nodeclaim.QuotaExceededReason, nodeclaim.LaunchTimeoutReason, nodeclaim.RegistrationTimeoutReason,
		nodeclaim.MachineFailedReason, nodeclaim.MachineDeletedReason, nodeclaim.MachineUnhealthyReason, nodeclaim.RepairHeldReason,
		nodeclaim.MisconfiguredReason, nodeclaim.InterruptedReason, nodeclaim.InstanceTerminatedReason,
		nodeclaim.AllocatableShortfallReason,
	} {
		t.Run("When an event reports "+reason+", docs/platform/failures.md should say what to do", func(t *testing.T) {
			NewWithT(t).Expect(string(docs)).To(ContainSubstring("\n| `" + reason + "` |"))
		})
	}
}
