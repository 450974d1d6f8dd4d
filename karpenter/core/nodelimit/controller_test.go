// SPDX-License-Identifier: Apache-2.0

package nodelimit_test

import (
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
	"github.com/autonode-io/autonode/karpenter/core/nodelimit"
)

func TestReconcile(t *testing.T) {
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
		nodePool *karpv1.NodePool
		claims   []client.Object
		want     string
	}{
		"a drifted node has no room for a replacement": {
			static(ptr.To(int64(2)), nodes("2")), []client.Object{claim("a", "fixed", true), claim("b", "fixed", false)},
			"1 node has drifted and stays: Karpenter launches a replacement first, and spec.limits.nodes 2 of NodePool fixed leaves no room for one beside spec.replicas 2; set it to 3 or more, or remove it",
		},
		"all nodes have drifted, and fewer than the replicas are allowed": {
			static(ptr.To(int64(5)), nodes("2")), []client.Object{claim("a", "fixed", true), claim("b", "fixed", true)},
			"2 nodes have drifted and stay: Karpenter launches a replacement first, and spec.limits.nodes 2 of NodePool fixed leaves no room for one beside spec.replicas 5; set it to 6 or more, or remove it",
		},
		"fewer nodes than replicas are allowed": {
			static(ptr.To(int64(3)), nodes("2")), nil,
			"Karpenter launches 2 of 3 replicas: spec.limits.nodes allows no more; set it to 4 or more, of which one is for replacements, or remove it",
		},
		"no node has drifted":             {nodePool: static(ptr.To(int64(2)), nodes("2")), claims: []client.Object{claim("a", "fixed", false), claim("b", "other", true)}},
		"there is room for a replacement": {nodePool: static(ptr.To(int64(2)), nodes("3")), claims: []client.Object{claim("a", "fixed", true)}},
		"the limit is of something else":  {nodePool: static(ptr.To(int64(2)), karpv1.Limits{corev1.ResourceCPU: resource.MustParse("1")}), claims: []client.Object{claim("a", "fixed", true)}},
		"the NodePool isn't static":       {nodePool: static(nil, nodes("1")), claims: []client.Object{claim("a", "fixed", true)}},
	} {
		t.Run("When "+name+", it should say so, and nothing otherwise", func(t *testing.T) {
			g := NewWithT(t)
			recorder := &environment.Recorder{}
			guest := fake.NewClientBuilder().WithObjects(tc.nodePool).WithObjects(tc.claims...).Build()
			controller := nodelimit.New(nodelimit.Config{Guest: guest, Recorder: recorder})
			result, err := controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tc.nodePool)})
			g.Expect(err).NotTo(HaveOccurred())
			if tc.want == "" {
				g.Expect(recorder.Reasons()).To(BeEmpty())
				g.Expect(result).To(BeZero())
				return
			}
			g.Expect(recorder.Reasons()).To(Equal([]string{nodelimit.NodeLimitReachedReason}))
			g.Expect(recorder.Messages()).To(Equal([]string{tc.want}))
			g.Expect(result.RequeueAfter).NotTo(BeZero(), "the event is to be repeated while its cause lasts")
		})
	}
	t.Run("When the NodePool is gone, it should do nothing", func(t *testing.T) {
		g := NewWithT(t)
		controller := nodelimit.New(nodelimit.Config{Guest: fake.NewClientBuilder().Build(), Recorder: &environment.Recorder{}})
		g.Expect(controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "fixed"}})).To(BeZero())
	})
}
