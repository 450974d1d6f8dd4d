// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

func resources(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestShortfall(t *testing.T) {
	planned := resources("cpu", "4", "memory", "7577Mi", "pods", "110", "ephemeral-storage", "90Gi")
	for name, tc := range map[string]struct {
		has  corev1.ResourceList
		age  time.Duration
		want []string
	}{
		"a node can allocate less than planned": {
			has:  resources("cpu", "3900m", "memory", "7100Mi", "pods", "58", "ephemeral-storage", "90Gi"),
			want: []string{"cpu 3900m instead of 4", "memory 7100Mi instead of 7577Mi", "pods 58 instead of 110", "on-demand c4-large"},
		},
		"a node can allocate as much": {has: planned},
		"it differs by less than a MiB": {
			has: resources("cpu", "4", "memory", "7758348Ki", "pods", "110", "ephemeral-storage", "90Gi"), // 7577Mi are 7758848Ki
		},
		"a resource isn't reported yet": {has: resources("cpu", "4", "memory", "8Gi", "pods", "110")},
		"it was initialized long ago":   {has: resources("cpu", "1"), age: time.Hour},
	} {
		t.Run("When "+name+", it should report just that", func(t *testing.T) {
			f := newFixture(t)
			f.launched()
			f.say(provisioned("cloud://" + f.Namespace))
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
			f.Expect(f.Admin.Create(t.Context(), node)).To(Succeed())
			t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), node) })
			node.Status.Allocatable = tc.has
			f.Expect(f.Admin.Status().Update(t.Context(), node)).To(Succeed())
			f.Settle(f.Guest, node)
			nodeClaim := f.stored()
			nodeClaim.Status.NodeName, nodeClaim.Status.Allocatable = node.Name, planned
			f.update(nodeClaim, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
			f.clock.Step(tc.age)
			f.reconcile()
			if tc.want == nil {
				f.Expect(f.recorder.Reasons()).NotTo(ContainElement(nodeclaim.AllocatableShortfallReason))
				return
			}
			f.Expect(f.recorder.Reasons()).To(ConsistOf(nodeclaim.AllocatableShortfallReason))
			for _, part := range tc.want {
				f.Expect(f.recorder.Messages()[0]).To(ContainSubstring(part))
			}
		})
	}
}
