// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter/providers/version"
	"github.com/autonode-io/autonode/test/disruption"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestUpgrade: a payload of the next minor version rolls out Karpenter, then the nodes, never ahead of the control plane, the approval or the
// maintenance window. A payload that can't be resolved changes nothing. By then the infrastructure has no machine left of the type that the nodes
// prefer: what runs stays until its replacement is ready, and that is of the next cheapest type. A control plane isn't downgraded.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	c, parent := acquireCluster(t, red), t
	g := NewWithT(t)
	// On demand, c2-small is the cheapest, and c4-arm the next. See test/world/hosting.
	const preferred, next = "c2-small", "c4-arm"
	ofType := func(instanceType string) OmegaMatcher {
		return HaveField("Labels", HaveKeyWithValue(corev1.LabelInstanceTypeStable, instanceType))
	}
	c.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))})
	c.nodePool(t, "general", budget("1"), require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
	web := c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	nodes := c.nodes(g, t.Context())
	g.Expect(nodes).To(And(HaveLen(3), HaveEach(ofType(preferred))))
	before := names(nodes)
	disrupted, early, ahead := c.watchDisruptions(t), c.watchDisruptions(t), c.watchAhead(t)

	t.Run("When the payload can't be resolved, it should say so and change nothing", func(t *testing.T) {
		g := NewWithT(t)
		deployment := c.karpenter(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = missingRelease() })
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.ReleaseResolved)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ImageNotFoundReason)))
			g.Expect(c.hostedCluster(g, ctx).Status.AutoNode).To(HaveField("State", v1beta1.AutoNodeStateWaiting))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(c.karpenter(t).UID).To(Equal(deployment.UID))
		g.Expect(c.karpenter(t).Generation).To(Equal(deployment.Generation))
		g.Expect(names(c.nodes(g, t.Context()))).To(ConsistOf(before))
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = world.Release(initialRelease) })
		c.waitEnabled(t, initialRelease)
	})

	t.Run("When the guest's API server is still old, it should roll Karpenter and replace no node", func(t *testing.T) {
		g := NewWithT(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.Release.Image = world.Release(nextMinorRelease)
			spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeManual} // for later
		})
		g.Eventually(func(g Gomega, ctx context.Context) {
			component := &v1beta1.ControlPlaneComponent{}
			g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
			g.Expect(component.Status.Version).To(Equal(nextMinorRelease))
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ControlPlaneOlderReason)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(c.karpenter(t).Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", world.ComponentImage(nextMinorRelease))))
		c.expectHeld(t, before, rounds)
	})

	t.Run("When the guest's API server is upgraded but the version is not approved, it should replace no node and say how to approve", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(world.UpgradeControlPlane(t.Context(), c.name, localworld.NextMinorKubernetes)).To(Succeed())
		approve := v1beta1.ApproveNodeVersionAnnotation + "=" + strings.TrimPrefix(localworld.NextMinorKubernetes, "v")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.NodeUpgradeHeldReason),
				HaveField("Message", HaveSuffix(approve))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.expectHeld(t, before, version.Settling+rounds) // until the newer API server counts, and then
	})

	t.Run("When the maintenance window is about to close, new nodes should get the version, and it should replace none", func(t *testing.T) {
		g := NewWithT(t)
		var closes time.Time
		c.waitResolved(t, localworld.NextMinorKubernetes, func() {
			if time.Until(closes) > rounds { // else a slow rollout would outlast the window
				return
			}
			var window *v1beta1.MaintenanceWindow
			window, closes = closing(time.Now())
			c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
				spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeMaintenanceWindow, MaintenanceWindow: window}
			})
		})
		c.expectHeld(t, before, rounds)
		g.Expect(c.condition(g, t.Context(), v1beta1.NodesUpToDate).Status).To(Equal(metav1.ConditionFalse))
	})

	expectUndisturbed(t, early) // from the first payload until now, not for a moment

	t.Run("When the version is approved, it should replace each node by one of the next cheapest type, within the budget, and complete the history", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(parent, preferred, infrav1.FaultNoCapacity, "true")
		hosted := c.hostedCluster(g, t.Context())
		unapproved := hosted.DeepCopy()
		hosted.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeManual}
		metav1.SetMetaDataAnnotation(&hosted.ObjectMeta, v1beta1.ApproveNodeVersionAnnotation, strings.TrimPrefix(localworld.NextMinorKubernetes, "v"))
		g.Expect(c.management.Patch(t.Context(), hosted, client.MergeFrom(unapproved))).To(Succeed())
		c.waitResolved(t, localworld.NextMinorKubernetes)
		// The positive control of every hold above: without one, the same wait replaces a node.
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodeClaims(g, ctx)).To(ContainElement(Satisfy(func(claim karpv1.NodeClaim) bool { return disruption.Counts(&claim) })))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			c.expectMostRun(g, ctx, web)
			hosted := c.hostedCluster(g, ctx)
			g.Expect(hosted.Status.Version.History).NotTo(BeEmpty())
			g.Expect(hosted.Status.Version.History[0]).To(And(
				HaveField("Version", nextMinorRelease), HaveField("State", v1beta1.UpdateCompleted),
				HaveField("CompletionTime", Not(BeNil()))))
			nodes := c.nodes(g, ctx)
			g.Expect(nodes).To(And(HaveLen(3), HaveEach(ofType(next)), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", localworld.NextMinorKubernetes))))
			c.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		most, replaced := disrupted()
		g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
		g.Expect(replaced).To(ConsistOf(before), "each once, and no new one")
		// The fault: replacements of the preferred type that the infrastructure refused.
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "InsufficientCapacity")).To(ContainElement(ContainSubstring("no capacity for on-demand " + preferred)))
	})

	t.Run("When a node class requests an older minor version, its nodes should get it as far as kubelets may lag, and it should launch nothing beyond", c.oldKubelets)

	g.Expect(ahead()).To(BeEmpty(), "machines that were newer than the API server")
}

// oldKubelets pins a node class three minor versions behind the API server, and then four.
func (c *cluster) oldKubelets(t *testing.T) {
	g := NewWithT(t)
	const name, oldest, older = "old", "1.34.8", "1.33.12"
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: c.defaultClass(g, t.Context()).Spec}
	class.Spec.Version = oldest
	g.Expect(c.guest.Create(t.Context(), class)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), class))).To(Succeed())
	})
	c.nodePool(t, name, func(pool *karpv1.NodePool) { pool.Spec.Template.Spec.NodeClassRef.Name = name })
	c.workload(t, name, 1, "500m", onPool(name))
	c.waitRunning(t, name)
	nodes := c.nodesOf(g, t.Context(), name)
	g.Expect(nodes).To(ConsistOf(HaveField("Status.NodeInfo.KubeletVersion", "v"+oldest)))

	before := class.DeepCopy()
	class.Spec.Version = older
	g.Expect(c.guest.Patch(t.Context(), class, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(class), class)).To(Succeed())
		g.Expect(class.StatusConditions().Get(v1alpha1.ConditionVersionReady)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.VersionTooOldReason), HaveField("Message", ContainSubstring(
				older+" is more than 3 minor versions behind the API server's version "+strings.TrimPrefix(localworld.NextMinorKubernetes, "v")))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(names(c.nodesOf(g, t.Context(), name))).To(Equal(names(nodes)), "what runs, runs on")
}

// watchAhead watches the cluster's Machines from now on. The function that it returns ends the watch and names those that were newer than the
// guest's API server when they were made.
func (c *cluster) watchAhead(t *testing.T) (result func() []string) {
	t.Helper()
	g := NewWithT(t)
	before := len(c.machines(g, t.Context()))
	watched, err := c.management.Watch(t.Context(), &clusterv1.MachineList{}, c.ofNodes()...) // begins with those that there are
	g.Expect(err).NotTo(HaveOccurred())
	var (
		ahead  []string
		seen   int
		done   sync.WaitGroup
		ending = make(chan struct{})
	)
	done.Go(func() {
		for {
			select {
			case event := <-watched.ResultChan():
				machine, ok := event.Object.(*clusterv1.Machine)
				if !ok {
					ahead = append(ahead, fmt.Sprintf("the watch ended early: %v", event))
					return
				}
				if event.Type == watch.Added {
					seen++
					ahead = append(ahead, c.ahead(machine)...)
				}
			case <-ending:
				return
			}
		}
	})
	return func() []string {
		close(ending)
		done.Wait()
		watched.Stop()
		g.Expect(seen).To(BeNumerically(">", before), "machines that were made meanwhile")
		return ahead
	}
}

// ahead reports a Machine that is newer than the guest's API server. While that is being replaced, it waits for the new one.
func (c *cluster) ahead(machine *clusterv1.Machine) []string {
	running := c.world.Guest(c.name).Version()
	kubelet, err := utilversion.ParseGeneric(machine.Spec.Version)
	if err == nil && !kubelet.GreaterThan(utilversion.MustParseGeneric(running)) {
		return nil
	}
	return []string{fmt.Sprintf("%s has %q, the API server %s", machine.Name, machine.Spec.Version, running)}
}

// expectHeld watches that no node goes, nor is marked to go. What a node is disrupted by in between, the test's own watch sees.
func (c *cluster) expectHeld(t *testing.T, nodes []string, long time.Duration) {
	t.Helper()
	NewWithT(t).Consistently(func(g Gomega, ctx context.Context) {
		g.Expect(names(c.nodes(g, ctx))).To(ConsistOf(nodes))
		for _, claim := range c.nodeClaims(g, ctx) {
			g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeDrifted)).To(BeFalse(), claim.Name)
		}
	}).WithContext(t.Context()).WithTimeout(long).WithPolling(interval).Should(Succeed())
}

// waitResolved waits until Karpenter has been rolled out as the HostedCluster declares and gives new nodes a version. Each look begins with prepare.
func (c *cluster) waitResolved(t *testing.T, kubernetes string, prepare ...func()) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		for _, prepare := range prepare {
			prepare()
		}
		hosted := c.hostedCluster(g, ctx)
		g.Expect(hosted.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1beta1.AutoNodeEnabled), HaveField("ObservedGeneration", hosted.Generation), HaveField("Status", metav1.ConditionTrue))))
		deployment := c.karpenter(t)
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect(deployment.Status.UpdatedReplicas).To(Equal(deployment.Status.Replicas))
		g.Expect(deployment.Status.UnavailableReplicas).To(BeZero())
		class := c.defaultClass(g, ctx)
		g.Expect(class.Status.Version).To(Equal(strings.TrimPrefix(kubernetes, "v")))
		g.Expect(class.Annotations[v1alpha1.RolloutAnnotation]).To(Equal(rolloutOf(deployment)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// rolloutOf is the ROLLOUT_ID of Karpenter's Deployment.
func rolloutOf(deployment *appsv1.Deployment) string {
	for _, container := range deployment.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if variable.Name == "ROLLOUT_ID" {
				return variable.Value
			}
		}
	}
	return ""
}

// closing is a maintenance window that is open for four to five minutes more, and when it closes: new nodes get the version, and no
// replacement begins any more.
func closing(now time.Time) (*v1beta1.MaintenanceWindow, time.Time) {
	const long = 15 * time.Minute
	opened := now.UTC().Truncate(time.Minute).Add(-10 * time.Minute)
	return &v1beta1.MaintenanceWindow{
		Schedule: fmt.Sprintf("%d %d * * *", opened.Minute(), opened.Hour()), Duration: scalar.Duration{Duration: long}, TimeZone: "UTC",
	}, opened.Add(long)
}

// missingRelease names a payload that isn't in the registry.
func missingRelease() string {
	repository, _, _ := strings.Cut(world.Release(initialRelease), "@")
	return repository + ":missing"
}

// karpenter reads Karpenter's Deployment.
func (c *cluster) karpenter(t *testing.T) *appsv1.Deployment {
	t.Helper()
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}
	NewWithT(t).Expect(c.management.Get(t.Context(), key, deployment)).To(Succeed())
	return deployment
}

// karpenterPods lists the pods of Karpenter's Deployment.
func (c *cluster) karpenterPods(g Gomega, ctx context.Context) []corev1.Pod {
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}
	g.Expect(c.management.Get(ctx, key, deployment)).To(Succeed())
	pods := &corev1.PodList{}
	g.Expect(c.management.List(ctx, pods, client.InNamespace(c.namespace()),
		client.MatchingLabels(deployment.Spec.Selector.MatchLabels))).To(Succeed())
	return pods.Items
}
