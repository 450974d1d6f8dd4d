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
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

// lost sets on a Machine what Cluster API reports of one whose Node was deleted.
func (f *fixture) lost(m *clusterv1.Machine) {
	m.Status.NodeRef.Name = f.nodeClaim.Name
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
		Type: clusterv1.MachineNodeHealthyCondition, Status: metav1.ConditionFalse, Reason: clusterv1.MachineNodeDeletedReason,
		Message: "Node " + f.nodeClaim.Name + " has been deleted while the Machine still exists", LastTransitionTime: metav1.Now(),
	})
}

// stored is the NodeClaim as the API server has it.
func (f *fixture) stored() *karpv1.NodeClaim {
	f.t.Helper()
	nodeClaim := &karpv1.NodeClaim{}
	NewWithT(f.t).Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)).To(Succeed())
	return nodeClaim
}

// node makes a Node with the NodeClaim's name.
func (f *fixture) node(providerID string) {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.nodeClaim.Name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	NewWithT(f.t).Expect(f.Admin.Create(f.t.Context(), node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.t.Context()), node) })
}

// unreadable is an API server that can't list.
type unreadable struct{ client.Reader }

func (unreadable) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("the guest doesn't answer")
}

// kubernetes-sigs/karpenter#1392, #2072
func TestDeletedNode(t *testing.T) {
	t.Run("When a Node was deleted without a drain, it should give the NodeClaim up and say so", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.registered()
		f.say(f.lost)
		before := disrupted(g, "node_deleted")
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).NotTo(BeNil())
		g.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.NodeDeletedReason))
		g.Expect(f.recorder.Messages()[0]).To(ContainSubstring("Node " + f.nodeClaim.Name + " was deleted while Machine " + f.Namespace + "/" + f.machine.Name + " runs"))
		g.Expect(f.unavailable.Has(onDemand)).To(BeFalse(), "the offering isn't to blame")
		g.Expect(disrupted(g, "node_deleted")).To(Equal(before + 1))
	})
	t.Run("When it was deleted before Karpenter registered it, it should not wait for the deadline", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.launched()
		f.say(func(m *clusterv1.Machine) { m.Spec.ProviderID = "cloud://9"; f.lost(m) })
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).NotTo(BeNil())
	})
	t.Run("When another machine's Node has that name by now, it should give the NodeClaim up", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.registered()
		f.node("cloud://10")
		f.say(f.lost)
		after, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.DeletionTimestamp).NotTo(BeNil())
	})

	for name, change := range map[string]func(f *fixture){
		"When the Node is there all the same, it should keep the NodeClaim":                   func(f *fixture) { f.node("cloud://9") },
		"When the Node is there without a provider ID, it should keep the NodeClaim":          func(f *fixture) { f.node("") },
		"When the Machine is paused, it should not believe the condition, which may be older": func(f *fixture) { f.say(pausedMachine) },
		"When the Machine has another reason, it should leave that to others": func(f *fixture) {
			f.say(func(m *clusterv1.Machine) {
				m.Status.Conditions[len(m.Status.Conditions)-1].Reason = clusterv1.MachineNodeInternalErrorReason
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.registered()
			f.say(f.lost)
			change(f)
			after, err := f.reconcile()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(after.DeletionTimestamp).To(BeNil())
			g.Expect(f.recorder.Reasons()).To(BeEmpty())
		})
	}
	t.Run("When the Node is there all the same, it should look again", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.registered()
		f.say(f.lost)
		f.node("cloud://9")
		_, err := f.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		result, err := f.controller.Reconcile(t.Context(), f.stored())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	})
	t.Run("When the guest can't be read, it should keep the NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t)
		f.config.GuestLive = unreadable{f.Admin}
		f.controller = nodeclaim.New(f.config)
		f.registered()
		f.say(f.lost)
		after, err := f.reconcile()
		g.Expect(err).To(MatchError(ContainSubstring("the guest doesn't answer")))
		g.Expect(after.DeletionTimestamp).To(BeNil())
	})
}

func pausedMachine(m *clusterv1.Machine) {
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, LastTransitionTime: metav1.Now(),
	})
}
