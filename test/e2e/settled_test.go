// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// storyPool is the NodePool of the stories that take an inventory.
const storyPool = "general"

// inventory is every object of a cluster and its guest that somebody has to remove again: "guest ClusterRole autonode:karpenter".
type inventory []string

// takeInventory lists both clusters; of the management cluster, what belongs to this hosted cluster and what belongs to none.
func (c *cluster) takeInventory(g Gomega, ctx context.Context) inventory {
	all := slices.Concat(
		listAll(g, ctx, "management", c.management, c.world.Management().RESTConfig(), c.namespace(), c.key().Namespace),
		listAll(g, ctx, "guest", c.guest, c.world.Guest(c.name).RESTConfig()),
	)
	slices.Sort(all)
	return all
}

// passing kinds come and go with others, or by their own clock.
var passing = []string{
	"APIService", "Event", "Pod", "ReplicaSet", "Endpoints", "EndpointSlice", "CertificateSigningRequest", "ComponentStatus", "PodMetrics", "NodeMetrics",
}

// listAll lists all that has no namespace, and what is in the namespaces, or in any if none is named.
func listAll(g Gomega, ctx context.Context, name string, reader client.Reader, config *rest.Config, namespaces ...string) inventory {
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	kinds, err := discovered.ServerPreferredResources()
	g.Expect(err).NotTo(HaveOccurred())
	var all inventory
	for _, group := range kinds {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		g.Expect(err).NotTo(HaveOccurred())
		for _, kind := range group.APIResources {
			if !slices.Contains(kind.Verbs, "list") || !slices.Contains(kind.Verbs, "delete") || slices.Contains(passing, kind.Kind) {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(gv.WithKind(kind.Kind + "List"))
			err := reader.List(ctx, list)
			if apierrors.IsNotFound(err) {
				continue // the kind goes away just now
			}
			g.Expect(err).NotTo(HaveOccurred(), "%s in %s", kind.Kind, name)
			for _, object := range list.Items {
				if kind.Namespaced && len(namespaces) > 0 && !slices.Contains(namespaces, object.Namespace) || !accountable(kind.Kind, &object) {
					continue
				}
				all = append(all, strings.Join([]string{name, kind.Kind, strings.TrimPrefix(object.Namespace+"/"+object.Name, "/")}, " "))
			}
		}
	}
	return all
}

// accountable is false for what Kubernetes and Cluster API keep for a time of their own.
func accountable(kind string, object client.Object) bool {
	switch kind {
	case "Lease": // kubelets', and whose leader's isn't known
		return object.GetNamespace() != corev1.NamespaceNodeLease && !strings.HasPrefix(object.GetName(), "apiserver-")
	case "Secret": // kubeadm's tokens expire
		return !strings.HasPrefix(object.GetName(), "bootstrap-token-")
	}
	return true
}

// without leaves out what a test knows of.
func (i inventory) without(known func(object string) bool) inventory {
	return slices.DeleteFunc(slices.Clone(i), known)
}

// staysInGuest is what turning AutoNode off leaves there: the admin's NodePools, and the definitions that hold them.
func staysInGuest(object string) bool {
	return strings.HasPrefix(object, "guest NodePool ") || strings.HasPrefix(object, "guest CustomResourceDefinition ")
}

// waitSettled waits for what has to hold after every fault, with AutoNode on: AutoNode is on, as the payload says, and nothing is
// waited for; each NodeClaim has one Machine and one Node, and nobody else has one; and besides nodes there is what was there
// before the fault, no more and no less.
func (c *cluster) waitSettled(t *testing.T, release string, want inventory) {
	t.Helper()
	c.waitEnabled(t, release)
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		hosted := c.hostedCluster(g, ctx)
		for _, condition := range []string{v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable, v1beta1.AutoNodeEnabled} {
			g.Expect(hosted.Status.Conditions).To(ContainElement(And(
				HaveField("Type", condition), HaveField("Status", metav1.ConditionTrue))), condition)
		}
		// Nodes wait for the guest's API server, which these stories leave as it is.
		if nodes := c.condition(g, ctx, v1beta1.NodesUpToDate); nodes.Reason != v1beta1.ControlPlaneOlderReason {
			g.Expect(hosted.Status.AutoNode).To(And(HaveField("State", v1beta1.AutoNodeStateEnabled), HaveField("Message", BeEmpty())))
		}
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal(release))
		c.expectOneEach(g, ctx)
		g.Expect(c.takeInventory(g, ctx).without(ofNodes)).To(Equal(want.without(ofNodes)), "what is there, but for nodes")
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
}

// ofNodes are the objects that come and go with a node, which waitSettled counts, and a story's own, which it removes.
func ofNodes(object string) bool {
	_, object, _ = strings.Cut(object, " ") // the cluster
	kind, name, _ := strings.Cut(object, " ")
	namespace, name, namespaced := strings.Cut(name, "/")
	switch kind {
	case "Machine", "KwokMachine", "KubeadmConfig", "Node", "NodeClaim", "NodePool", "CSINode":
		return true
	case "Secret": // a machine's bootstrap data, named after the machine, and that after the NodePool
		return strings.HasPrefix(name, storyPool+"-")
	}
	return namespaced && namespace == metav1.NamespaceDefault
}

// expectOneEach expects one Machine and one Node for each NodeClaim, and no other.
func (c *cluster) expectOneEach(g Gomega, ctx context.Context) {
	claims, machines := c.nodeClaims(g, ctx), map[string]int{}
	for _, machine := range c.machines(g, ctx) {
		machines[machine.Labels[v1alpha1.NodeClaimUIDLabel]]++
	}
	nodes := map[string]int{}
	for _, node := range c.nodes(g, ctx) {
		nodes[node.Name]++
	}
	wantMachines, wantNodes := map[string]int{}, map[string]int{}
	for _, claim := range claims {
		wantMachines[string(claim.UID)]++
		wantNodes[claim.Status.NodeName]++
	}
	g.Expect(machines).To(Equal(wantMachines), "Machines by NodeClaim")
	g.Expect(nodes).To(Equal(wantNodes), "Nodes of NodeClaims")
}
