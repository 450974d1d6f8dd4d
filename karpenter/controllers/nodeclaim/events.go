// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Reasons of events on a NodeClaim that won't become a node, or whose node has to go. docs/failures.md says what to do.
const (
	// InsufficientCapacityReason: the infrastructure has no such machine now; Karpenter takes the next cheapest offering.
	InsufficientCapacityReason = "InsufficientCapacity"
	// QuotaExceededReason: the account isn't allowed another such machine; raise the quota, or let Karpenter take another type.
	QuotaExceededReason = "QuotaExceeded"
	// MachineFailedReason: the infrastructure has given the machine up for a reason that isn't about capacity; the message has
	// the reason. Karpenter tries again; after three in a row the offering rests.
	MachineFailedReason = "MachineFailed"
	// LaunchTimeoutReason: the infrastructure had no machine within the node class's deadlines.launch.
	LaunchTimeoutReason = "LaunchTimeout"
	// RegistrationTimeoutReason: the machine is there, and no node of it came within the node class's deadlines.registration;
	// look at the machine's console: its bootstrap, its network, its way to the API server.
	RegistrationTimeoutReason = "RegistrationTimeout"
	// MachineDeletedReason: somebody deletes the Machine in the management cluster. Its node is drained by Cluster API, and its
	// pods get another node at once.
	MachineDeletedReason = "MachineDeleted"
	// MachineUnhealthyReason: a MachineHealthCheck has marked the Machine; its node is drained and replaced.
	MachineUnhealthyReason = "MachineUnhealthy"
	// RepairHeldReason: a MachineHealthCheck has marked too many Machines of the NodePool at once; none is replaced until fewer
	// are. Look for what they have in common: a zone, a network, the API server.
	RepairHeldReason = "RepairHeld"
)

func warning(nodeClaim *karpv1.NodeClaim, reason, format string, args ...any) events.Event {
	return events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeWarning,
		Reason:         reason,
		Message:        fmt.Sprintf(format, args...),
		DedupeValues:   []string{string(nodeClaim.UID)},
	}
}

// offeringOf is the offering that a Machine was made as.
func offeringOf(m *clusterv1.Machine) offering.Key {
	return offering.Key{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
		Zone:         m.Labels[corev1.LabelTopologyZone],
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
	}
}

// described says which offering it is, as a person would.
func described(key offering.Key) string {
	if key.Zone == "" {
		return key.CapacityType + " " + key.InstanceType
	}
	return key.CapacityType + " " + key.InstanceType + " in zone " + key.Zone
}

// rests says until when an offering isn't tried again, or nothing if it is.
func rests(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return "; not tried again before " + until.UTC().Format(time.TimeOnly+" MST")
}

// detail is a condition's reason and message.
func detail(condition metav1.Condition) string {
	switch {
	case condition.Message == "":
		return condition.Reason
	case condition.Reason == "":
		return condition.Message
	}
	return condition.Reason + ": " + condition.Message
}
