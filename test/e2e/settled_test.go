// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// testPool is the NodePool of the tests that take an inventory.
const testPool = "general"

// inventory has every object of a cluster and its guest that has to be removed again: "guest ClusterRole
// autonode:karpenter".
type inventory []string

// takeInventory lists both clusters; of the management cluster, what belongs to this hosted cluster and what belongs to none.
func (c *cluster) takeInventory(g Gomega, ctx context.Context) inventory {
	const hostedCluster = "management HostedCluster "
	all := slices.Concat(
		listAll(g, ctx, "management", c.management, c.world.Management().RESTConfig(), c.namespace(), c.key().Namespace).without(func(object string) bool {
			return strings.HasPrefix(object, hostedCluster) && object != hostedCluster+c.key().String() // another test may replace its own
		}),
		listAll(g, ctx, "guest", c.guest, c.world.Guest(c.name).RESTConfig()),
	)
	slices.Sort(all)
	return all
}

// untouched is what is there before AutoNode was ever on, once nothing comes any more: Kubernetes itself makes some of it after its start.
func (c *cluster) untouched(t *testing.T) (now inventory) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		before := now
		now = c.takeInventory(g, ctx)
		g.Expect(now).To(Equal(before))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(2 * time.Second).Should(Succeed())
	return now
}

// expectInventory waits until both clusters hold what they did then, no more and no less, but for what a test allows.
func (c *cluster) expectInventory(t *testing.T, want inventory, known func(object string) bool) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.takeInventory(g, ctx).without(known).differences(want.without(known))).To(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
}

// passing kinds go by their own clock.
var passing = []string{"Event", "CertificateSigningRequest", "ComponentStatus", "PodMetrics", "NodeMetrics"}

// dependent kinds come and go with others, under names of their own. Where the others have gone, so have they.
var dependent = []string{"APIService", "Pod", "ReplicaSet", "Endpoints", "EndpointSlice"}

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
				all = append(all, strings.Join([]string{name, kindOf(kind.Kind, &object), strings.TrimPrefix(object.Namespace+"/"+object.Name, "/")}, " "))
			}
		}
	}
	return all
}

// bootstrapData is what the inventory calls the Secret of a machine's bootstrap data, which goes with the machine.
const bootstrapData = "BootstrapData"

func kindOf(kind string, object client.Object) string {
	if kind == "Secret" && slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.Kind == "KubeadmConfig" || o.Kind == "KwokMachine" // who rendered it: the bootstrap provider, or Karpenter
	}) {
		return bootstrapData
	}
	return kind
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

// without leaves out what a test allows.
func (i inventory) without(known func(object string) bool) inventory {
	return slices.DeleteFunc(slices.Clone(i), known)
}

// differences are what is missing and what is too much, compared with another inventory: thousands of objects are too many to print.
func (i inventory) differences(want inventory) []string {
	var all []string
	for _, object := range want {
		if !slices.Contains(i, object) {
			all = append(all, "missing: "+object)
		}
	}
	for _, object := range i {
		if !slices.Contains(want, object) {
			all = append(all, "too much: "+object)
		}
	}
	return all
}

// staysInGuest is what turning AutoNode off leaves there: the admin's NodePools, the records of nodes, and the definitions that hold them.
func staysInGuest(object string) bool {
	return strings.HasPrefix(object, "guest NodePool ") || strings.HasPrefix(object, "guest CustomResourceDefinition ") ||
		strings.HasPrefix(object, "guest NodeRecord ") ||
		strings.HasPrefix(object, "guest APIService ")
}

// endsSettled has a test of a fault end with what has to hold after every fault: see waitSettled. The test calls it at its beginning, so that it
// comes after all that the test does and takes back, and before its workloads go. A test that failed has shown enough.
func (c *cluster) endsSettled(t *testing.T, release string, want inventory) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			c.waitSettled(t, release, want)
		}
	})
}

// endsOff is endsSettled for a test that ends with AutoNode off, or with a new HostedCluster: see waitSettledOff.
func (c *cluster) endsOff(t *testing.T, want inventory) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			c.waitSettledOff(t, want)
		}
	})
}

// waitSettledOff is waitSettled where AutoNode is off: nothing of it runs, nothing holds the HostedCluster, no node nor any object that one consists
// of is left, and there is what was there before the fault, no more and no less.
func (c *cluster) waitSettledOff(t *testing.T, want inventory) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		hosted := c.hostedCluster(g, ctx)
		g.Expect(hosted.Spec.AutoNode).To(BeNil())
		g.Expect(hosted.Finalizers).To(BeEmpty())
		if enabled := c.condition(g, ctx, v1beta1.AutoNodeEnabled); enabled.Type != "" { // a new one may have no operator yet
			g.Expect(enabled.Reason).To(Equal(v1beta1.AutoNodeNotConfiguredReason))
		}
		g.Expect(c.karpenterObjects(g, ctx)).To(BeEmpty())
		g.Expect(c.leftovers(g, ctx)).To(BeEmpty())
		g.Expect(c.takeInventory(g, ctx).without(ofNodes).differences(want.without(ofNodes))).To(BeEmpty(), "what is there, but for nodes")
	}).WithContext(context.WithoutCancel(t.Context())).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
}

// waitSettled waits for what has to hold after every fault with AutoNode on: AutoNodeEnabled is True with the payload's
// version; each NodeClaim has one Machine and one Node, and there are no others; and all other objects are the same as
// before the fault.
func (c *cluster) waitSettled(t *testing.T, release string, want inventory) {
	t.Helper()
	c.waitEnabled(t, release)
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		hosted := c.hostedCluster(g, ctx)
		for _, condition := range []string{v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable, v1beta1.AutoNodeEnabled} {
			g.Expect(hosted.Status.Conditions).To(ContainElement(And(
				HaveField("Type", condition), HaveField("Status", metav1.ConditionTrue))), condition)
		}
		// Nodes wait for the guest's API server, which these tests leave as it is.
		if nodes := c.condition(g, ctx, v1beta1.NodesUpToDate); nodes.Reason != v1beta1.ControlPlaneOlderReason {
			g.Expect(hosted.Status.AutoNode).To(And(HaveField("State", v1beta1.AutoNodeStateEnabled), HaveField("Message", BeEmpty())))
		}
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal(release))
		c.expectOneEach(g, ctx)
		g.Expect(c.takeInventory(g, ctx).without(ofNodes).differences(want.without(ofNodes))).To(BeEmpty(), "what is there, but for nodes")
	}).WithContext(context.WithoutCancel(t.Context())).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
}

// ofNodes are the objects that come and go with a node, which waitSettled counts, and a test's own, which it removes.
func ofNodes(object string) bool {
	kind := strings.Fields(object)[1]
	switch kind {
	case "Machine", "KwokMachine", "KubeadmConfig", bootstrapData, "Node", "NodeClaim", "NodePool", "CSINode", "NodeRecord":
		return true
	}
	return slices.Contains(dependent, kind) || ofTest(object)
}

// ofTest are objects in the guest's namespace default: a test's workload.
func ofTest(object string) bool {
	return strings.HasPrefix(strings.Fields(object)[2], metav1.NamespaceDefault+"/")
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

// disable turns AutoNode off, and waits until nothing of it runs.
func (c *cluster) disable(t *testing.T, ctx context.Context) {
	t.Helper()
	g := NewWithT(t)
	hosted := c.hostedCluster(g, ctx)
	before := hosted.DeepCopy()
	hosted.Spec.AutoNode = nil
	g.Expect(c.management.Patch(ctx, hosted, client.MergeFrom(before))).To(Succeed())
	c.waitDisabled(t, ctx)
}

// waitDisabled waits until nothing of AutoNode runs.
func (c *cluster) waitDisabled(t *testing.T, ctx context.Context) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.AutoNodeNotConfiguredReason)))
		g.Expect(c.karpenterObjects(g, ctx)).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// waitGone waits until the HostedCluster doesn't exist any more.
func (c *cluster) waitGone(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		err := c.management.Get(ctx, c.key(), &v1beta1.HostedCluster{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "HostedCluster: %v", err)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// karpenterObjects names what makes Karpenter up in the control-plane namespace.
func (c *cluster) karpenterObjects(g Gomega, ctx context.Context) []string {
	ours := client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}
	if c.shared != "" {
		ours[v1beta1.HostedClusterLabel] = c.name
	}
	return c.list(g, ctx, c.management, []client.ListOption{client.InNamespace(c.namespace()), ours}, &appsv1.DeploymentList{}, &corev1.ServiceAccountList{}, &corev1.SecretList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}, &v1beta1.ControlPlaneComponentList{})
}

func (c *cluster) list(g Gomega, ctx context.Context, reader client.Reader, options []client.ListOption, lists ...client.ObjectList) []string {
	var found []string
	for _, list := range lists {
		err := reader.List(ctx, list, options...)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // the kind itself has gone
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(meta.EachListItem(list, func(object runtime.Object) error {
			found = append(found, fmt.Sprintf("%T %s", object, object.(client.Object).GetName()))
			return nil
		})).To(Succeed())
	}
	return found
}
