// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Reasons of events on a NodeClaim whose launch failed, or whose node is being removed. docs/platform/failures.md has a remedy
// for each.
const (
	// InsufficientCapacityReason: the infrastructure has no such machine now; Karpenter launches the next cheapest
	// offering.
	InsufficientCapacityReason = "InsufficientCapacity"
	// QuotaExceededReason: the account's quota is used up; raise it, or allow other instance types.
	QuotaExceededReason = "QuotaExceeded"
	// MachineFailedReason: the machine failed for a reason other than capacity, which the message has. Karpenter
	// launches a replacement; after three failures in a row the offering is unavailable for a while.
	MachineFailedReason = "MachineFailed"
	// MisconfiguredReason: the infrastructure rejects the template or its patches, and would again; the message quotes the
	// infrastructure. The offering is unavailable for a while.
	MisconfiguredReason = offering.MisconfiguredReason
	// LaunchTimeoutReason: the infrastructure provided no machine within the node class's deadlines.launch.
	LaunchTimeoutReason = "LaunchTimeout"
	// RegistrationTimeoutReason: the machine exists, but its node hasn't joined within the node class's
	// deadlines.registration. Check the machine's console: its bootstrap, its network, its route to the API server.
	RegistrationTimeoutReason = "RegistrationTimeout"
	// LaunchSlowReason: the machine takes longer than machines of its template usually do. Karpenter launches another offering, if one can be
	// launched, and the slow one is unavailable to the NodePool for a while. Shorten the infrastructure provider's sync period.
	LaunchSlowReason = "LaunchSlow"
	// MachineDeletedReason: a user or another controller deletes the Machine in the management cluster. Cluster API
	// drains its node, and Karpenter launches a replacement at once.
	MachineDeletedReason = "MachineDeleted"
	// NodeDeletedReason: the Node was deleted without a drain while its Machine ran. Karpenter launches a replacement at once; delete
	// Nodes without removing Karpenter's finalizer, which drains them.
	NodeDeletedReason = "NodeDeleted"
	// DeletionHangsReason: a Machine of the offering is being deleted, and the infrastructure provider doesn't get done with it. The
	// offering is unavailable until the Machine is gone. Look at the provider's log: most often it can't log in.
	DeletionHangsReason = "DeletionHangs"
	// InstanceSharedReason: the machine's instance is that of another NodeClaim, as where a template cuts the names of instances.
	InstanceSharedReason = "InstanceShared"
	// InterruptedReason: the infrastructure is about to take the machine back, as with spot capacity. Karpenter launches a
	// replacement while the node drains; a spot offering is unavailable for a while.
	InterruptedReason = "Interrupted"
	// InstanceTerminatedReason: the instance was terminated or stopped outside of Karpenter. Karpenter launches a replacement
	// at once.
	InstanceTerminatedReason = "InstanceTerminated"
	// MachineUnhealthyReason: a MachineHealthCheck has marked the Machine; its node is drained and replaced.
	MachineUnhealthyReason = "MachineUnhealthy"
	// AllocatableShortfallReason: the node can allocate less than Karpenter planned with, and pods that were planned on it may
	// not fit. Correct the template's capacity, or its bootstrap's reservations.
	AllocatableShortfallReason = "AllocatableShortfall"
	// RepairHeldReason: a MachineHealthCheck has marked too many Machines of the NodePool at once; none is replaced
	// until fewer are unhealthy. Look for a common cause: a zone, a network, the API server.
	RepairHeldReason = "RepairHeld"
)

// LaunchFailures are the reasons with which a launch fails.
var LaunchFailures = sets.New(InsufficientCapacityReason, QuotaExceededReason, MisconfiguredReason, LaunchTimeoutReason, LaunchSlowReason,
	MachineFailedReason, RegistrationTimeoutReason)

func warning(nodeClaim *karpv1.NodeClaim, reason, format string, args ...any) events.Event {
	return events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeWarning,
		Reason:         reason,
		Message:        fmt.Sprintf(format, args...),
		DedupeValues:   []string{string(nodeClaim.UID)},
	}
}

// logger returns the context's, with an offering.
func logger(ctx context.Context, key offering.Key) logr.Logger {
	return log.FromContext(ctx).WithValues("instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType)
}

// offeringOf returns the offering that a Machine was launched as.
func offeringOf(m *clusterv1.Machine) offering.Key {
	return inventory.OfferingOf(m)
}

// detail returns a condition's reason and message.
func detail(condition metav1.Condition) string {
	switch {
	case condition.Message == "":
		return condition.Reason
	case condition.Reason == "":
		return condition.Message
	}
	return condition.Reason + ": " + condition.Message
}
