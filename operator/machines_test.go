// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestMachines(t *testing.T) {
	t.Parallel()
	const label, name = "machines.test", "behind"
	provide(t)
	removeAll(t, label)
	hosted(t, label, name, push(t, serveRegistry(t), "1.36.2"), clusters.Guest.Config)
	run(t, clusters.Management.Config, selecting(label))
	ctx, management := t.Context(), clusters.Management.Client

	t.Run("When Cluster API doesn't begin with the Machines of a burst, it should warn on the HostedCluster", func(t *testing.T) {
		g := NewWithT(t)
		for i := range 10 {
			g.Expect(management.Create(ctx, newMachine("clusters-"+name, name, fmt.Sprintf("general-%d", i)))).To(Succeed())
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
