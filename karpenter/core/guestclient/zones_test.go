// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestZones(t *testing.T) {
	for name, tc := range map[string]struct{ has, writes, want string }{
		"When a cloud controller has reported the zone, registration should keep it":       {"eu-1a", "default", "eu-1a"},
		"When nothing has reported the zone, registration should write that it is unknown": {"", "default", "default"},
		"When the zone was chosen for the machine, registration should write it":           {"", "a", "a"},
		"When the zone that was chosen isn't what the node has, registration should win":   {"b", "a", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Labels: map[string]string{"team": "web"}}}
			if tc.has != "" {
				stored.Labels[corev1.LabelTopologyZone] = tc.has
			}
			guest := ruled(fake.NewClientBuilder().WithObjects(stored).Build(), func(c *guestclient.Config) { c.UnknownZone = "default" })
			// As Karpenter core registers a node.
			node := &corev1.Node{}
			g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "one"}, node)).To(Succeed())
			before := node.DeepCopy()
			node.Labels[corev1.LabelTopologyZone] = tc.writes
			node.Labels["karpenter.sh/registered"] = "true"
			g.Expect(guest.Patch(t.Context(), node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
			after := &corev1.Node{}
			g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "one"}, after)).To(Succeed())
			g.Expect(after.Labels).To(Equal(map[string]string{"team": "web", "karpenter.sh/registered": "true", corev1.LabelTopologyZone: tc.want}))
		})
	}
	t.Run("When a node that was known as of no zone is patched later on, its own zone should stay", func(t *testing.T) {
		g := NewWithT(t)
		stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Labels: map[string]string{corev1.LabelTopologyZone: "eu-1a"}}}
		guest := ruled(fake.NewClientBuilder().WithObjects(stored).Build(), func(c *guestclient.Config) { c.UnknownZone = "default" })
		stale := stored.DeepCopy()
		stale.ResourceVersion = "1"
		stale.Labels[corev1.LabelTopologyZone] = "default"
		before := stale.DeepCopy()
		stale.Spec.Unschedulable = true
		err := guest.Patch(t.Context(), stale, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		g.Expect(client.IgnoreNotFound(err)).To(HaveOccurred(), "a patch of what isn't any more")
	})
}
