// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

// onNode is a guest client that finds these on every node.
type onNode struct {
	client.Client
	pods    []corev1.Pod
	volumes []storagev1.VolumeAttachment
}

func (o *onNode) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.PodList:
		list.Items = o.pods
		return nil
	case *storagev1.VolumeAttachmentList:
		list.Items = o.volumes
		return nil
	}
	return o.Client.List(ctx, list, opts...)
}

func TestDraining(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	completed := *pod.DeepCopy()
	completed.Status.Phase = corev1.PodSucceeded
	daemon := *pod.DeepCopy()
	daemon.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}

	for name, tc := range map[string]struct {
		left onNode
		// since is how long Karpenter has been draining; negative if it hasn't begun.
		since  time.Duration
		told   bool
		looked bool
	}{
		"When nothing is left on a node that Karpenter drains, it should tell Cluster API not to drain again": {onNode{}, 0, true, false},
		"When only pods are left that Karpenter doesn't wait for, it should tell Cluster API":                 {onNode{pods: []corev1.Pod{completed, daemon}}, 0, true, false},
		"When a pod is left, it should look again":                                                            {onNode{pods: []corev1.Pod{pod}}, 0, false, true},
		"When a volume is attached, it should look again":                                                     {onNode{volumes: make([]storagev1.VolumeAttachment, 1)}, 0, false, true},
		"When Karpenter hasn't begun to drain, it should wait for that":                                       {onNode{}, -time.Second, false, false},
		"When Karpenter is about to delete the Machine, it should leave it to that":                           {onNode{}, time.Minute, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			tc.left.Client = f.config.Guest
			f.config.Guest = &tc.left
			f.nodeClaim.Status.NodeName = "one"
			f.launched()
			f.settled()
			nodeClaim := f.nodeClaim.DeepCopy()
			nodeClaim.DeletionTimestamp = &metav1.Time{Time: f.clock.Now()}
			if tc.since >= 0 {
				nodeClaim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeDrained, "Draining", "Draining")
				f.clock.SetTime(nodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrained).LastTransitionTime.Add(tc.since))
			}
			result, err := nodeclaim.New(f.config).Reconcile(t.Context(), nodeClaim)
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(result.RequeueAfter > 0).To(Equal(tc.looked))
			after := &clusterv1.Machine{}
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.machine), after)).To(Succeed())
			_, told := after.Annotations[clusterv1.ExcludeNodeDrainingAnnotation]
			f.Expect(told).To(Equal(tc.told))
			f.Expect(after.DeletionTimestamp).To(BeNil())
		})
	}
}
