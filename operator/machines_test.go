// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

func TestMachines(t *testing.T) {
	const label, name = "machines.test", "behind"
	provide(t)
	host := serveRegistry(t)
	removeAll(t, label)
	platform(t, name)
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	g.Expect(management.Create(ctx, &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Labels: map[string]string{label: "true"}},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: push(t, host, "1.36.2")}, AutoNode: scopetest.AutoNode()},
	})).To(Succeed())
	run(t, clusters.Management.Config, operator.Options{HostedClusterSelector: label, LeaderElection: true, LeaderElectionNamespace: "default", LeaseName: label})

	t.Run("When Cluster API doesn't begin with the Machines of a burst, it should warn on the HostedCluster", func(t *testing.T) {
		g := NewWithT(t)
		for i := range 10 {
			machine := fmt.Sprintf("general-%d", i)
			g.Expect(management.Create(ctx, &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-" + name, Name: machine, Labels: map[string]string{
					clusterv1.ClusterNameLabel: name, v1alpha1.NodeClaimLabel: machine, v1alpha1.NodeClaimUIDLabel: "uid-" + machine,
				}},
				Spec: clusterv1.MachineSpec{ClusterName: name},
			})).To(Succeed())
		}
		g.Eventually(func(g Gomega) []string {
			list := &eventsv1.EventList{}
			g.Expect(management.List(ctx, list, client.InNamespace("clusters"))).To(Succeed())
			var reasons []string
			for _, event := range list.Items {
				if event.Regarding.Name == name {
					reasons = append(reasons, event.Reason)
				}
			}
			return reasons
		}).Should(ContainElement(v1beta1.ClusterAPIBehindReason))
	})
}
