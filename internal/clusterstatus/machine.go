// SPDX-License-Identifier: Apache-2.0

package clusterstatus

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// How long the deletion of a Machine may take. One that has no provider ID has nothing to shut down, and its offering's first back-off
// lasts three minutes: the deletion counts as hanging before that ends.
const (
	deletionWithoutInstance = 2 * time.Minute
	deletion                = 5 * time.Minute
)

// HangsFrom returns from when on the deletion of a Machine counts as hanging; false if the Machine isn't being deleted, or if the
// deletion waits for its node or for a hook. A provider without a session deletes nothing, as with wrong credentials.
func HangsFrom(m *clusterv1.Machine) (from time.Time, deleting bool) {
	if m.DeletionTimestamp == nil {
		return time.Time{}, false
	}
	for i := range m.Status.Conditions {
		c := &m.Status.Conditions[i]
		if c.Type != clusterv1.MachineDeletingCondition || c.Status != metav1.ConditionTrue {
			continue
		}
		switch c.Reason {
		case clusterv1.MachineDeletingDrainingNodeReason, clusterv1.MachineDeletingWaitingForVolumeDetachReason,
			clusterv1.MachineDeletingWaitingForPreDrainHookReason, clusterv1.MachineDeletingWaitingForPreTerminateHookReason:
			return time.Time{}, false
		}
	}
	if m.Spec.ProviderID == "" {
		return m.DeletionTimestamp.Add(deletionWithoutInstance), true
	}
	return m.DeletionTimestamp.Add(deletion), true
}

// Hangs reports whether the deletion of a Machine hangs.
func Hangs(m *clusterv1.Machine, now time.Time) bool {
	from, deleting := HangsFrom(m)
	return deleting && !now.Before(from)
}

// Reads reports whether HangsFrom or Holds reads a condition; a cache may drop the others.
func Reads(condition string) bool {
	return condition == clusterv1.MachineDeletingCondition || condition == clusterv1.MachineInfrastructureReadyCondition
}

// Holds returns the infrastructure's sentence about a Machine's deletion, or else Cluster API's; it may be empty.
func Holds(m *clusterv1.Machine) string {
	if c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineInfrastructureReadyCondition); c != nil &&
		c.Status == metav1.ConditionFalse &&
		c.Message != "" && c.Reason != clusterv1.MachineInfrastructureDeletedReason &&
		c.Reason != clusterv1.MachineInfrastructureDoesNotExistReason {
		return c.Message
	}
	if c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineDeletingCondition); c != nil && c.Status == metav1.ConditionTrue {
		return cmp.Or(c.Message, c.Reason)
	}
	return ""
}
