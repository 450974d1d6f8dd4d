// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const (
	// holdFor is how long an offering stays closed after the last look at a Machine whose deletion hangs, and holdInterval is between two
	// looks.
	holdFor      = 2 * time.Minute
	holdInterval = time.Minute
	// drainInterval is between two looks at a node that is drained, as Karpenter core's.
	drainInterval = time.Second
)

// finalization prepares the Machine of a drained node for its deletion. It wakes Karpenter when a Machine that Karpenter waits for is
// gone. Until then, if the deletion hangs, it keeps the Machine's offering closed: another machine of it would most likely hang like this
// one, after each back-off one more.
type finalization struct{ Config }

func (f *finalization) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim) (time.Duration, error) {
	m, err := f.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	switch {
	case err == nil && m.DeletionTimestamp == nil:
		return f.draining(ctx, nodeClaim, m)
	case err == nil:
		return f.hold(ctx, m), nil
	case !errors.Is(err, machine.ErrNotFound):
		return 0, err
	case !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInstanceTerminating).IsTrue():
		// Karpenter is still draining the node and hasn't deleted the Machine.
		return 0, nil
	}
	return 0, f.gone(ctx, nodeClaim)
}

// draining tells Cluster API not to drain again once the node is drained, in the seconds that Karpenter core lets pass before it deletes
// the Machine (termination.MinDrainTime). It returns when to look again. A drain that takes longer ends with the deletion itself.
func (f *finalization) draining(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (time.Duration, error) {
	began := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrained)
	if began == nil || !began.IsUnknown() || nodeClaim.Status.NodeName == "" ||
		f.Clock.Since(began.LastTransitionTime.Time) >= termination.MinDrainTime {
		return 0, nil
	}
	drained, err := f.drained(ctx, nodeClaim.Status.NodeName)
	switch {
	case err != nil:
		return 0, err
	case !drained:
		return drainInterval, nil
	}
	return 0, f.Machines.Drained(ctx, m)
}

// drained reports whether Karpenter core waits for no pod and no volume of a node that it drains.
func (f *finalization) drained(ctx context.Context, node string) (bool, error) {
	pods, volumes := &corev1.PodList{}, &storagev1.VolumeAttachmentList{}
	for _, list := range []client.ObjectList{pods, volumes} {
		if err := f.Guest.List(ctx, list, client.MatchingFields{"spec.nodeName": node}, client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("reading what is left on Node %s: %w", node, err)
		}
	}
	return len(volumes.Items) == 0 && !slices.ContainsFunc(pods.Items,
		func(pod corev1.Pod) bool { return podutils.IsWaitingEviction(&pod, f.Clock) }), nil
}

// hold closes the offering of a Machine whose deletion hangs, and returns when to look again; 0 if the Machine isn't being deleted.
func (f *finalization) hold(ctx context.Context, m *clusterv1.Machine) time.Duration {
	from, deleting := clusterstatus.HangsFrom(m)
	now := f.Clock.Now()
	switch {
	case !deleting:
		return 0
	case now.Before(from):
		return from.Sub(now)
	}
	key := offeringOf(m)
	if _, closed := f.Unavailable.Entry(key); !closed {
		logger(ctx, key).Info("the deletion of a machine hangs", "Machine", klog.KObj(m), "message", clusterstatus.Holds(m))
	}
	f.Unavailable.Hold(key, DeletionHangsReason, now.Add(holdFor))
	return holdInterval
}

// gone wakes the controller that waits for the Machine: Karpenter's of Nodes as long as the Node is there, then that of NodeClaims. Each
// would look by itself every five seconds.
func (f *finalization) gone(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if name := nodeClaim.Status.NodeName; name != "" {
		node := &corev1.Node{}
		if err := f.get(ctx, name, node); err != nil {
			return fmt.Errorf("reading Node %s: %w", name, err)
		}
		if node.Spec.ProviderID != "" && node.Spec.ProviderID == nodeClaim.Status.ProviderID {
			f.WakeNode(name)
			return nil
		}
	}
	f.WakeNodeClaim(nodeClaim.Name)
	return nil
}
