// SPDX-License-Identifier: Apache-2.0

package clusterstatus

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestHangs(t *testing.T) {
	deleted := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		deleting           bool
		reason, providerID string
		after              time.Duration
		want               bool
	}{
		"When it isn't deleted, it should not hang":                                {false, "", "", time.Hour, false},
		"When it has no instance and is deleted just now, it should not hang yet":  {true, "", "", time.Minute, false},
		"When it has no instance and isn't gone after two minutes, it should hang": {true, "", "", 2 * time.Minute, true},
		"When its instance is being shut down, it should not hang yet": {true,
			clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason, "vsphere://1", 4 * time.Minute, false},
		"When its instance isn't gone after five minutes, it should hang": {true,
			clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason, "vsphere://1", 5 * time.Minute, true},
		"When its node is being drained, it should not hang however long that takes": {true, clusterv1.MachineDeletingDrainingNodeReason, "vsphere://1", time.Hour, false},
		"When a hook of a person holds it, it should not hang however long that takes": {true,
			clusterv1.MachineDeletingWaitingForPreTerminateHookReason, "vsphere://1", time.Hour, false},
		"When its volumes are being detached, it should not hang: that has a timeout of its own": {true,
			clusterv1.MachineDeletingWaitingForVolumeDetachReason, "vsphere://1", time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &clusterv1.Machine{Spec: clusterv1.MachineSpec{ProviderID: tc.providerID}}
			if tc.deleting {
				m.DeletionTimestamp = &metav1.Time{Time: deleted}
			}
			if tc.reason != "" {
				m.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineDeletingCondition, Status: metav1.ConditionTrue, Reason: tc.reason}}
			}
			if got := Hangs(m, deleted.Add(tc.after)); got != tc.want {
				t.Errorf("hangs: %t", got)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	deleting := metav1.Condition{Type: clusterv1.MachineDeletingCondition, Status: metav1.ConditionTrue, Reason: "Waiting", Message: "Waiting for VSphereMachine to be deleted"}
	infrastructure := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: clusterv1.MachineInfrastructureReadyCondition, Status: status, Reason: reason, Message: message}
	}
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		want       string
	}{
		"When nothing is reported, it should say nothing": {nil, ""},
		"When the infrastructure has a sentence, it should have that": {[]metav1.Condition{deleting,
			infrastructure(metav1.ConditionFalse, "NotReady", "login failure")}, "login failure"},
		"When the infrastructure has none, it should have Cluster API's": {[]metav1.Condition{deleting, infrastructure(metav1.ConditionFalse, "NotReady", "")}, deleting.Message},
		"When the infrastructure is ready, it should have Cluster API's": {[]metav1.Condition{deleting, infrastructure(metav1.ConditionTrue, "Ready", "fine")}, deleting.Message},
		"When the infrastructure machine is gone, it should not repeat that": {[]metav1.Condition{deleting,
			infrastructure(metav1.ConditionFalse, clusterv1.MachineInfrastructureDeletedReason, "VSphereMachine has been deleted")},
			deleting.Message},
	} {
		t.Run(name, func(t *testing.T) {
			m := &clusterv1.Machine{Status: clusterv1.MachineStatus{Conditions: tc.conditions}}
			if got := Holds(m); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
