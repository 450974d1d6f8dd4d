// SPDX-License-Identifier: Apache-2.0

package clusterstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

//nolint:staticcheck // deprecated together with the contract v1beta1, which many providers still follow.
func TestNotReady(t *testing.T) {
	reported := func(status metav1.ConditionStatus, reason, text string) []metav1.Condition {
		return []metav1.Condition{{Type: clusterv1.ClusterInfrastructureReadyCondition, Status: status, Reason: reason, Message: text}}
	}
	formerly := func(status corev1.ConditionStatus, reason, text string) *clusterv1.ClusterDeprecatedStatus {
		return &clusterv1.ClusterDeprecatedStatus{V1Beta1: &clusterv1.ClusterV1Beta1DeprecatedStatus{Conditions: clusterv1.Conditions{
			{Type: clusterv1.InfrastructureReadyV1Beta1Condition, Status: status, Reason: reason, Message: text},
		}}}
	}
	const login = "ServerFaultCode: Cannot complete login due to an incorrect user name or password."
	for name, tc := range map[string]struct {
		status clusterv1.ClusterStatus
		want   string
	}{
		"When the Cluster reports nothing, it should say nothing": {clusterv1.ClusterStatus{}, ""},
		"When the infrastructure is ready, it should say nothing": {clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionTrue, "Ready", "")}, ""},
		"When it isn't known yet, it should say nothing":          {clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionUnknown, "Unknown", "not yet reported")}, ""},
		"When the provider can't log in, it should have the provider's sentence": {
			clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionFalse, "VCenterUnreachable", login)}, "VCenterUnreachable: " + login,
		},
		"When only the conditions of the former contract have the sentence, it should have it": {
			clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionFalse, "NotReady", ""), Deprecated: formerly(corev1.ConditionFalse, "VCenterUnreachable", login)},
			"VCenterUnreachable: " + login,
		},
		"When the provider follows the former contract alone, it should read that": {
			clusterv1.ClusterStatus{Deprecated: formerly(corev1.ConditionFalse, "VCenterUnreachable", login)}, "VCenterUnreachable: " + login,
		},
		"When the former contract's condition is behind, the current one should count": {
			clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionTrue, "Ready", ""), Deprecated: formerly(corev1.ConditionFalse, "VCenterUnreachable", login)}, "",
		},
		"When there is a reason and no sentence, it should have the reason": {clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionFalse, "NotReady", "")}, "NotReady"},
		"When the sentence has no end, it should cut it": {
			clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionFalse, "", strings.Repeat("a", 600))}, strings.Repeat("a", 497) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}, Status: tc.status}
			want := tc.want
			if want != "" {
				want = "the infrastructure of Cluster clusters-blue/blue isn't ready: " + want
			}
			if got := NotReady(cluster); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	t.Run("When the Cluster is being deleted or isn't there, it should say nothing", func(t *testing.T) {
		now := metav1.Now()
		deleted := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Status: clusterv1.ClusterStatus{Conditions: reported(metav1.ConditionFalse, "Deleting", "")}}
		if got := NotReady(deleted) + NotReady(nil); got != "" {
			t.Error(got)
		}
	})
}
