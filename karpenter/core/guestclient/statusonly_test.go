// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestStatusOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		object client.Object
		change func(client.Object)
		patch  func(before client.Object) client.Patch
		sent   int
	}{
		"When only the status of a NodeClaim has changed, its patch should not be sent": {
			object: &karpv1.NodeClaim{}, change: func(o client.Object) { o.(*karpv1.NodeClaim).Status.NodeName = "one" },
		},
		"When nothing has changed, its patch should not be sent": {object: &karpv1.NodeClaim{}, change: func(client.Object) {}},
		"When its labels have changed, too, its patch should be sent": {
			object: &karpv1.NodeClaim{}, sent: 1, change: func(o client.Object) {
				o.(*karpv1.NodeClaim).Status.NodeName = "one"
				o.SetLabels(map[string]string{"storage": "8131"})
			},
		},
		"When the patch of a NodeClaim has a lock, it should be sent: the API server rejects it if another client has changed the NodeClaim": {
			object: &karpv1.NodeClaim{}, sent: 1, change: func(o client.Object) { o.(*karpv1.NodeClaim).Status.NodeName = "one" },
			patch: func(before client.Object) client.Patch {
				return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
			},
		},
		"When only the status of another object has changed, its patch should be sent": {
			object: &corev1.Node{}, sent: 1, change: func(o client.Object) { o.(*corev1.Node).Status.Phase = corev1.NodeRunning },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, sent := NewWithT(t), 0
			tc.object.SetName("one")
			guest := ruled(interceptor.NewClient(fake.NewClientBuilder().WithObjects(tc.object).WithStatusSubresource(tc.object).Build(), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					sent++
					return c.Patch(ctx, object, patch, opts...)
				},
			}), func(*guestclient.Config) {})
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(tc.object), tc.object)).To(Succeed())
			before := tc.object.DeepCopyObject().(client.Object)
			tc.change(tc.object)
			patch := client.MergeFrom(before)
			if tc.patch != nil {
				patch = tc.patch(before)
			}
			g.Expect(guest.Patch(t.Context(), tc.object, patch)).To(Succeed())
			g.Expect(sent).To(Equal(tc.sent))
		})
	}

	t.Run("When the status is patched itself, it should be written", func(t *testing.T) {
		g := NewWithT(t)
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		guest := ruled(fake.NewClientBuilder().WithObjects(claim).WithStatusSubresource(claim).Build(), func(*guestclient.Config) {})
		before := claim.DeepCopy()
		claim.Status.NodeName = "one"
		g.Expect(guest.Status().Patch(t.Context(), claim, client.MergeFrom(before))).To(Succeed())
		after := &karpv1.NodeClaim{}
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(claim), after)).To(Succeed())
		g.Expect(after.Status.NodeName).To(Equal("one"))
	})
}
