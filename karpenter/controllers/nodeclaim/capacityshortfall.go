// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const (
	// news is the age of a node's initialization up to which a shortfall is reported. An older one was reported then.
	news = 10 * time.Minute
	// negligible bytes of memory or storage.
	negligible = 1 << 20
)

// capacityShortfall reports a node that can allocate less than Karpenter planned with. Package inventory lowers the planned capacity
// from then on.
type capacityShortfall struct{ Config }

func (s *capacityShortfall) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	initialized := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized)
	if !initialized.IsTrue() || s.Clock.Since(initialized.LastTransitionTime.Time) > news {
		return outcome{}, nil
	}
	node := &corev1.Node{}
	if err := s.get(ctx, nodeClaim.Status.NodeName, node); err != nil {
		return outcome{}, fmt.Errorf("reading node %s: %w", nodeClaim.Status.NodeName, err)
	}
	if less := lessThan(node.Status.Allocatable, nodeClaim.Status.Allocatable); len(less) > 0 {
		event := warning(nodeClaim, AllocatableShortfallReason,
			"node %s of %s can allocate less than Karpenter planned with: %s; it plans the next nodes of %s with what such nodes report",
			node.Name, offeringOf(m).Description(), strings.Join(less, ", "), m.Annotations[v1alpha1.TemplateSourceAnnotation])
		event.DedupeTimeout = 2 * news
		s.Recorder.Publish(event)
	}
	return outcome{}, nil
}

// lessThan lists the resources of which a node has less than planned. A resource that the node hasn't reported yet is left out.
func lessThan(has, planned corev1.ResourceList) (less []string) {
	for _, name := range []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods,
	} {
		want, ok := planned[name]
		got := has[name]
		if !ok || got.IsZero() {
			continue
		}
		if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			if want.Value()-got.Value() >= negligible {
				less = append(less, fmt.Sprintf("%s %s instead of %s", name, mebibytes(got), mebibytes(want)))
			}
			continue
		}
		if got.Cmp(want) < 0 {
			less = append(less, fmt.Sprintf("%s %s instead of %s", name, got.String(), want.String()))
		}
	}
	return less
}

func mebibytes(q resource.Quantity) string { return fmt.Sprintf("%dMi", q.Value()>>20) }
