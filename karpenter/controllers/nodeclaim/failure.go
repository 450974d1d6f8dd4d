// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// failure deletes a NodeClaim whose infrastructure has no capacity or has failed, and makes its offering unavailable
// for a while.
type failure struct{ Config }

func (f *failure) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		// Its node has joined: Karpenter's node repair and MachineHealthChecks handle it from here.
		return outcome{}, nil
	}
	nodeClass, err := f.nodeClass(ctx, nodeClaim)
	if err != nil {
		return outcome{}, err
	}
	found, ok := interpret(f.inputs(ctx, nodeClass, m), infrastructure.NoQuota, infrastructure.NoCapacity, infrastructure.Misconfigured,
		infrastructure.Terminated, infrastructure.Failed)
	if !ok {
		return outcome{}, nil
	}
	key := offeringOf(m)
	var until time.Time
	var quota offering.ClosedQuota
	reason, disrupted := MachineFailedReason, "machine_failed"
	// Mark it first: the replacement must not get the same offering.
	switch found.means {
	case infrastructure.NoQuota:
		reason, disrupted = QuotaExceededReason, "insufficient_capacity"
		quota = f.exceeded(nodeClaim, m, found.condition)
		until = quota.Until
	case infrastructure.NoCapacity:
		reason, disrupted = InsufficientCapacityReason, "insufficient_capacity"
		until = f.Unavailable.MarkExhausted(key, reason)
	case infrastructure.Misconfigured:
		reason = MisconfiguredReason
		until = f.Unavailable.Mark(key, reason)
	}
	if gone, err := f.giveUp(ctx, nodeClaim, disrupted); err != nil || !gone {
		return outcome{done: true}, err
	}
	message, notice := "no capacity for %s: %s%s", ""
	switch {
	case quota.Name != "":
		notice = "; " + quota.Description()
	case reason == MachineFailedReason:
		until = f.Unavailable.CountFailure(key, reason)
		message = "Machine failed (%s): %s; launching a replacement%s"
	case reason == MisconfiguredReason:
		message = "the infrastructure rejects the configuration of %s: %s; correct its template or patches%s"
	}
	f.Unavailable.Explain(key, detail(found.condition))
	logger(ctx, key).Info("machine failed", "means", found.means, "reason", found.condition.Reason, "message", found.condition.Message,
		"quota", quota.Name, "unavailableUntil", until)
	f.Recorder.Publish(warning(nodeClaim, reason, message, key.Description(), detail(found.condition),
		cmp.Or(notice, offering.RetryNotice(until))))
	return outcome{done: true}, nil
}

// exceeded closes the quota that a machine has exceeded according to a condition.
func (f *failure) exceeded(nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, condition metav1.Condition) offering.ClosedQuota {
	origin, family := inventory.OriginOf(m), nodeClaim.Labels[v1alpha1.InstanceFamilyLabel]
	class := ""
	if nodeClaim.Spec.NodeClassRef != nil {
		class = nodeClaim.Spec.NodeClassRef.Name
	}
	quota, remaining := f.InstanceTypes.Exceeded(class, origin.Source, family, f.Profiles.For(m.Spec.InfrastructureRef.GroupKind()),
		origin.Key, annotation.MachineOf(m).Machine, detail(condition))
	return f.Unavailable.MarkExceeded(origin.Key, quota, remaining, QuotaExceededReason)
}

// inputs returns the conditions that report a machine's state: the infrastructure machine's conditions, which are more precise, before
// those in which the Machine repeats them.
func (c Config) inputs(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, m *clusterv1.Machine) inputs {
	in := inputs{
		reasons: nodeClass.Spec.FailureReasons, kind: c.Profiles.For(m.Spec.InfrastructureRef.GroupKind()), exists: c.provisioned(ctx, m),
		infrastructure: conditionsOfMachine(m), others: otherConditions(m),
	}
	if c.Infrastructure == nil {
		return in
	}
	object, err := c.Infrastructure.Get(ctx, m.Spec.InfrastructureRef.GroupKind(), m.Spec.InfrastructureRef.Name)
	if err != nil {
		// Fall back to the Machine's own conditions.
		if !apierrors.IsNotFound(err) {
			log.FromContext(ctx).V(1).Info("can't read infrastructure machine", "error", err.Error())
		}
		return in
	}
	if object.GetLabels()[v1alpha1.NodeClaimUIDLabel] != m.Labels[v1alpha1.NodeClaimUIDLabel] {
		return in
	}
	in.machine = object
	in.infrastructure = append(conditionsOfInfrastructure(object), in.infrastructure...)
	return in
}

// nodeClass returns a NodeClaim's node class, shared with the cache; an empty one if it is gone.
func (c Config) nodeClass(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1alpha1.ClusterAPINodeClass, error) {
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	if nodeClaim.Spec.NodeClassRef == nil {
		return nodeClass, nil
	}
	if err := c.get(ctx, nodeClaim.Spec.NodeClassRef.Name, nodeClass); err != nil {
		return nil, fmt.Errorf("reading node class %s: %w", nodeClaim.Spec.NodeClassRef.Name, err)
	}
	return nodeClass, nil
}
