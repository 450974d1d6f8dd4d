// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// profiles gives the controller this profile of the test's kind.
func (f *fixture) profiles(rules string) {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "profiles.yaml")
	kind := environment.TestMachine.GroupKind()
	f.Expect(os.WriteFile(path, []byte("- apiGroup: "+kind.Group+"\n  kind: "+kind.Kind+"\n"+rules), 0o600)).To(Succeed())
	profiles, err := profile.New(path)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(profiles.Problem()).NotTo(HaveOccurred())
	f.config.Profiles = profiles
	f.controller = nodeclaim.New(f.config)
}

// registered makes the NodeClaim one whose node has joined.
func (f *fixture) registered() {
	f.t.Helper()
	f.launched()
	f.update(f.nodeClaim, karpv1.ConditionTypeRegistered)
	f.say(provisioned("cloud://9"))
}

// disrupted returns how many NodeClaims were disrupted for a reason.
func disrupted(g Gomega, reason string) (count float64) {
	for _, metric := range measured(g, "karpenter_nodeclaims_disrupted_total", map[string]string{metrics.ReasonLabel: reason}) {
		count += metric.GetCounter().GetValue()
	}
	return count
}

const interruptedRule = `
  conditions:
    - {means: Interrupted, type: Preempted, status: "True"}
`

func TestInterruption(t *testing.T) {
	preempted := map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "reason": "Ready"},
		map[string]any{"type": "Preempted", "status": "True", "reason": "SpotReclaimed", "message": "in two minutes"},
	}}
	spot := offering.Key{InstanceType: onDemand.InstanceType, Zone: onDemand.Zone, CapacityType: karpv1.CapacityTypeSpot}
	for name, tc := range map[string]struct {
		registered bool
		change     func(m *clusterv1.Machine)
		marked     offering.Key
		message    string
	}{
		"When a spot machine with a node is interrupted, it should replace it, and not by the same offering": {
			true, func(m *clusterv1.Machine) { m.Labels[karpv1.CapacityTypeLabelKey] = karpv1.CapacityTypeSpot }, spot, "not tried again before",
		},
		"When an on-demand machine with a node is interrupted, it should replace it, by the same offering if that is the cheapest": {
			true, func(*clusterv1.Machine) {}, offering.Key{}, "SpotReclaimed: in two minutes; its node is drained and replaced",
		},
		"When a machine is interrupted before its node joins, it should replace it": {
			false, func(*clusterv1.Machine) {}, offering.Key{}, "the infrastructure takes Machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.profiles(interruptedRule)
			if tc.registered {
				f.registered()
			} else {
				f.launched()
			}
			// Cluster API keeps the Machine's own condition True meanwhile.
			f.say(func(m *clusterv1.Machine) {
				infrastructure(metav1.ConditionTrue, "Ready", "")(m)
				tc.change(m)
			})
			f.withInfrastructure(preempted)
			before := disrupted(f, "interrupted")
			f.Expect(f.isGivenUp()).To(BeTrue())
			f.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.InterruptedReason))
			f.Expect(f.recorder.Messages()[0]).To(ContainSubstring(tc.message))
			f.Expect(f.unavailable.Has(spot)).To(Equal(tc.marked == spot))
			f.Expect(f.unavailable.Has(onDemand)).To(BeFalse())
			f.Expect(disrupted(f, "interrupted")).To(Equal(before + 1))

			machine := &clusterv1.Machine{}
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.machine), machine)).To(Succeed())
			f.Expect(machine.Annotations).NotTo(HaveKey(v1alpha1.InstanceGoneAnnotation), "its node can still be drained")
		})
	}

	t.Run("When the kind has no such profile, it should leave the condition alone", func(t *testing.T) {
		f := newFixture(t)
		f.registered()
		f.withInfrastructure(preempted)
		f.Expect(f.isGivenUp()).To(BeFalse())
	})
}

func TestTerminatedInstance(t *testing.T) {
	const rule = `
  conditions:
    - {means: Terminated, reasons: [PoweredOff]}
  states:
    - {means: Terminated, path: status.instanceState, values: [terminated]}
`
	for name, tc := range map[string]struct {
		change func(f *fixture)
		want   string
	}{
		"When a node's instance is gone by a reason that every kind has, it should replace it": {
			func(f *fixture) { f.say(infrastructure(metav1.ConditionFalse, "InstanceTerminated", "spot")) }, "InstanceTerminated: spot",
		},
		"When it is gone by its kind's own reason, it should replace it": {
			func(f *fixture) {
				f.profiles(rule)
				f.say(infrastructure(metav1.ConditionFalse, "PoweredOff", ""))
			}, "PoweredOff",
		},
		"When only a field reports that it is gone, it should replace it": {
			func(f *fixture) {
				f.profiles(rule)
				f.withInfrastructure(map[string]any{"instanceState": "terminated"})
			}, "terminated",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.registered()
			tc.change(f)
			before := disrupted(f, "instance_terminated")
			f.Expect(f.isGivenUp()).To(BeTrue())
			f.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.InstanceTerminatedReason))
			f.Expect(f.recorder.Messages()[0]).To(ContainSubstring(tc.want + "; launching a replacement"))
			f.Expect(disrupted(f, "instance_terminated")).To(Equal(before + 1))
			f.Expect(f.unavailable.Has(onDemand)).To(BeFalse(), "it worked until then")

			machine := &clusterv1.Machine{}
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.machine), machine)).To(Succeed())
			f.Expect(machine.Annotations).To(HaveKeyWithValue(v1alpha1.InstanceGoneAnnotation, tc.want))
		})
	}

	t.Run("When the node class ignores the reason, it should keep the node", func(t *testing.T) {
		f := newFixture(t)
		f.reasons(v1alpha1.FailureReason{Reason: "InstanceTerminated", Means: v1alpha1.FailureIgnored})
		f.registered()
		f.say(infrastructure(metav1.ConditionFalse, "InstanceTerminated", "it will be back"))
		f.Expect(f.isGivenUp()).To(BeFalse())
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})
}

func TestMisconfigured(t *testing.T) {
	t.Run("When the infrastructure rejects the configuration, it should say so at once and let the offering rest", func(t *testing.T) {
		f := newFixture(t)
		f.profiles("  conditions: [{means: Misconfigured, words: [ImageNotFound]}]\n")
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "CreateFailed", "ImageNotFound: ubuntu"))
		f.Expect(f.isGivenUp()).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.MisconfiguredReason))
		f.Expect(f.recorder.Messages()[0]).To(ContainSubstring("CreateFailed: ImageNotFound: ubuntu; correct its template or patches; not tried again before"))
		f.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
		f.Expect(f.unavailable.Entries()).To(ConsistOf(HaveField("Words", "CreateFailed: ImageNotFound: ubuntu")))
	})
}
