// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// rebooting sets the condition by which Karpenter core follows a reboot.
func (f *fixture) rebooting(active bool) {
	f.t.Helper()
	nodeClaim := f.stored()
	if active {
		nodeClaim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeRebooting, karpv1.RebootReasonIssued, "rebooting")
	} else {
		nodeClaim.StatusConditions().SetFalse(karpv1.ConditionTypeRebooting, karpv1.RebootReasonSucceeded, "rejoined")
	}
	f.update(nodeClaim)
}

func (f *fixture) annotations() map[string]string {
	f.t.Helper()
	m := &clusterv1.Machine{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.machine), m)).To(Succeed())
	return m.Annotations
}

func TestReboot(t *testing.T) {
	requested := func(m *clusterv1.Machine) {
		m.Annotations[clusterv1.RemediateMachineAnnotation], m.Annotations[v1alpha1.RebootAnnotation] = "", "first"
	}
	t.Run("When a node has rejoined after its reboot, it should end the remediation, and not before", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.rebooting(true)
		f.say(requested)
		f.reconcile()
		f.Expect(f.annotations()).To(HaveKey(clusterv1.RemediateMachineAnnotation), "the node hasn't rejoined")

		f.rebooting(false)
		f.reconcile()
		f.Expect(f.annotations()).NotTo(Or(HaveKey(clusterv1.RemediateMachineAnnotation), HaveKey(v1alpha1.RebootAnnotation)))
		f.Expect(f.annotations()).To(HaveKey(v1alpha1.TemplateHashAnnotation), "of its own")
	})
	t.Run("When a reboot was given after the NodeClaim was read, it should go on", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		before := f.nodeClaim.DeepCopy()
		f.rebooting(true)
		f.say(requested)
		_, err := f.controller.Reconcile(t.Context(), before)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(f.annotations()).To(HaveKey(clusterv1.RemediateMachineAnnotation))
	})
	t.Run("When a person requests a remediation, it should leave that alone", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Annotations[clusterv1.RemediateMachineAnnotation] = "" })
		f.reconcile()
		f.Expect(f.annotations()).To(HaveKey(clusterv1.RemediateMachineAnnotation))
	})
}
