// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Reasons of the event on a NodeClaim whose launch has ended without a Machine. docs/platform/failures.md has a remedy for each.
const (
	// MachineRejectedReason: the management cluster rejects the Machine or one of its infrastructure and bootstrap objects, and
	// would again: a quota, a policy, a webhook. The message is the API server's. The offering is unavailable to the NodePool
	// for a while, and Karpenter launches the next cheapest.
	MachineRejectedReason = "MachineRejected"
	// MachineUnbuildableReason: a template can't be cloned; the message names its fault. The offering is unavailable to the
	// NodePool for a while.
	MachineUnbuildableReason = "MachineUnbuildable"
	// NameTakenReason: an object of the NodeClaim's name exists in the control-plane namespace and isn't ours. It is
	// left alone. The offering is unavailable to the NodePool for a while.
	NameTakenReason = "NameTaken"
	// ReplacingLeftoverReason: objects of an earlier attempt don't fit the current choice and are being deleted.
	ReplacingLeftoverReason = "ReplacingLeftover"
	// MachineNotCreatedReason: the management cluster has failed to create the Machine, or hasn't answered in time; the
	// message reports why.
	MachineNotCreatedReason = "MachineNotCreated"
	// NodeClassReadinessUnknownReason: the node class hasn't been reconciled yet, or not since its spec changed.
	NodeClassReadinessUnknownReason = "NodeClassReadinessUnknown"
	// ClusterUnreadableReason: the CAPI Cluster that the node joins can't be read.
	ClusterUnreadableReason = "ClusterUnreadable"
	// MachinesUncountedReason: the template source has a maximum size, and its machines haven't been counted since
	// startup.
	MachinesUncountedReason = "MachinesUncounted"
	// CapacityLeaseUnreadReason: whether the hosted cluster's CapacityLease has room isn't known yet; the message reports why.
	CapacityLeaseUnreadReason = "CapacityLeaseUnread"
	// WaitingForCapacityReason: the hosted cluster's CapacityLease has no room now, and the operator is asked for more.
	WaitingForCapacityReason = "WaitingForCapacity"
)

// ManagementUnreachableReason is the reason of the NodeClaim's condition Launched while the management cluster doesn't answer.
const ManagementUnreachableReason = "ManagementUnreachable"

// maxQuoted limits an event's quotation of an API server's message, in bytes.
const maxQuoted = 700

// failure is why a launch has ended without a Machine.
type failure struct {
	reason string
	err    error
	// offering that the NodePool doesn't get before a time; empty if it may be tried again at once.
	offering offering.Key
	until    time.Time
}

// Error returns why.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

func because(reason string, err error) error { return &failure{reason: reason, err: err} }

// reasonOf returns the reason of a failure; empty for any other error.
func reasonOf(err error) string {
	var f *failure
	if errors.As(err, &f) {
		return f.reason
	}
	return ""
}

// isUnsettled reports whether an error is that something isn't known yet.
func isUnsettled(err error) bool {
	return slices.Contains([]string{NodeClassReadinessUnknownReason, ClusterUnreadableReason, MachinesUncountedReason}, reasonOf(err))
}

// isUnanswered reports whether an error is that an API server couldn't be reached or has hung up. If it was asked in time and
// hasn't answered, others may be: a webhook may hang for one kind.
func isUnanswered(err error) bool {
	var request *url.Error
	return !errors.Is(err, context.DeadlineExceeded) &&
		(errors.As(err, &request) || utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err))
}

// notCreated returns why a chosen offering's Machine wasn't created. Where a retry would fail in the same way, the NodePool
// doesn't get the offering for a while.
func (c *CloudProvider) notCreated(nodeClaim *karpv1.NodeClaim, chosen *launch, err error) error {
	f := &failure{reason: MachineNotCreatedReason, err: err}
	var unbuildable *machine.BuildError
	var rejected *machine.RejectedError
	permanent := false
	switch {
	case errors.Is(err, machine.ErrTaken):
		// Once the objects of an earlier NodeClaim are gone, the name is free.
		f.reason, permanent = NameTakenReason, !errors.Is(err, machine.ErrReplaced)
	case errors.As(err, &unbuildable):
		f.reason, permanent = MachineUnbuildableReason, true
	case errors.As(err, &rejected):
		f.reason, permanent = MachineRejectedReason, true
	case errors.Is(err, machine.ErrLeftover):
		f.reason = ReplacingLeftoverReason
	case errors.Is(err, machine.ErrPaused):
		f.reason = v1alpha1.ClusterPausedReason
	case errors.Is(err, context.DeadlineExceeded):
		f.err = fmt.Errorf("the management cluster hasn't answered within %s: %w", machine.CreateTimeout, err)
	}
	if permanent {
		f.offering, f.until = chosen.choice.Key, c.Rejections.Mark(nodePoolOf(nodeClaim), chosen.choice.Key, f.reason)
	}
	return f
}

// ended returns the error by which Karpenter deletes a NodeClaim whose launch has failed, and publishes the reason.
func (c *CloudProvider) ended(nodeClaim *karpv1.NodeClaim, err error) error {
	if karpcloudprovider.IsInsufficientCapacityError(err) || karpcloudprovider.IsNodeClassNotReadyError(err) {
		return err // Karpenter publishes the former; the latter is a condition of the node class
	}
	f := &failure{reason: MachineNotCreatedReason, err: err}
	errors.As(err, &f)
	c.Recorder.Publish(launchFailed(nodeClaim, f))
	if f.reason == NodeClassReadinessUnknownReason || f.reason == v1alpha1.ClusterPausedReason {
		return karpcloudprovider.NewNodeClassNotReadyError(err)
	}
	return karpcloudprovider.NewInsufficientCapacityError(err)
}

// launchFailed reports on a NodeClaim why it has no Machine.
func launchFailed(nodeClaim *karpv1.NodeClaim, f *failure) events.Event {
	text := message.Cut(f.err.Error(), maxQuoted)
	if f.offering != (offering.Key{}) {
		text = fmt.Sprintf("no machine of %s: %s%s", f.offering.Description(), text, offering.RetryNotice(f.until))
		if nodePool := nodePoolOf(nodeClaim); nodePool != "" && !f.until.IsZero() {
			text += " for NodePool " + nodePool
		}
	}
	return events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeWarning,
		Reason:         f.reason,
		Message:        text,
		DedupeValues:   []string{string(nodeClaim.UID)},
	}
}

// nodePoolOf returns the name of a NodeClaim's NodePool; empty for none.
func nodePoolOf(nodeClaim *karpv1.NodeClaim) string { return nodeClaim.Labels[karpv1.NodePoolLabelKey] }
