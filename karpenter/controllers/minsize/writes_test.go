// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/minsize"
)

func TestWrites(t *testing.T) {
	t.Run("When a person changes a node at the same time, it should look again instead of taking over what they did", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.node("a")
		f.controller = minsize.New(f.config(&environment.Conflicting{Client: f.guest}))
		f.Expect(f.pass().RequeueAfter).To(BeNumerically(">", 0))
		f.Expect(f.held()).To(BeEmpty())
		f.Expect(f.pass().RequeueAfter).To(BeZero())
		f.Expect(f.held()).To(Equal("a"))
	})
	t.Run("When the cache hasn't seen yet that a node was released, it should release no other one for it", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.nodes("a", "b")
		late := &lagging{Client: f.guest}
		f.controller = minsize.New(f.config(late))
		f.Expect(f.settle()).To(Equal("a"))
		f.drifted("a", true)
		f.pass()
		f.Expect(f.held()).To(Equal("a b"))
		late.stop(t)
		f.pass()
		f.Expect(f.held()).To(Equal("b"))
		f.drifted("a", false)
		f.Expect(f.settle()).To(Equal("b"))
		late.nodes = nil
		f.Expect(f.settle()).To(Equal("a"))
	})
	t.Run("When a write fails, it should say so and release nothing", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.node("a")
		f.Expect(f.settle()).To(Equal("a"))
		f.node("b")
		f.drifted("a", true)
		f.guest.FailAt = f.guest.Writes() + 1
		_, err := f.controller.Reconcile(t.Context(), reconcile.Request{})
		f.Expect(err).To(MatchError(And(ContainSubstring("keeping Node "+f.key("b").Name), ContainSubstring(f.source()))))
		f.Expect(f.held()).To(Equal("a"))
		f.Expect(f.settle()).To(Equal("b"))
	})
}

// lagging is a client that shows Nodes as they were.
type lagging struct {
	client.Client
	// nodes that it shows; nil for those that there are.
	nodes *corev1.NodeList
}

// stop makes it show the Nodes as they are now.
func (l *lagging) stop(t *testing.T) {
	t.Helper()
	nodes := &corev1.NodeList{}
	NewWithT(t).Expect(l.Client.List(t.Context(), nodes)).To(Succeed())
	l.nodes = nodes
}

func (l *lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if node, ok := object.(*corev1.Node); ok && l.nodes != nil {
		for i := range l.nodes.Items {
			if l.nodes.Items[i].Name == key.Name {
				l.nodes.Items[i].DeepCopyInto(node)
				return nil
			}
		}
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	return l.Client.Get(ctx, key, object, opts...)
}
