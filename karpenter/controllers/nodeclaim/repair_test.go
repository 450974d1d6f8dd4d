// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

// unhealthy is what a MachineHealthCheck reports about a Machine.
func unhealthy(m *clusterv1.Machine) {
	m.Status.Conditions = []metav1.Condition{
		{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: metav1.ConditionFalse, Reason: "NodeUnhealthy", Message: "Ready is Unknown for 5m", LastTransitionTime: metav1.Now()},
		{Type: clusterv1.MachineOwnerRemediatedCondition, Status: metav1.ConditionFalse, Reason: "WaitingForRemediation", LastTransitionTime: metav1.Now()},
	}
}

// recovered is what the check reports when the machine is well again: it leaves its mark.
func recovered(m *clusterv1.Machine) {
	unhealthy(m)
	m.Status.Conditions[0].Status, m.Status.Conditions[0].Reason, m.Status.Conditions[0].Message = metav1.ConditionTrue, "Succeeded", ""
}

// others adds machines to the NodePool, some of them unhealthy, and returns them when the cache has them.
func (f *fixture) others(healthy, ill int) []*clusterv1.Machine {
	f.t.Helper()
	var machines []*clusterv1.Machine
	for i := range healthy + ill {
		m := f.machineOf(f.NodeClaim(f.t.Context(), fmt.Sprintf("other-%d", i)))
		if i < ill {
			unhealthy(m)
			f.Expect(f.Admin.Status().Update(f.t.Context(), m)).To(Succeed())
		}
		machines = append(machines, m)
	}
	for _, m := range machines {
		f.Settle(f.Management, m)
	}
	return machines
}

func TestRepair(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *clusterv1.Machine)
		want   string
	}{
		"When a MachineHealthCheck marks a machine, it should replace it": {unhealthy, "NodeUnhealthy: Ready is Unknown for 5m"},
		"When a health check fails without requesting a remedy, it should wait": {
			func(m *clusterv1.Machine) { unhealthy(m); m.Status.Conditions = m.Status.Conditions[:1] }, "",
		},
		"When a machine recovers before it was replaced, it should keep it, though the mark stays": {recovered, ""},
		"When a machine without a health check is marked, it should be replaced": {
			func(m *clusterv1.Machine) { unhealthy(m); m.Status.Conditions = m.Status.Conditions[1:] }, "has marked Machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.launched()
			f.say(tc.change)
			f.Expect(f.isGivenUp()).To(Equal(tc.want != ""))
			f.Expect(f.unavailable.Entries()).To(BeEmpty())
			if tc.want == "" {
				f.Expect(f.recorder.Reasons()).To(BeEmpty())
				return
			}
			f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.MachineUnhealthyReason}))
			f.Expect(f.recorder.Messages()[0]).To(ContainSubstring(tc.want))
		})
	}

	t.Run("When more than a fifth of the NodePool is marked, it should hold, say so once, and go on when fewer are", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(unhealthy)
		others := f.others(3, 2)
		for range 2 {
			f.Expect(f.isGivenUp()).To(BeFalse())
		}
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.RepairHeldReason}))
		f.Expect(f.recorder.Messages()[0]).To(ContainSubstring("3 of 6 machines, more than the 2 that"))

		f.machine = others[0]
		f.say(recovered)
		f.Expect(f.isGivenUp()).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.RepairHeldReason, nodeclaim.MachineUnhealthyReason}))
	})

	t.Run("When another NodePool's machines are unhealthy, it should not mind", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(unhealthy)
		for _, m := range f.others(0, 3) {
			other := m.DeepCopy()
			other.Labels[karpv1.NodePoolLabelKey] = "another"
			f.Expect(f.Admin.Patch(t.Context(), other, client.MergeFrom(m))).To(Succeed())
			f.Settle(f.Management, other)
		}
		f.Expect(f.isGivenUp()).To(BeTrue())
	})
}
