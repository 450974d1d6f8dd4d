// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/clusterctl"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// moveLabel has clusterctl move an object that nothing owns.
const moveLabel = "clusterctl.cluster.x-k8s.io/move="

// TestMove: a hosted cluster with running nodes moves to another management cluster, by the steps of docs/platform/clusterctl.md. No node is replaced, and
// the operator and the Karpenter of the new management cluster go on with it. Each management cluster has a world of its own; the guest's control
// plane stays where it runs.
func TestMove(t *testing.T) {
	t.Parallel()
	clusterPool.borrow(t, 3) // two management clusters and the guest
	from := startOwnWorld(t, localworld.Config{Guests: []string{blue}})
	to := startOwnWorld(t, localworld.Config{Adopted: []*controlplane.Cluster{from.Guest(blue)}})
	before, after := newCluster(t, from, blue), newCluster(t, to, blue)
	t.Cleanup(func() {
		if t.Failed() {
			before.describe(t)
			after.describe(t)
		}
	})
	before.leavesNoTrace(t)
	after.leavesNoTrace(t)

	g := NewWithT(t)
	before.enable(t, initialRelease)
	before.nodePool(t, "general")
	before.workload(t, "web", 3, "100m", apart)
	before.waitRunning(t, "web")
	before.waitNodeRefs(t)
	nodes, claims := nodeUIDs(before.nodes(g, t.Context())), claimUIDs(before.nodeClaims(g, t.Context()))
	disrupted, drifted := before.watchDisruptions(t), before.watchDrift(t)

	t.Run("When clusterctl moves a paused hosted cluster, its Machines should be in the new management cluster, and none in the old one", func(t *testing.T) {
		g := NewWithT(t)
		before.kubectl(t, "-n", before.namespace(), "label", "kwokmachinetemplates,kubeadmconfigtemplates", "--all", moveLabel)
		before.kubectl(t, "-n", hosting.Namespace, "label", "secret", hosting.PullSecret, moveLabel)
		before.kubectl(t, "-n", hosting.Namespace, "patch", "anhc", before.name, "--type", "merge", "--patch", `{"spec":{"pausedUntil":"true"}}`)
		before.kubectl(t, "-n", before.namespace(), "wait", "pod", "--selector", "app.kubernetes.io/name=karpenter", "--for=delete", "--timeout=5m")
		for _, namespace := range []string{before.namespace(), hosting.Namespace} {
			g.Expect(clusterctl.Run(t.Context(), filepath.Join("..", ".."), t.TempDir(), "move", "--namespace", namespace,
				"--kubeconfig", from.Kubeconfig(localworld.Management), "--to-kubeconfig", to.Kubeconfig(localworld.Management))).To(Succeed())
		}
		g.Expect(after.machines(g, t.Context())).To(HaveLen(len(claims)))
		after.kubectl(t, "-n", hosting.Namespace, "patch", "anhc", after.name, "--type", "merge", "--patch", `{"spec":{"pausedUntil":null}}`)
		after.waitEnabled(t, initialRelease)
	})

	t.Run("When it was moved, Karpenter of the new management cluster should know every node, and replace none", func(t *testing.T) {
		after.waitNodeRefs(t)
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds.
		NewWithT(t).Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(nodeUIDs(after.nodes(g, ctx))).To(Equal(nodes))
			g.Expect(claimUIDs(after.nodeClaims(g, ctx))).To(Equal(claims))
			after.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
		after.waitRunning(t, "web")
		for _, node := range after.nodes(NewWithT(t), t.Context()) {
			NewWithT(t).Expect(node.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))), node.Name)
		}
		NewWithT(t).Expect(drifted()).To(BeEmpty(), "nodes that drifted, and why")
		expectUndisturbed(t, disrupted)
	})

	t.Run("When the old management cluster was left, nothing of the hosted cluster should be there", func(t *testing.T) {
		before.kubectl(t, "-n", before.namespace(), "delete", "ancpc", "karpenter", "--ignore-not-found")
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(before.machines(g, ctx)).To(BeEmpty())
			g.Expect(before.karpenterObjects(g, ctx)).To(BeEmpty())
			for _, object := range []client.Object{&v1beta1.HostedCluster{}, &clusterv1.Cluster{}} {
				key := before.key()
				if _, ok := object.(*clusterv1.Cluster); ok {
					key.Namespace = before.namespace()
				}
				err := before.management.Get(ctx, key, object)
				g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T: %v", object, err)
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When pods come and go afterwards, nodes should join and drain through the new management cluster", func(t *testing.T) {
		g := NewWithT(t)
		after.scale(t, "web", 4)
		after.waitRunning(t, "web")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(after.nodes(g, ctx)).To(HaveLen(len(nodes) + 1))
			after.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		now := nodeUIDs(after.nodes(g, t.Context()))
		for name, uid := range nodes {
			g.Expect(now).To(HaveKeyWithValue(name, uid))
		}
		after.scale(t, "web", 0)
		after.waitNothingLeft(t)
	})
}

// kubectl runs it in the management cluster, as an admin.
func (c *cluster) kubectl(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.world.Kubectl(), append([]string{"--kubeconfig", c.world.Kubeconfig(localworld.Management)}, args...)...)
	out, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "kubectl %s: %s", strings.Join(args, " "), out)
}

// waitNodeRefs waits until Cluster API has the Node of each Machine: until then clusterctl refuses to move them.
func (c *cluster) waitNodeRefs(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		machines := c.machines(g, ctx)
		g.Expect(machines).NotTo(BeEmpty())
		g.Expect(machines).To(HaveEach(HaveField("Status.NodeRef.Name", Not(BeEmpty()))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func nodeUIDs(nodes []corev1.Node) map[string]types.UID {
	uids := map[string]types.UID{}
	for _, node := range nodes {
		uids[node.Name] = node.UID
	}
	return uids
}

func claimUIDs(claims []karpv1.NodeClaim) map[string]types.UID {
	uids := map[string]types.UID{}
	for _, claim := range claims {
		uids[claim.Name] = claim.UID
	}
	return uids
}
