// SPDX-License-Identifier: Apache-2.0

package termination_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/karpenter/core/termination"
	"github.com/autonode-io/autonode/test/environment"
)

// karpenter takes the place of Karpenter core's controller and reports the nodes of its passes.
type karpenter chan string

func (k karpenter) Reconcile(_ context.Context, node *corev1.Node) (reconcile.Result, error) {
	k <- node.Name
	return reconcile.Result{}, nil
}

func TestTermination(t *testing.T) {
	g := NewWithT(t)
	s := environment.New(t)
	machines, passes := s.Machines(nil), make(karpenter, 10)
	m := s.Manager()
	g.Expect(termination.New(termination.Config{
		Guest: m.GetClient(), Core: passes, ManagementCache: s.Management.GetCache(), Owns: machines.Owns,
	}).Register(t.Context(), m)).To(Succeed())
	s.Run(t.Context(), m)

	// joined creates a Machine whose Node has joined.
	joined := func(g *WithT, name string) *clusterv1.Machine {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-" + name}}
		g.Expect(s.Admin.Create(t.Context(), node)).To(Succeed())
		t.Cleanup(func() { _ = s.Admin.Delete(context.WithoutCancel(t.Context()), node) })
		created, err := machines.Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), name)))
		g.Expect(err).NotTo(HaveOccurred())
		created.Status.NodeRef.Name = node.Name
		g.Expect(s.Admin.Status().Update(t.Context(), created)).To(Succeed())
		g.Eventually(func(g Gomega) {
			cached := &clusterv1.Machine{}
			g.Expect(s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), cached)).To(Succeed())
			g.Expect(cached.Status.NodeRef.Name).To(Equal(node.Name))
			g.Expect(m.GetClient().Get(t.Context(), client.ObjectKeyFromObject(node), &corev1.Node{})).To(Succeed())
		}).Should(Succeed())
		return created
	}

	t.Run("When a Machine is gone, it should run a pass for its node", func(t *testing.T) {
		g := NewWithT(t)
		created := joined(g, "going")
		g.Expect(s.Admin.Delete(t.Context(), created)).To(Succeed())
		g.Eventually(passes).WithTimeout(20 * time.Second).Should(Receive(Equal(created.Status.NodeRef.Name)))
	})

	t.Run("When the Machine of another owner is gone, it should run none", func(t *testing.T) {
		g := NewWithT(t)
		foreign, last := joined(g, "foreign"), joined(g, "last")
		disowned := foreign.DeepCopy()
		disowned.Labels = map[string]string{clusterv1.ClusterNameLabel: "another"}
		g.Expect(s.Admin.Patch(t.Context(), disowned, client.MergeFrom(foreign))).To(Succeed())
		g.Expect(s.Admin.Delete(t.Context(), disowned)).To(Succeed())
		g.Eventually(func() error {
			return s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(foreign), &clusterv1.Machine{})
		}).ShouldNot(Succeed())
		g.Expect(s.Admin.Delete(t.Context(), last)).To(Succeed())
		g.Eventually(passes).WithTimeout(20 * time.Second).Should(Receive(Equal(last.Status.NodeRef.Name)))
		g.Expect(passes).To(BeEmpty())
	})
}
