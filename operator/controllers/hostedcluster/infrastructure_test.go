// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/controllers/csr"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

// deleted is a Machine of Karpenter's whose deletion began some time ago, as the operator's cache has it.
func deleted(t *testing.T, name string, ago time.Duration, holds string, with ...func(*clusterv1.Machine)) *clusterv1.Machine {
	t.Helper()
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters-blue", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "blue", v1alpha1.NodeClaimUIDLabel: name},
		DeletionTimestamp: &metav1.Time{Time: noon.Add(-ago)}, Finalizers: []string{clusterv1.MachineFinalizer},
	}}
	m.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.MachineDeletingCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason, Message: holds,
	}}
	for _, set := range with {
		set(m)
	}
	m = scopetest.Cached(t, csr.MachineCache(nil), m)
	m.Finalizers = []string{clusterv1.MachineFinalizer} // the fake client wants one
	return m
}

func TestInfrastructure(t *testing.T) {
	const sentence = "the infrastructure of Cluster clusters-blue/blue isn't ready: VCenterUnreachable: Cannot complete login"
	const task = "ServerFaultCode: The operation is not allowed in the current state."
	others := deleted(t, "other", time.Hour, "", func(m *clusterv1.Machine) { m.Labels[clusterv1.ClusterNameLabel] = "green" })
	user := deleted(t, "user", time.Hour, "", func(m *clusterv1.Machine) { delete(m.Labels, v1alpha1.NodeClaimUIDLabel) })
	instance := func(m *clusterv1.Machine) { m.Spec.ProviderID = "vsphere://1" }
	drains := func(m *clusterv1.Machine) {
		m.Status.Conditions[0].Reason = clusterv1.MachineDeletingDrainingNodeReason
	}
	fails := func(m *clusterv1.Machine) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: "NotReady", Message: task,
		})
	}
	for name, tc := range map[string]struct {
		notReady bool
		machines []client.Object
		aws      bool
		// asleep: the control plane is to have no replicas.
		asleep bool
		want   string
		after  time.Duration
	}{
		"When all is well, it should say nothing":                                    {},
		"When the provider can't log in, it should have its sentence":                {notReady: true, want: sentence},
		"When a deletion has just begun, it should look again when it may hang":      {machines: []client.Object{deleted(t, "a", time.Minute, "")}, after: time.Minute},
		"When its node is being drained, it should say nothing":                      {machines: []client.Object{deleted(t, "a", time.Hour, "cannot evict pod", instance, drains)}},
		"When an instance is being shut down, it should look again when it may hang": {machines: []client.Object{deleted(t, "a", 3*time.Minute, "", instance)}, after: 2 * time.Minute},
		"When the infrastructure reports why a deletion hangs, it should quote that": {
			machines: []client.Object{deleted(t, "a", time.Hour, "Waiting for VSphereMachine to be deleted", instance, fails)},
			want:     "1 Machine hangs in deletion, such as a (" + task + "); no other is launched of their offerings",
		},
		"When deletions hang, it should count them and quote one": {
			machines: []client.Object{deleted(t, "b", time.Hour, "* VSphereMachine deletion:\n  still there"), deleted(t, "a", 3*time.Minute, "waiting for VSphereMachine a"), others, user},
			want:     "2 Machines hang in deletion, such as a (waiting for VSphereMachine a); no other is launched of their offerings",
		},
		"When both hold, it should say both": {
			notReady: true, machines: []client.Object{deleted(t, "a", time.Hour, "")},
			want: sentence + "; 1 Machine hangs in deletion, such as a (WaitingForInfrastructureDeletion); no other is launched of their offerings",
		},
		"When nodes aren't Machines, it should say nothing":                              {notReady: true, aws: true},
		"When the control plane is asleep and no Machine is left, it should say nothing": {asleep: true, machines: []client.Object{user, others}},
		"When the control plane is asleep and a Machine is left, it should say what that costs": {
			asleep: true, machines: []client.Object{deleted(t, "a", time.Minute, ""), user}, want: "the control plane is to have no replicas, but 1 Machine runs and costs", after: time.Minute,
		},
		"When the control plane is asleep and Machines are left, it should count them, and say what else there is": {
			asleep: true, notReady: true, machines: []client.Object{deleted(t, "a", time.Minute, ""), deleted(t, "b", time.Minute, "")},
			want: "the control plane is to have no replicas, but 2 Machines run and cost; " + sentence, after: time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
			r := &Reconciler{management: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.machines...).Build(), clock: clocktesting.NewFakePassiveClock(noon)}
			s := running("1.36.3")
			s.HostedCluster.Namespace, s.HostedCluster.Name, s.ControlPlaneNamespace = "clusters", "blue", "clusters-blue"
			s.Profile = clusterapi.New(clusterapi.DefaultGroups)
			if tc.aws {
				s.Profile = &provider.Profile{Unattended: func(string) string { return "instances" }}
			}
			s.Cluster = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}}
			if tc.asleep {
				s.Cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
				s.Cluster.Status.ControlPlane = &clusterv1.ClusterControlPlaneStatus{DesiredReplicas: ptr.To[int32](0)}
			}
			if tc.notReady {
				s.Cluster.Status.Conditions = []metav1.Condition{{
					Type: clusterv1.ClusterInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: "VCenterUnreachable", Message: "Cannot complete login",
				}}
			}
			message, after, err := r.infrastructure(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(message).To(Equal(tc.want))
			g.Expect(after).To(Equal(tc.after))
		})
	}
	t.Run("When Karpenter runs, the message should have it before what else there is to say, and the state should stay", func(t *testing.T) {
		g := NewWithT(t)
		r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
		s := running("1.36.3")
		setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "5 of 8 nodes still run 1.36.2")
		r.conclude(s, &outcome{state: on, infrastructure: sentence})
		g.Expect(s.HostedCluster.Status.AutoNode).To(And(HaveField("Message", sentence+"; 5 of 8 nodes still run 1.36.2"), HaveField("State", v1beta1.AutoNodeStateUpgrading)))
	})
}
