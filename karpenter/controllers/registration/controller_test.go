// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/registration"
)

// fixture is a running controller and one NodeClaim's Machine.
type fixture struct {
	*GomegaWithT
	*environment.Environment
	t *testing.T
	// guest reads from the controller's own cache.
	guest     client.Client
	nodeClaim *karpv1.NodeClaim
	machine   *clusterv1.Machine
}

func start(t *testing.T) *fixture {
	t.Helper()
	return startWith(t, func(guest client.Client) client.Client { return guest })
}

// startWith lets the controller write through a client of its own.
func startWith(t *testing.T, writes func(client.Client) client.Client) *fixture {
	t.Helper()
	return startAs(t, func(*karpv1.NodeClaimSpec) {}, writes)
}

// startAs changes the NodeClaim before its Machine is created.
func startAs(t *testing.T, change func(*karpv1.NodeClaimSpec), writes func(client.Client) client.Client) *fixture {
	t.Helper()
	f := &fixture{GomegaWithT: NewWithT(t), Environment: environment.New(t), t: t}
	m := f.Manager()
	// As Karpenter core does.
	f.Expect(m.GetFieldIndexer().IndexField(t.Context(), &corev1.Node{}, "spec.providerID", func(o client.Object) []string {
		return []string{o.(*corev1.Node).Spec.ProviderID}
	})).To(Succeed())
	f.guest = m.GetClient()
	f.Expect(registration.New(registration.Config{
		Guest: writes(f.guest), ManagementCache: f.Management.GetCache(), Machines: f.Machines(nil),
	}).Register(t.Context(), m)).To(Succeed())
	f.Run(t.Context(), m)
	f.nodeClaim = f.NodeClaim(t.Context(), "joins", change)
	var err error
	f.machine, err = f.Machines(nil).Create(t.Context(), f.Plan(f.nodeClaim))
	f.Expect(err).NotTo(HaveOccurred())
	return f
}

// provided gives the Machine a provider ID, which is that of the Nodes that node makes.
func (f *fixture) provided() {
	f.t.Helper()
	patched := f.machine.DeepCopy()
	patched.Spec.ProviderID = f.providerID()
	f.Expect(f.Admin.Patch(f.t.Context(), patched, client.MergeFrom(f.machine))).To(Succeed())
	f.machine = patched
}

func (f *fixture) providerID() string { return "cloud://" + f.nodeClaim.Name }

// node joins.
func (f *fixture) node(name string, change func(*corev1.Node)) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace + "-" + name}, Spec: corev1.NodeSpec{ProviderID: f.providerID()}}
	if change != nil {
		change(node)
	}
	f.Expect(f.Admin.Create(f.t.Context(), node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.t.Context()), node) })
	return node
}

func (f *fixture) taints(node *corev1.Node) func() ([]corev1.Taint, error) {
	return func() ([]corev1.Taint, error) {
		after := &corev1.Node{}
		err := f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(node), after)
		return after.Spec.Taints, err
	}
}

// dealtWith waits until the controller has handled all earlier events, by letting it taint another NodeClaim's node.
func (f *fixture) dealtWith() {
	f.t.Helper()
	other := f.NodeClaim(f.t.Context(), "other")
	m, err := f.Machines(nil).Create(f.t.Context(), f.Plan(other))
	f.Expect(err).NotTo(HaveOccurred())
	patched := m.DeepCopy()
	patched.Spec.ProviderID = "cloud://" + other.Name
	f.Expect(f.Admin.Patch(f.t.Context(), patched, client.MergeFrom(m))).To(Succeed())
	node := f.node("other", func(n *corev1.Node) { n.Spec.ProviderID = patched.Spec.ProviderID })
	f.Eventually(f.taints(node)).Should(ContainElement(karpv1.UnregisteredNoExecuteTaint))
}

func TestConflict(t *testing.T) {
	t.Run("When another client changes the node at the same time, it should add the taint all the same", func(t *testing.T) {
		f := startWith(t, func(guest client.Client) client.Client { return &environment.Conflicting{Client: guest} })
		f.provided()
		f.Eventually(f.taints(f.node("joined", nil))).Should(ContainElement(karpv1.UnregisteredNoExecuteTaint))
	})
}

func TestRegistration(t *testing.T) {
	slow := corev1.Taint{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}
	t.Run("When a node of ours joins without the taint, it should add it and keep the others", func(t *testing.T) {
		f := start(t)
		f.provided()
		node := f.node("joined", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{slow} })
		f.Eventually(f.taints(node)).Should(ContainElements(slow, karpv1.UnregisteredNoExecuteTaint))
	})
	t.Run("When the node joins before the Machine has its provider ID, it should add the taint as soon as it has", func(t *testing.T) {
		f := start(t)
		node := f.node("early", nil)
		f.dealtWith()
		f.Expect(f.taints(node)()).NotTo(ContainElement(karpv1.UnregisteredNoExecuteTaint))
		f.provided()
		f.Eventually(f.taints(node)).Should(ContainElement(karpv1.UnregisteredNoExecuteTaint))
	})
	t.Run("When the node gets its provider ID only after it has joined, it should add the taint then", func(t *testing.T) {
		f := start(t)
		f.provided()
		node := f.node("bare", func(n *corev1.Node) { n.Spec.ProviderID = "" })
		patched := node.DeepCopy()
		patched.Spec.ProviderID = f.providerID()
		f.Expect(f.Admin.Patch(t.Context(), patched, client.MergeFrom(node))).To(Succeed())
		f.Eventually(f.taints(node)).Should(ContainElement(karpv1.UnregisteredNoExecuteTaint))
	})

	for name, prepare := range map[string]func(f *fixture) *corev1.Node{
		"When Karpenter has registered the node, it should leave it": func(f *fixture) *corev1.Node {
			return f.node("registered", func(n *corev1.Node) { n.Labels = map[string]string{karpv1.NodeRegisteredLabelKey: "true"} })
		},
		"When a person removes the label of a registered node, it should leave it": func(f *fixture) *corev1.Node {
			f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
			f.Expect(f.Admin.Status().Update(f.t.Context(), f.nodeClaim)).To(Succeed())
			f.Eventually(func() (bool, error) {
				cached := &karpv1.NodeClaim{}
				err := f.guest.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), cached)
				return cached.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue(), err
			}).Should(BeTrue())
			return f.node("stripped", nil)
		},
		"When the node has no known owner, it should leave it": func(f *fixture) *corev1.Node {
			return f.node("foreign", func(n *corev1.Node) { n.Spec.ProviderID = "cloud://foreign" })
		},
		"When the Machine was made for an earlier NodeClaim of the name, it should leave the node": func(f *fixture) *corev1.Node {
			f.Expect(f.Admin.Delete(f.t.Context(), f.nodeClaim)).To(Succeed())
			again := f.NodeClaim(f.t.Context(), "joins")
			f.Eventually(func() (types.UID, error) {
				cached := &karpv1.NodeClaim{}
				err := f.guest.Get(f.t.Context(), client.ObjectKeyFromObject(again), cached)
				return cached.UID, err
			}).Should(Equal(again.UID))
			return f.node("earlier", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			f.provided()
			node := prepare(f)
			f.dealtWith()
			f.Expect(f.taints(node)()).NotTo(ContainElement(karpv1.UnregisteredNoExecuteTaint))
		})
	}
}
