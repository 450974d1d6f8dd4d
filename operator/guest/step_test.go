// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestSetReachable(t *testing.T) {
	cluster := func(initialized bool, controlPlane *clusterv1.ClusterControlPlaneStatus) *clusterv1.Cluster {
		return &clusterv1.Cluster{Status: clusterv1.ClusterStatus{
			Initialization: clusterv1.ClusterInitializationStatus{ControlPlaneInitialized: &initialized}, ControlPlane: controlPlane,
		}}
	}
	replicas := func(desired int32) *clusterv1.ClusterControlPlaneStatus {
		return &clusterv1.ClusterControlPlaneStatus{DesiredReplicas: ptr.To(desired)}
	}
	const said, asleep = "False/Unreachable: refused", "Unknown/ControlPlaneAsleep: the control plane of Cluster clusters-blue/blue is to have no replicas; scale it up"
	for _, test := range []struct {
		name    string
		cluster *clusterv1.Cluster
		status  metav1.ConditionStatus
		want    string
	}{
		{name: "When the control plane is to have no replicas, it should be asleep", cluster: cluster(true, replicas(0)), status: metav1.ConditionFalse, want: asleep},
		{name: "When the guest isn't tried yet and its control plane is asleep, it should be asleep", cluster: cluster(true, replicas(0)), status: metav1.ConditionUnknown, want: asleep},
		{name: "When the control plane still answers, it should be reachable", cluster: cluster(true, replicas(0)), status: metav1.ConditionTrue, want: "True/Unreachable: refused"},
		{name: "When the control plane is to have replicas, it should be unreachable", cluster: cluster(true, replicas(1)), status: metav1.ConditionFalse, want: said},
		{name: "When the control plane was never initialized, it should be unreachable", cluster: cluster(false, replicas(0)), status: metav1.ConditionFalse, want: said},
		{name: "When the control plane reports no replicas, as that of a provider that has none, it should be unreachable", cluster: cluster(true, nil), status: metav1.ConditionFalse, want: said},
		{name: "When there is no Cluster, it should be unreachable", status: metav1.ConditionFalse, want: said},
	} {
		t.Run(test.name, func(t *testing.T) {
			hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}
			setReachable(&scope.Scope{HostedCluster: hostedCluster, ControlPlaneNamespace: "clusters-blue", Cluster: test.cluster}, test.status, "Unreachable", "refused")
			c := meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.GuestReachable)
			NewWithT(t).Expect(string(c.Status) + "/" + c.Reason + ": " + c.Message).To(Equal(test.want))
		})
	}
}
