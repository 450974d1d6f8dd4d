// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/cli/explain"
)

// guest is a cluster whose lists of some kinds fail.
type guest struct {
	client.Reader
	failing map[string]error
	asked   int

	buffers             []autoscalingv1beta1.CapacityBuffer
	askedForDeployments bool
}

// List implements client.Reader.
func (g *guest) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	g.asked++
	switch list.(type) {
	case *karpv1.NodePoolList:
		return g.failing["NodePool"]
	case *storagev1.CSINodeList:
		return g.failing["CSINode"]
	case *corev1.PodList:
		return g.failing["Pod"]
	case *appsv1.DeploymentList:
		g.askedForDeployments = true
	}
	if buffers, ok := list.(*autoscalingv1beta1.CapacityBufferList); ok {
		buffers.Items = g.buffers
	}
	return nil
}

func TestRead(t *testing.T) {
	missing, denied := error(&meta.NoKindMatchError{}), errors.New("denied")
	for name, test := range map[string]struct {
		failing map[string]error
		want    error
		unread  bool
	}{
		"When a cluster has no NodePools, it should say that Karpenter doesn't run": {failing: map[string]error{"NodePool": missing}, want: explain.ErrNoKarpenter},
		"When pods can't be listed, it should fail":                                 {failing: map[string]error{"Pod": denied}, want: denied},
		"When a kind that not every cluster has is missing, it should go on":        {failing: map[string]error{"CSINode": missing}},
		"When such a kind can't be listed, it should go on and remember it":         {failing: map[string]error{"CSINode": denied}, unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			snapshot, err := explain.Read(t.Context(), &guest{failing: test.failing})
			if test.want != nil {
				g.Expect(err).To(MatchError(test.want))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(snapshot.Unread) > 0).To(Equal(test.unread))
		})
	}
}

func TestBuffers(t *testing.T) {
	for name, buffers := range map[string][]autoscalingv1beta1.CapacityBuffer{
		"When a cluster has no CapacityBuffers, it should not read workloads":            nil,
		"When a cluster has CapacityBuffers, it should read the workloads of their pods": {{}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := &guest{buffers: buffers}
			snapshot, err := explain.Read(t.Context(), cluster)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cluster.askedForDeployments).To(Equal(len(buffers) > 0))
			for _, list := range []client.ObjectList{&autoscalingv1beta1.CapacityBufferList{}, &corev1.PodTemplateList{}, &appsv1.StatefulSetList{}} {
				g.Expect(snapshot.List(t.Context(), list)).To(Succeed(), "Karpenter core lists it while the feature gate is on")
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	snapshot, err := explain.SnapshotOf(pod("web", "1", nil), pod("db", "1", on("n")))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("When anything is written, it should fail", func(t *testing.T) {
		g := NewWithT(t)
		written := pod("web", "2", nil)
		for _, err := range []error{
			snapshot.Create(t.Context(), written), snapshot.Update(t.Context(), written), snapshot.Delete(t.Context(), written),
			snapshot.Patch(t.Context(), written, client.MergeFrom(written)), snapshot.DeleteAllOf(t.Context(), written),
			snapshot.Apply(t.Context(), nil),
		} {
			g.Expect(err).To(MatchError(explain.ErrReadOnly))
		}
	})
	t.Run("When what was read is changed, the snapshot should stay as it is", func(t *testing.T) {
		g := NewWithT(t)
		for range 2 {
			read := &corev1.Pod{}
			g.Expect(snapshot.Get(t.Context(), web, read)).To(Succeed())
			g.Expect(read.Labels).To(HaveKeyWithValue("app", "web"))
			read.Labels["app"] = "changed"
		}
	})
	t.Run("When a field is selected, it should find the objects with that value", func(t *testing.T) {
		g := NewWithT(t)
		found := &corev1.PodList{}
		g.Expect(snapshot.List(t.Context(), found, client.MatchingFields{"spec.nodeName": "n"})).To(Succeed())
		g.Expect(found.Items).To(HaveLen(1))
		g.Expect(found.Items[0].Name).To(Equal("db"))
	})
	t.Run("When a field isn't indexed, or a kind isn't read, it should fail and not find nothing", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(snapshot.List(t.Context(), &corev1.PodList{}, client.MatchingFields{"spec.schedulerName": "x"})).
			To(MatchError("the snapshot doesn't index field spec.schedulerName of *v1.Pod"))
		g.Expect(snapshot.List(t.Context(), &corev1.ServiceList{})).To(MatchError("the snapshot doesn't contain objects of kind Service"))
	})
}
