// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

var notReady = corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}

// joined is a Node that has just joined, and a guest client whose cache still has it as it was then.
type joined struct {
	*environment.Environment
	g     *WithT
	node  *corev1.Node
	guest client.Client
	// sent are the patches that the API server got.
	sent []types.PatchType
}

func join(t *testing.T) *joined {
	t.Helper()
	f := &joined{Environment: environment.New(t), g: NewWithT(t)}
	f.node = f.create(t.Context())
	t.Cleanup(func() { f.delete(context.WithoutCancel(t.Context())) })
	f.guest = ruled(stale{f.Admin, f, f.node.DeepCopy()}, func(*guestclient.Config) {})
	return f
}

// stale reads a Node as it was, and takes down what it sends.
type stale struct {
	client.Client
	f      *joined
	cached *corev1.Node
}

// Get implements client.Client.
func (s stale) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	s.cached.DeepCopyInto(object.(*corev1.Node))
	return nil
}

// Patch implements client.Client.
func (s stale) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	s.f.sent = append(s.f.sent, patch.Type())
	return s.Client.Patch(ctx, object, patch, opts...)
}

func (f *joined) create(ctx context.Context) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: f.Namespace, Labels: map[string]string{corev1.LabelTopologyZone: "eu-1a"},
			// The kubelet creates a Node with this one.
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint, notReady}},
	}
	f.g.Expect(f.Admin.Create(ctx, node)).To(Succeed())
	return node
}

func (f *joined) delete(ctx context.Context) {
	_ = f.Admin.Patch(ctx, f.node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	_ = f.Admin.Delete(ctx, f.node)
}

// register changes what Karpenter core changes when it registers a Node.
func (f *joined) register(ctx context.Context) (*corev1.Node, error) {
	node := f.node.DeepCopy()
	node.Finalizers = append(node.Finalizers, karpv1.TerminationFinalizer)
	node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "general-1", UID: "one"}}
	node.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey] = "false"
	node.Labels[corev1.LabelTopologyZone], node.Labels[karpv1.NodeRegisteredLabelKey] = "eu-1b", "true"
	node.Spec.Taints = node.Spec.Taints[1:]
	return node, f.guest.Patch(ctx, node, client.MergeFromWithOptions(f.node, client.MergeFromWithOptimisticLock{}))
}

func TestNodeLock(t *testing.T) {
	for name, write := range map[string]func(f *joined, node *corev1.Node) error{
		"nothing": func(*joined, *corev1.Node) error { return nil },
		"an annotation and labels": func(f *joined, node *corev1.Node) error {
			node.Annotations["node.alpha.kubernetes.io/ttl"], node.Labels["example.com/rack"] = "0", "7"
			return f.Admin.Update(t.Context(), node)
		},
		"its conditions": func(f *joined, node *corev1.Node) error {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			return f.Admin.Status().Update(t.Context(), node)
		},
	} {
		t.Run("When other clients have written "+name+" of a joining Node, Karpenter should register it with one request", func(t *testing.T) {
			f := join(t)
			written := f.node.DeepCopy()
			f.g.Expect(write(f, written)).To(Succeed())
			node, err := f.register(t.Context())
			f.g.Expect(err).NotTo(HaveOccurred())
			f.g.Expect(f.sent).To(HaveLen(1))
			f.g.Expect(node.Spec.Taints).NotTo(ContainElement(karpv1.UnregisteredNoExecuteTaint))
			f.g.Expect(node.Finalizers).To(ConsistOf(karpv1.TerminationFinalizer))
			f.g.Expect(node.OwnerReferences).To(HaveLen(1))
			f.g.Expect(node.Labels).To(HaveKeyWithValue(karpv1.NodeRegisteredLabelKey, "true"))
			for key, value := range written.Labels {
				if key != corev1.LabelTopologyZone {
					f.g.Expect(node.Labels).To(HaveKeyWithValue(key, value))
				}
			}
			f.g.Expect(node.Status.Conditions).To(HaveLen(len(written.Status.Conditions)))
		})
	}

	for name, write := range map[string]func(f *joined, node *corev1.Node) error{
		"its taints": func(f *joined, node *corev1.Node) error {
			node.Spec.Taints = node.Spec.Taints[:1]
			return f.Admin.Update(t.Context(), node)
		},
		"its finalizers": func(f *joined, node *corev1.Node) error {
			node.Finalizers = []string{"example.com/audited"}
			return f.Admin.Update(t.Context(), node)
		},
		"its owners": func(f *joined, node *corev1.Node) error {
			node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "one", UID: "two"}}
			return f.Admin.Update(t.Context(), node)
		},
		"a label that Karpenter sets": func(f *joined, node *corev1.Node) error {
			node.Labels[corev1.LabelTopologyZone] = "eu-1c"
			return f.Admin.Update(t.Context(), node)
		},
		"another Node of its name": func(f *joined, node *corev1.Node) error {
			f.delete(t.Context())
			*node = *f.create(t.Context())
			return nil
		},
	} {
		t.Run("When another client has written "+name+", Karpenter should have a conflict and change nothing", func(t *testing.T) {
			f := join(t)
			written := f.node.DeepCopy()
			f.g.Expect(write(f, written)).To(Succeed())
			_, err := f.register(t.Context())
			f.g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
			node := &corev1.Node{}
			f.g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.node), node)).To(Succeed())
			f.g.Expect(node.ResourceVersion).To(Equal(written.ResourceVersion))
		})
	}

	t.Run("When the API server denies what Karpenter writes, Karpenter should learn why", func(t *testing.T) {
		f := join(t)
		node := f.node.DeepCopy()
		node.Labels["example.com/rack"] = "not a label's value"
		err := f.guest.Patch(t.Context(), node, client.MergeFromWithOptions(f.node, client.MergeFromWithOptimisticLock{}))
		f.g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		f.g.Expect(err).To(MatchError(ContainSubstring("a valid label must be")))
	})

	t.Run("When Karpenter takes a label away, and has a lock or none, it should be gone", func(t *testing.T) {
		f := join(t)
		for _, from := range []client.Patch{client.MergeFrom(f.node), client.MergeFromWithOptions(f.node, client.MergeFromWithOptimisticLock{})} {
			node := f.node.DeepCopy()
			delete(node.Labels, corev1.LabelTopologyZone)
			f.g.Expect(f.guest.Patch(t.Context(), node, from, client.DryRunAll)).To(Succeed())
			f.g.Expect(node.Labels).NotTo(HaveKey(corev1.LabelTopologyZone))
		}
		f.g.Expect(f.sent).To(Equal([]types.PatchType{types.MergePatchType, types.JSONPatchType}))
	})
}
