// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/adopt"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// TestAdopt: the Machines of two MachineDeployments become Karpenter's while the command is killed again and again. No machine is made or
// deleted, and no pod restarts. Released, they are consolidated within the NodePool's budget.
func TestAdopt(t *testing.T) {
	t.Parallel()
	const pool, each = "general", 10
	c := acquireCluster(t, amber)
	g := NewWithT(t)
	deployments := []*clusterv1.MachineDeployment{c.workers(t, "workers", each), c.workers(t, "batch", each)}
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.machines(g, ctx)).To(And(HaveLen(2*each), HaveEach(HaveField("Status.Phase", string(clusterv1.MachinePhaseRunning)))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	c.workload(t, "web", 2*each, "100m", apart)
	c.waitRunning(t, "web")
	c.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))})
	c.nodePool(t, pool, budget("3"))
	machines, pods, disrupted := c.machineUIDs(g, t.Context()), c.podsOf(g, t.Context(), "web"), c.watchDisruptions(t)
	made := c.watchMachines(t)

	t.Run("When Karpenter runs on after a kill between a NodeClaim and its Machine, it should launch nothing for the NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		_, err := c.adopt(t, deployments[0], adopt.Options{Machines: 1}, 9)
		g.Expect(err).To(MatchError(ContainSubstring("killed")))
		g.Expect(c.nodeClaims(g, t.Context())).To(HaveLen(1))
		c.pauseUntil(t, t.Context(), nil) // as if the five minutes were over
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodeClaims(g, ctx)).To(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(c.machineUIDs(g, t.Context())).To(Equal(machines))
	})

	t.Run("When the command is killed at many steps, the nodes should become Karpenter's, and nothing else change", func(t *testing.T) {
		g := NewWithT(t)
		for _, deployment := range deployments {
			err, kills := errKilled, 0
			for ; err != nil && kills < 100; kills++ {
				var out string
				if out, err = c.adopt(t, deployment, adopt.Options{}, 7+int32(kills%3)); err != nil {
					g.Expect(err).To(MatchError(ContainSubstring("killed")), out)
				}
			}
			t.Logf("%s: killed %d times", deployment.Name, kills-1)
		}
		c.waitEnabled(t, initialRelease)
		g.Eventually(func(g Gomega, ctx context.Context) {
			claims := c.nodeClaims(g, ctx)
			g.Expect(claims).To(HaveLen(2 * each))
			for i := range claims {
				g.Expect(claims[i].StatusConditions().IsTrue("Ready")).To(BeTrue(), claims[i].Name)
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(c.machineUIDs(g, ctx)).To(Equal(machines))
			g.Expect(c.podsOf(g, ctx, "web")).To(Equal(pods))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
		g.Expect(made()).To(BeEmpty(), "Machines that were made or deleted meanwhile")
		expectUndisturbed(t, disrupted)
		for _, deployment := range deployments {
			g.Expect(c.management.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
			g.Expect(deployment.Spec.Replicas).To(HaveValue(BeZero()))
		}
	})

	t.Run("When the nodes are released, they should be consolidated within the budget, and their machines deleted", func(t *testing.T) {
		g := NewWithT(t)
		disrupted := c.watchDisruptions(t)
		const fewer = 2*each - 5
		c.scale(t, "web", fewer)
		g.Expect(c.nodes(g, t.Context())).To(HaveEach(HaveField("Annotations", HaveKeyWithValue(karpv1.DoNotDisruptAnnotationKey, "true"))))
		release := client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null,%q:null}}}`, karpv1.DoNotDisruptAnnotationKey, v1alpha1.AdoptedAnnotation))
		for _, claim := range c.nodeClaims(g, t.Context()) {
			g.Expect(c.guest.Patch(t.Context(), &claim, release)).To(Succeed())
			g.Expect(c.guest.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Status.NodeName}}, release)).To(Succeed())
		}
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(len(c.machines(g, ctx))).To(BeNumerically("<=", fewer))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		most, _ := disrupted()
		g.Expect(most).To(BeNumerically("<=", 3), "the budget")
		c.waitRunning(t, "web")
	})
}

// workers makes a MachineDeployment until the test ends.
func (c *cluster) workers(t *testing.T, name string, replicas int32) *clusterv1.MachineDeployment {
	t.Helper()
	deployment := hosting.Workers(c.world.Guest(c.name), replicas)
	own := map[string]string{clusterv1.MachineDeploymentNameLabel: name}
	deployment.Name, deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels = name, own, own
	NewWithT(t).Expect(c.management.Create(t.Context(), deployment)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(c.management.Delete(context.WithoutCancel(t.Context()), deployment)).To(Succeed())
	})
	return deployment
}

var errKilled = errors.New("killed")

// mortal is a client that fails from a write on.
type mortal struct {
	client.Client
	left *atomic.Int32
}

// Create implements client.Client.
func (m mortal) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if !slices.Contains(opts, client.CreateOption(client.DryRunAll)) && m.left.Add(-1) < 0 {
		return errKilled
	}
	return m.Client.Create(ctx, object, opts...)
}

// Patch implements client.Client.
func (m mortal) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if m.left.Add(-1) < 0 {
		return errKilled
	}
	return m.Client.Patch(ctx, object, patch, opts...)
}

// adopt runs the command until it has written so often.
func (c *cluster) adopt(t *testing.T, deployment *clusterv1.MachineDeployment, o adopt.Options, writes int32) (string, error) {
	t.Helper()
	var out bytes.Buffer
	left := &atomic.Int32{}
	left.Store(writes)
	err := o.Adopt(t.Context(), mortal{c.management, left}, mortal{c.guest, left}, client.ObjectKeyFromObject(deployment),
		command.Streams{Out: &out, ErrOut: &out})
	return out.String(), err
}

func (c *cluster) machineUIDs(g Gomega, ctx context.Context) map[string]string {
	uids := map[string]string{}
	for _, m := range c.machines(g, ctx) {
		uids[m.Name] = string(m.UID)
	}
	return uids
}

// podsOf returns the node of each pod of a workload by its UID, with its restarts.
func (c *cluster) podsOf(g Gomega, ctx context.Context, workload string) map[string]string {
	list, pods := &corev1.PodList{}, map[string]string{}
	g.Expect(c.guest.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": workload})).To(Succeed())
	for _, pod := range list.Items {
		restarts := int32(0)
		for _, status := range pod.Status.ContainerStatuses {
			restarts += status.RestartCount
		}
		pods[string(pod.UID)] = fmt.Sprintf("%s, %d restarts", pod.Spec.NodeName, restarts)
	}
	return pods
}

// watchMachines watches the Machines. The function that it returns ends the watch, and names those that were made or deleted.
func (c *cluster) watchMachines(t *testing.T) (result func() []string) {
	t.Helper()
	list := &clusterv1.MachineList{}
	g := NewWithT(t)
	g.Expect(c.management.List(t.Context(), list, c.ofNodes()...)).To(Succeed())
	watch, err := c.management.Watch(t.Context(), &clusterv1.MachineList{}, append(c.ofNodes(), &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})...)
	g.Expect(err).NotTo(HaveOccurred())
	var changed []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watch.ResultChan() {
			if m, ok := event.Object.(*clusterv1.Machine); ok && (event.Type != "MODIFIED" || m.DeletionTimestamp != nil) {
				changed = append(changed, string(event.Type)+" "+m.Name)
			}
		}
	}()
	return func() []string {
		watch.Stop()
		<-ended
		return changed
	}
}
