// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestRates(t *testing.T) {
	t.Run("When a guest's objects change without end, its events should be delayed, and no other guest's", func(t *testing.T) {
		g := NewWithT(t)
		clk := clocktesting.NewFakePassiveClock(time.Now())
		r := newRates(clk)
		busy, calm := types.NamespacedName{Name: "busy"}, types.NamespacedName{Name: "calm"}
		for range eventsAtOnce {
			g.Expect(r.delay(busy)).To(BeZero())
		}
		g.Expect(r.exceeded(busy)).To(BeFalse())
		g.Expect(r.delay(busy)).To(Equal(slowed))
		g.Expect(r.exceeded(busy)).To(BeTrue())
		g.Expect(r.delay(calm)).To(BeZero())
		g.Expect(r.exceeded(calm)).To(BeFalse())
		clk.SetTime(clk.Now().Add(time.Minute))
		g.Expect(r.delay(busy)).To(BeZero())
		g.Expect(r.exceeded(busy)).To(BeFalse())
	})
}

func TestShrink(t *testing.T) {
	large := map[string]string{"autonode.io/kept": "yes", "karpenter.sh/nodepool": "general"}
	for i := range 1000 {
		large[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", 1000)
	}
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "a", Labels: large, Annotations: large, Finalizers: []string{"karpenter.sh/termination"}}
	}

	t.Run("When metadata is as large as an API server takes, only ours and Karpenter's should be kept", func(t *testing.T) {
		g := NewWithT(t)
		object := &metav1.PartialObjectMetadata{ObjectMeta: meta()}
		_, err := shrink(object)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(object.Labels).To(Equal(map[string]string{"autonode.io/kept": "yes", "karpenter.sh/nodepool": "general"}))
		g.Expect(object.Annotations).To(HaveLen(2))
		g.Expect(object.Finalizers).To(HaveLen(1))
	})

	t.Run("When a node has all that a node can have, what is counted should be kept", func(t *testing.T) {
		g := NewWithT(t)
		node := &corev1.Node{ObjectMeta: meta()}
		node.Status.NodeInfo.KubeletVersion = strings.Repeat("v", 1<<20)
		_, err := shrink(node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Labels).To(Equal(map[string]string{"karpenter.sh/nodepool": "general"}))
		g.Expect(node.Size()).To(BeNumerically("<", 1024))
	})

	t.Run("When a NodePool is large, its budgets, replicas and limit of nodes should be kept", func(t *testing.T) {
		g := NewWithT(t)
		pool := &karpv1.NodePool{ObjectMeta: meta()}
		pool.Spec.Disruption.Budgets = make([]karpv1.Budget, 1000)
		pool.Spec.Template.Annotations = large
		pool.Spec.Replicas = ptr.To(int64(3))
		pool.Spec.Limits = karpv1.Limits{"cpu": resource.MustParse("8"), "nodes": resource.MustParse("3" + strings.Repeat("1", 1<<10))}
		_, err := shrink(pool)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pool.Spec.Disruption.Budgets).To(HaveLen(50))
		g.Expect(pool.Spec.Template).To(BeZero())
		g.Expect(pool.Spec.Replicas).To(HaveValue(Equal(int64(3))))
		g.Expect(pool.Spec.Limits).To(HaveLen(1))
		nodes := pool.Spec.Limits["nodes"]
		g.Expect(len(nodes.String())).To(BeNumerically("<", 32))
	})

	t.Run("When an admin patches a node class's status in a loop, nothing should be reconciled for it", func(t *testing.T) {
		g := NewWithT(t)
		before := &v1alpha1.ClusterAPINodeClass{}
		after := before.DeepCopy()
		after.Status.Conditions = []status.Condition{{Type: "Spam", Message: "1"}}
		g.Expect(nodeClassDiffers(before, after)).To(BeFalse())
		after.Status.Version = "1.36.3"
		g.Expect(nodeClassDiffers(before, after)).To(BeTrue())
	})
}
