// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestWritten(t *testing.T) {
	for _, object := range []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}} {
		t.Run(fmt.Sprintf("When a %T or its status is patched, its new version should be noted, and none after a failure", object), func(t *testing.T) {
			g := NewWithT(t)
			object.SetName("one")
			object.SetUID("one")
			var versions []string
			guest := ruled(fake.NewClientBuilder().WithObjects(object).WithStatusSubresource(object).Build(), func(c *guestclient.Config) {
				c.Written = func(written client.Object) { versions = append(versions, written.GetResourceVersion()) }
			})
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"team":"web"}}}`))
			g.Expect(guest.Patch(t.Context(), object, patch)).To(Succeed())
			first := object.GetResourceVersion()
			g.Expect(guest.Status().Patch(t.Context(), object, patch)).To(Succeed())
			g.Expect(versions).To(Equal([]string{first, object.GetResourceVersion()}))
			stale := object.DeepCopyObject().(client.Object)
			stale.SetResourceVersion("1")
			before := stale.DeepCopyObject().(client.Object)
			stale.SetLabels(nil)
			g.Expect(guest.Patch(t.Context(), stale, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).NotTo(Succeed())
			g.Expect(versions).To(HaveLen(2))
		})
	}
}
