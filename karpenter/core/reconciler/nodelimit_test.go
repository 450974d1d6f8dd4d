// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
)

func TestNodeLimit(t *testing.T) {
	static := func(replicas *int64, limits karpv1.Limits) *karpv1.NodePool {
		return &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "fixed", UID: "fixed"}, Spec: karpv1.NodePoolSpec{Replicas: replicas, Limits: limits}}
	}
	nodes := func(limit string) karpv1.Limits {
		return karpv1.Limits{"nodes": resource.MustParse(limit)}
	}
	claim := func(name, nodePool string, drifted bool) *karpv1.NodeClaim {
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: nodePool}}}
		if drifted {
			nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		}
		return nodeClaim
	}
	for name, tc := range map[string]struct {
		nodePool       *karpv1.NodePool
		claims         []client.Object
		terminateFirst bool
		want           string
	}{
		"a drifted node has no room for a replacement": {
			nodePool: static(ptr.To(int64(2)), nodes("2")), claims: []client.Object{claim("a", "fixed", true), claim("b", "fixed", false)},
			want: "Drifted nodes stay: Karpenter launches a replacement first, and spec.limits.nodes 2 of NodePool fixed leaves no room for one beside spec.replicas 2; set it to 3 or more, or remove it",
		},
		"fewer nodes than replicas are allowed": {
			nodePool: static(ptr.To(int64(3)), nodes("2")),
			want:     "Karpenter launches 2 of 3 replicas: spec.limits.nodes allows no more; set it to 4 or more, of which one is for replacements, or remove it",
		},
		"Karpenter terminates drifted nodes first": {nodePool: static(ptr.To(int64(2)), nodes("2")), claims: []client.Object{claim("a", "fixed", true)}, terminateFirst: true},
		"no node has drifted":                      {nodePool: static(ptr.To(int64(2)), nodes("2")), claims: []client.Object{claim("a", "fixed", false), claim("b", "other", true)}},
		"there is room for a replacement":          {nodePool: static(ptr.To(int64(2)), nodes("3")), claims: []client.Object{claim("a", "fixed", true)}},
		"the limit is of something else":           {nodePool: static(ptr.To(int64(2)), karpv1.Limits{corev1.ResourceCPU: resource.MustParse("1")}), claims: []client.Object{claim("a", "fixed", true)}},
		"the NodePool isn't static":                {nodePool: static(nil, nodes("1")), claims: []client.Object{claim("a", "fixed", true)}},
		"the NodePool is gone":                     {nodePool: &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "another"}}},
	} {
		t.Run("When "+name+", it should say so, nothing otherwise, and go on", func(t *testing.T) {
			g := NewWithT(t)
			recorder := &environment.Recorder{}
			guest := fake.NewClientBuilder().WithObjects(tc.nodePool).WithObjects(tc.claims...).Build()
			passes := 0
			pass := NodeLimit(guest, recorder, !tc.terminateFirst)(Registered{Inner: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				passes++
				return reconcile.Result{}, nil
			})})
			_, err := pass.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "fixed"}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(passes).To(Equal(1))
			if tc.want == "" {
				g.Expect(recorder.Reasons()).To(BeEmpty())
				return
			}
			g.Expect(recorder.Reasons()).To(Equal([]string{NodeLimitReachedReason}))
			g.Expect(recorder.Messages()).To(Equal([]string{tc.want}))
		})
	}
}
