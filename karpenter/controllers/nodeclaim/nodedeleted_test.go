// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

// lost sets on a Machine what Cluster API reports of one whose Node was deleted.
func (f *fixture) lost(m *clusterv1.Machine) {
	m.Status.NodeRef.Name = f.machine.Name
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
		Type: clusterv1.MachineNodeHealthyCondition, Status: metav1.ConditionFalse, Reason: clusterv1.MachineNodeDeletedReason,
		Message: "Node " + f.machine.Name + " has been deleted while the Machine still exists", LastTransitionTime: metav1.Now(),
	})
}

// node makes a Node with the Machine's name.
func (f *fixture) node(providerID string) {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.machine.Name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	f.Expect(f.Admin.Create(f.t.Context(), node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.t.Context()), node) })
	f.Settle(f.Guest, node)
}

// unreadable is an API server that can't list.
type unreadable struct{ client.Reader }

func (unreadable) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("the guest doesn't answer")
}

// kubernetes-sigs/karpenter#1392, #2072
func TestDeletedNode(t *testing.T) {
	t.Run("When a Node was deleted without a drain, it should give the NodeClaim up and say so", func(t *testing.T) {
		f := newFixture(t)
		f.registered()
		f.say(f.lost)
		before := disrupted(f, "node_deleted")
		f.Expect(f.isGivenUp()).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.NodeDeletedReason))
		f.Expect(f.recorder.Messages()[0]).To(ContainSubstring("Node " + f.machine.Name + " was deleted while Machine " + f.Namespace + "/" + f.machine.Name + " runs"))
		f.Expect(f.unavailable.Has(onDemand)).To(BeFalse(), "the offering isn't to blame")
		f.Expect(disrupted(f, "node_deleted")).To(Equal(before + 1))
	})
	for name, tc := range map[string]struct {
		unregistered   bool
		change         func(f *fixture)
		givenUp, again bool
	}{
		"When it was deleted before Karpenter registered it, it should not wait for the deadline": {unregistered: true, givenUp: true},
		"When another machine's Node has that name by now, it should give the NodeClaim up":       {change: func(f *fixture) { f.node("cloud://10") }, givenUp: true},
		"When the Node is there all the same, it should keep the NodeClaim and look again":        {change: func(f *fixture) { f.node("cloud://9") }, again: true},
		"When the Node is there without a provider ID, it should keep the NodeClaim":              {change: func(f *fixture) { f.node("") }, again: true},
		"When the Machine is paused, it should not believe the condition, which may be older":     {change: func(f *fixture) { f.say(pausedMachine) }},
		"When the Machine has another reason, it should leave that to others": {change: func(f *fixture) {
			f.say(func(m *clusterv1.Machine) {
				m.Status.Conditions[len(m.Status.Conditions)-1].Reason = clusterv1.MachineNodeInternalErrorReason
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.launched()
			f.say(provisioned("cloud://9"))
			if !tc.unregistered {
				f.registered()
			}
			f.say(f.lost)
			if tc.change != nil {
				tc.change(f)
			}
			f.Expect(f.isGivenUp()).To(Equal(tc.givenUp))
			if tc.givenUp {
				return
			}
			f.Expect(f.recorder.Reasons()).To(BeEmpty())
			result, err := f.controller.Reconcile(t.Context(), f.stored())
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(result.RequeueAfter > 0).To(Equal(tc.again))
		})
	}
	t.Run("When the guest can't be read, it should keep the NodeClaim", func(t *testing.T) {
		f := newFixture(t)
		f.config.GuestLive = unreadable{f.Admin}
		f.controller = nodeclaim.New(f.config)
		f.registered()
		f.say(f.lost)
		_, err := f.controller.Reconcile(t.Context(), f.stored())
		f.Expect(err).To(MatchError(ContainSubstring("the guest doesn't answer")))
		f.Expect(f.stored().DeletionTimestamp).To(BeNil())
	})
}

func pausedMachine(m *clusterv1.Machine) {
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, LastTransitionTime: metav1.Now(),
	})
}
