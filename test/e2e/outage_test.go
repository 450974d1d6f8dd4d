// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/fault"
)

// away is how long an API server is away: longer than any Lease lasts.
const away = time.Minute

// managementAway: the management cluster's API server is restarted, then away for a minute. No node is touched for it, and everything goes
// on by itself. It is everybody's, so this is one of the tests that have a world of their own.
func (f *faults) managementAway(t *testing.T) {
	f.endsSettled(t, initialRelease, f.on)
	t.Run("When the management cluster's API server is restarted in the middle of an enable, it should complete the enable", func(t *testing.T) {
		g := NewWithT(t)
		hold := fault.NewHold(requestsToken)
		f.guestProxy.Use(hold.Fault)
		defer f.guestProxy.Use(nil)
		f.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = autoNode() })
		g.Eventually(hold.Arrived()).WithTimeout(eventually).Should(BeClosed())
		stop(t, f.world.Management(), f.management)
		start(t, f.world.Management())
		g.Expect(f.karpenterObjects(g, t.Context())).NotTo(BeEmpty(), "the enable has to have begun")
		g.Expect(f.condition(g, t.Context(), v1beta1.AutoNodeEnabled).Status).NotTo(Equal(metav1.ConditionTrue), "it has to be the middle")
		g.Expect(hold.Release(t.Context())).To(Succeed())
		f.waitSettled(t, initialRelease, f.on)
	})

	f.enable(t, initialRelease)
	g := NewWithT(t)
	f.nodePool(t, testPool)
	began := time.Now()
	f.workload(t, "web", 3, "100m", apart, onPool(testPool))
	f.waitRunning(t, "web")
	// expiry is the age at which a node goes by the clock alone: in the middle of an outage that begins half an outage before, and when all is
	// ready for that, by what nodes take on this machine.
	expiry := (away + 3*time.Since(began)).Round(time.Second)
	pool := f.nodePool(t, "expiring", expiring(expiry))
	f.workload(t, "aging", 1, "100m", onPool(pool.Name))
	f.waitRunning(t, "aging")
	aging := f.claimOf(g, t.Context(), pool.Name)
	g.Eventually(func() time.Duration { return time.Since(aging.CreationTimestamp.Time) }).
		WithTimeout(eventually).WithPolling(interval).Should(BeNumerically(">=", expiry-away/2))
	karpenter, nodes := f.karpenterContainers(g, t.Context()), f.fleet(g, t.Context())

	t.Run("When the management cluster's API server is away, it should delete no NodeClaim and disrupt no node", func(t *testing.T) {
		stop(t, f.world.Management(), f.management)
		// What would tempt it: pods that need nodes, nodes that are empty, and a node that expires.
		f.workload(t, "late", 2, "5", apart, onPool(testPool)) // more than a node of web's has
		f.scale(t, "web", 1)
		disrupted := f.watchDisruptions(t)
		NewWithT(t).Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(f.fleet(g, ctx)).To(ContainElements(nodes))
		}).WithContext(t.Context()).WithTimeout(away).WithPolling(interval).Should(Succeed())
		expectUndisturbed(t, disrupted)
	})
	t.Run("When it is back, it should go on without a restart", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(time.Since(aging.CreationTimestamp.Time)).To(BeNumerically(">", expiry))
		start(t, f.world.Management())
		f.waitRunning(t, "late")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.nodeClaims(g, ctx)).NotTo(ContainElement(HaveField("UID", aging.UID)), "it expires now")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		f.scale(t, "aging", 0)
		g.Expect(f.guest.Delete(t.Context(), pool)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.machines(g, ctx)).To(HaveLen(3), "one for web, two for late")
			g.Expect(f.nodes(g, ctx)).To(HaveLen(3))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(f.karpenterContainers(g, t.Context())).To(Equal(karpenter))
	})
}

// TestGuestOutage: the same with a guest's API server.
func TestGuestOutage(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, violet)
	g := NewWithT(t)
	c.nodePool(t, "general")
	c.workload(t, "web", 3, "100m", apart)
	c.waitRunning(t, "web")
	karpenter, nodes := c.karpenterContainers(g, t.Context()), c.fleet(g, t.Context())
	machines := c.machineNames(g, t.Context())
	c.endsSettled(t, initialRelease, c.takeInventory(g, t.Context()))
	disrupted := c.watchDisruptions(t)

	t.Run("When the guest's API server is away, it should say so and delete no Machine", func(t *testing.T) {
		stop(t, world.Guest(c.name), c.guest)
		g := NewWithT(t)
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(c.machineNames(g, ctx)).To(Equal(machines))
		}).WithContext(t.Context()).WithTimeout(away).WithPolling(interval).Should(Succeed())
		g.Expect(c.condition(g, t.Context(), v1beta1.AutoNodeEnabled).Message).To(ContainSubstring(world.Guest(c.name).URL))
	})
	t.Run("When it is back, it should have disrupted no node, and go on without a restart", func(t *testing.T) {
		start(t, world.Guest(c.name))
		c.scale(t, "web", 5)
		c.waitRunning(t, "web")
		g := NewWithT(t)
		g.Expect(c.fleet(g, t.Context())).To(ContainElements(nodes))
		g.Expect(c.karpenterContainers(g, t.Context())).To(Equal(karpenter))
		expectUndisturbed(t, disrupted)
	})
}

// stop makes an outage that ends with the test at the latest, and that a client of the API server's notices.
func stop(t *testing.T, apiServer *controlplane.Cluster, reader client.Reader) {
	t.Helper()
	apiServer.StopAPIServer()
	NewWithT(t).Eventually(func(ctx context.Context) error { return reader.List(ctx, &corev1.NamespaceList{}) }).WithContext(t.Context()).
		WithTimeout(eventually).WithPolling(interval).Should(MatchError(syscall.ECONNREFUSED), "the API server has to be away")
	t.Cleanup(func() {
		if t.Failed() {
			start(t, apiServer)
		}
	})
}

func start(t *testing.T, apiServer *controlplane.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), eventually)
	defer cancel()
	NewWithT(t).Expect(apiServer.StartAPIServer(ctx)).To(Succeed())
}

// claimOf returns the NodeClaim of a NodePool that has one.
func (c *cluster) claimOf(g Gomega, ctx context.Context, pool string) karpv1.NodeClaim {
	claims := slices.DeleteFunc(c.nodeClaims(g, ctx), func(claim karpv1.NodeClaim) bool { return claim.Labels[karpv1.NodePoolLabelKey] != pool })
	g.Expect(claims).To(HaveLen(1))
	return claims[0]
}

// fleet names every node with all signs of a pending removal.
func (c *cluster) fleet(g Gomega, ctx context.Context) []string {
	var fleet []string
	for _, claim := range c.nodeClaims(g, ctx) {
		fleet = append(fleet, fmt.Sprintf("NodeClaim %s %s deleted: %t", claim.Name, claim.UID, claim.DeletionTimestamp != nil))
	}
	for _, node := range c.nodes(g, ctx) {
		disrupted := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&karpv1.DisruptedNoScheduleTaint) })
		fleet = append(fleet, fmt.Sprintf("Node %s %s deleted: %t, disrupted: %t", node.Name, node.UID, node.DeletionTimestamp != nil, disrupted))
	}
	slices.Sort(fleet)
	return fleet
}

func (c *cluster) machineNames(g Gomega, ctx context.Context) []string {
	var names []string
	for _, machine := range c.machines(g, ctx) {
		names = append(names, fmt.Sprintf("%s %s deleted: %t", machine.Name, machine.UID, machine.DeletionTimestamp != nil))
	}
	slices.Sort(names)
	return names
}

// karpenterContainers are Karpenter's containers, each with the number of its restarts.
func (c *cluster) karpenterContainers(g Gomega, ctx context.Context) map[string]int32 {
	pods := &corev1.PodList{}
	g.Expect(c.management.List(ctx, pods, client.InNamespace(c.namespace()))).To(Succeed())
	restarts := map[string]int32{}
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			if container.Name == v1beta1.KarpenterComponent {
				restarts[pod.Name] = container.RestartCount
			}
		}
	}
	g.Expect(restarts).NotTo(BeEmpty())
	return restarts
}
