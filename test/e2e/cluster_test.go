// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/workload"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

const (
	// eventually is how long everything that must happen may take: no test depends on how fast the machine is. What is to
	// happen within a time is measured by a benchmark.
	eventually = 10 * time.Minute
	// rounds is how long a test looks for what must not happen: some of Karpenter's rounds.
	rounds   = 20 * time.Second
	interval = 100 * time.Millisecond
)

// cluster is one hosted cluster, seen from both sides.
type cluster struct {
	name       string
	world      *localworld.World
	management client.WithWatch
	guest      client.WithWatch
	// shared is the control-plane namespace if all guests of the world are in it, and their HostedClusters.
	shared string
}

// acquireCluster returns the guest of that name for one test, with AutoNode on. When the test ends, its NodePools and workloads
// are removed and its nodes have gone; when it failed, what a person would look at is written down first.
func acquireCluster(t *testing.T, name string) *cluster {
	t.Helper()
	c := acquireClusters(t, name)[0]
	c.enable(t, initialRelease)
	return c
}

// acquireClusters does not turn AutoNode on.
func acquireClusters(t *testing.T, names ...string) []*cluster {
	t.Helper()
	clusterPool.borrow(t, len(names), names...)
	clusters := make([]*cluster, len(names))
	for i, name := range names {
		c := newCluster(t, sharedWorld(t), name)
		t.Cleanup(func() {
			if t.Failed() {
				c.describe(t)
			}
			c.clear(t)
		})
		clusters[i] = c
	}
	return clusters
}

func newCluster(t *testing.T, world *localworld.World, name string) *cluster {
	t.Helper()
	g := NewWithT(t)
	management, err := newClient(world.Management().RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	guest, err := newClient(world.Guest(name).RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	return &cluster{name: name, world: world, management: management, guest: guest}
}

// operatorInGuest is the user of Cluster API's kubeconfig, which the operator has in a guest. The tests use another
// one.
const operatorInGuest = localworld.OperatorInGuest

// guestAs is a client of the guest's that is another user, with every right.
func (c *cluster) guestAs(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.world.Guest(c.name).RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters", "system:authenticated"}}
	as, err := newClient(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return as
}

// namespace is the control-plane namespace.
func (c *cluster) namespace() string { return cmp.Or(c.shared, hosting.ControlPlaneNamespace(c.name)) }

func (c *cluster) key() client.ObjectKey {
	return client.ObjectKey{Namespace: cmp.Or(c.shared, hosting.Namespace), Name: c.name}
}

// hostedCluster reads the HostedCluster; it fails the Eventually that g belongs to when it can't.
func (c *cluster) hostedCluster(g Gomega, ctx context.Context) *v1beta1.HostedCluster {
	hosted := &v1beta1.HostedCluster{}
	g.Expect(c.management.Get(ctx, c.key(), hosted)).To(Succeed())
	return hosted
}

// patch changes the HostedCluster's spec. A cleanup may call it.
func (c *cluster) patch(t *testing.T, change func(*v1beta1.HostedClusterSpec)) {
	t.Helper()
	g, ctx := NewWithT(t), context.WithoutCancel(t.Context())
	hosted := c.hostedCluster(g, ctx)
	before := hosted.DeepCopy()
	change(&hosted.Spec)
	g.Expect(c.management.Patch(ctx, hosted, client.MergeFrom(before))).To(Succeed())
}

func autoNode() *v1beta1.AutoNode {
	return hosting.AutoNode(hosting.TemplatePool, hosting.BootstrapTemplate)
}

// enable turns AutoNode on with a payload and waits until Karpenter runs and the default node class is ready.
func (c *cluster) enable(t *testing.T, release string) {
	t.Helper()
	image := c.world.Release(release)
	c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
		spec.Release.Image = image
		spec.AutoNode = autoNode()
		if c.shared != "" {
			spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.Bootstrap.ConfigTemplateRef.Name = hosting.TemplatePrefix(c.name) + hosting.BootstrapTemplate
		}
	})
	c.waitEnabled(t, release)
}

// waitEnabled waits until Karpenter of that payload runs and the default node class is ready.
func (c *cluster) waitEnabled(t *testing.T, release string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega, ctx context.Context) {
		hosted := c.hostedCluster(g, ctx)
		g.Expect(hosted.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1beta1.AutoNodeEnabled),
			HaveField("Status", metav1.ConditionTrue),
			HaveField("ObservedGeneration", hosted.Generation),
		)))
		g.Expect(hosted.Status.Version.Desired.Version).To(Equal(release))
		class := c.defaultClass(g, ctx)
		g.Expect(class.StatusConditions().IsTrue("Ready")).To(BeTrue(), "default node class: %v", class.Status.Conditions)
	}).WithContext(context.WithoutCancel(t.Context())).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// defaultClass is the node class that the operator makes.
func (c *cluster) defaultClass(g Gomega, ctx context.Context) *v1alpha1.ClusterAPINodeClass {
	class := &v1alpha1.ClusterAPINodeClass{}
	g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
	return class
}

// condition returns a condition of the HostedCluster, or an empty one.
func (c *cluster) condition(g Gomega, ctx context.Context, conditionType string) metav1.Condition {
	if found := meta.FindStatusCondition(c.hostedCluster(g, ctx).Status.Conditions, conditionType); found != nil {
		return *found
	}
	return metav1.Condition{}
}

type poolOption = func(*karpv1.NodePool)

// nodePool creates a NodePool of the default node class that consolidates at once.
func (c *cluster) nodePool(t *testing.T, name string, options ...poolOption) *karpv1.NodePool {
	t.Helper()
	pool := workload.NodePool(name, options...)
	NewWithT(t).Expect(c.guest.Create(t.Context(), pool)).To(Succeed())
	return pool
}

func require(key string, values ...string) poolOption { return workload.Require(key, values...) }

// expiring lets nodes go when they are that old.
func expiring(age time.Duration) poolOption {
	return func(pool *karpv1.NodePool) {
		pool.Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &age}
	}
}

func budget(nodes string) poolOption {
	return func(pool *karpv1.NodePool) {
		pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: nodes}}
	}
}

type workloadOption = func(*corev1.PodTemplateSpec)

// workload creates a Deployment in the namespace default.
func (c *cluster) workload(t *testing.T, name string, replicas int32, cpu string, options ...workloadOption) *appsv1.Deployment {
	t.Helper()
	deployment := workload.Deployment(name, replicas, cpu, options...)
	NewWithT(t).Expect(c.guest.Create(t.Context(), deployment)).To(Succeed())
	return deployment
}

// onPool lets a workload run on one NodePool's nodes only.
func onPool(name string) workloadOption {
	return func(template *corev1.PodTemplateSpec) {
		template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: name}
	}
}

// apart puts each pod of a workload on a node of its own.
func apart(template *corev1.PodTemplateSpec) { workload.Apart(template) }

// disruptionBudget makes a PodDisruptionBudget for a workload, until the test ends.
func (c *cluster) disruptionBudget(t *testing.T, workload string, spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	t.Helper()
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": workload}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: workload}, Spec: spec}
	NewWithT(t).Expect(c.guest.Create(t.Context(), budget)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), budget))).To(Succeed())
	})
	return budget
}

// scale changes the replicas of a Deployment.
func (c *cluster) scale(t *testing.T, name string, replicas int32) {
	t.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	NewWithT(t).Expect(c.guest.Patch(t.Context(), deployment, patch)).To(Succeed())
}

// waitRunning waits until every replica of the Deployment is available.
func (c *cluster) waitRunning(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		workload.ExpectRunning(g, ctx, c.guest, name)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// nodes lists Karpenter's nodes.
func (c *cluster) nodes(g Gomega, ctx context.Context) []corev1.Node {
	list := &corev1.NodeList{}
	g.Expect(c.guest.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey})).To(Succeed())
	return list.Items
}

func (c *cluster) nodeClaims(g Gomega, ctx context.Context) []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	g.Expect(c.guest.List(ctx, list)).To(Succeed())
	return list.Items
}

func (c *cluster) machines(g Gomega, ctx context.Context) []clusterv1.Machine {
	list := &clusterv1.MachineList{}
	g.Expect(c.management.List(ctx, list, c.ofNodes()...)).To(Succeed())
	return list.Items
}

// ofNodes selects the objects that the cluster's nodes consist of in the management cluster.
func (c *cluster) ofNodes() []client.ListOption {
	options := []client.ListOption{client.InNamespace(c.namespace())}
	if c.shared != "" {
		options = append(options, client.MatchingLabels{clusterv1.ClusterNameLabel: c.name})
	}
	return options
}

// leftovers names every object that a node consists of, in both clusters.
func (c *cluster) leftovers(g Gomega, ctx context.Context) []string {
	var names []string
	lists := map[client.ObjectList]client.Client{
		&corev1.NodeList{}:               c.guest,
		&clusterv1.MachineList{}:         c.management,
		&infrav1.KwokMachineList{}:       c.management,
		&bootstrapv1.KubeadmConfigList{}: c.management,
	}
	if c.guestHasKarpenter(g, ctx) {
		lists[&karpv1.NodeClaimList{}] = c.guest
	}
	for list, reader := range lists {
		var options []client.ListOption
		if reader == client.Client(c.management) {
			options = append(options, c.ofNodes()...)
		}
		g.Expect(reader.List(ctx, list, options...)).To(Succeed())
		g.Expect(meta.EachListItem(list, func(object runtime.Object) error {
			names = append(names, fmt.Sprintf("%T %s", object, object.(client.Object).GetName()))
			return nil
		})).To(Succeed())
	}
	slices.Sort(names)
	return names
}

// waitNothingLeft waits until no node, nor any object that one consists of, is left.
func (c *cluster) waitNothingLeft(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.leftovers(g, ctx)).To(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}
