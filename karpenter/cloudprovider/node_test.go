// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/karpenter/cloudprovider"
)

// joined makes the Node of a NodeClaim's machine, and waits until the cache has it.
func (f *fixture) joined(nodeClaim *karpv1.NodeClaim, change func(*corev1.Node)) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.MachineName(nodeClaim.Name), Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}},
	}
	if change != nil {
		change(node)
	}
	f.Expect(f.Admin.Create(f.ctx, node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(f.ctx), node) })
	f.Eventually(func() error { return f.Guest.GetClient().Get(f.ctx, client.ObjectKeyFromObject(node), &corev1.Node{}) }).Should(Succeed())
	return node
}

// deleted deletes a NodeClaim's machine as Karpenter does, until it is gone.
func (f *fixture) deleted(nodeClaim *karpv1.NodeClaim) {
	f.t.Helper()
	f.Eventually(func() error { return f.provider.Delete(f.ctx, nodeClaim) }).Should(Satisfy(karpcloudprovider.IsNodeClaimNotFoundError))
}

// keeping is a guest whose Nodes can't be deleted.
type keeping struct{ client.Client }

func (k keeping) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if _, node := object.(*corev1.Node); node {
		return errors.New("the guest doesn't answer")
	}
	return k.Client.Delete(ctx, object, opts...)
}

// kubernetes-sigs/cluster-api#7237
func TestDeleteNode(t *testing.T) {
	f := newFixture(t)
	launch := func(name string) *karpv1.NodeClaim {
		nodeClaim, created := f.launch(name, nil)
		nodeClaim.Status.ProviderID = created.Status.ProviderID
		return nodeClaim
	}
	get := func(node *corev1.Node) error {
		return f.Admin.Get(f.ctx, client.ObjectKeyFromObject(node), &corev1.Node{})
	}

	for name, providerID := range map[string]string{
		"When a machine had joined before it had a provider ID, its Node should go with it":            "cloud://unknown",
		"When the Node has no provider ID either, as without a cloud controller manager, it should go": "",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			nodeClaim := launch("left" + map[bool]string{true: "-bare"}[providerID == ""])
			node := f.joined(nodeClaim, func(node *corev1.Node) { node.Spec.ProviderID = providerID })
			g.Expect(f.provider.Delete(f.ctx, nodeClaim)).To(Succeed())
			f.deleted(nodeClaim)
			g.Expect(get(node)).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
		})
	}
	t.Run("When the machine is still there, its Node should stay", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := launch("held")
		f.hold(nodeClaim)
		node := f.joined(nodeClaim, nil)
		g.Expect(f.provider.Delete(f.ctx, nodeClaim)).To(Succeed())
		g.Expect(f.provider.Delete(f.ctx, nodeClaim)).To(Succeed())
		g.Expect(get(node)).To(Succeed())
	})
	t.Run("When the Node can't be deleted, it should not say that all is gone", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := launch("refused")
		node := f.joined(nodeClaim, nil)
		config := f.provider.Config
		config.Guest = keeping{config.Guest}
		refused := cloudprovider.New(config)
		g.Eventually(func() error { return refused.Delete(f.ctx, nodeClaim) }).Should(And(
			MatchError(ContainSubstring("the guest doesn't answer")), Not(Satisfy(karpcloudprovider.IsNodeClaimNotFoundError))))
		f.deleted(nodeClaim)
		g.Expect(get(node)).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
	})

	for name, change := range map[string]func(other *clusterv1.Machine, node *corev1.Node){
		"When Karpenter has registered the Node, it should be left to Karpenter": func(_ *clusterv1.Machine, node *corev1.Node) {
			node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
		},
		"When another machine has registered under the name, its Node should stay": func(other *clusterv1.Machine, node *corev1.Node) {
			node.Spec.ProviderID = other.Spec.ProviderID
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			other := launch("other-" + t.Name()[len(t.Name())-4:])
			m := f.machine(other.Name)
			provided := m.DeepCopy()
			provided.Spec.ProviderID = "cloud://" + other.Name
			g.Expect(f.Admin.Patch(f.ctx, provided, client.MergeFrom(m))).To(Succeed())
			g.Eventually(func() error { _, err := f.provider.Get(f.ctx, provided.Spec.ProviderID); return err }).Should(Succeed())
			nodeClaim := launch("kept-" + t.Name()[len(t.Name())-4:])
			node := f.joined(nodeClaim, func(node *corev1.Node) { change(provided, node) })
			f.deleted(nodeClaim)
			g.Expect(get(node)).To(Succeed())
		})
	}
	t.Run("When the Node is older than the NodeClaim, it should stay", func(t *testing.T) {
		g := NewWithT(t)
		nodeClaim := launch("younger")
		node := f.joined(nodeClaim, nil)
		nodeClaim.CreationTimestamp = metav1.NewTime(node.CreationTimestamp.Add(1e9))
		f.deleted(nodeClaim)
		g.Expect(get(node)).To(Succeed())
	})
}
