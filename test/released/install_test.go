// SPDX-License-Identifier: Apache-2.0

package released

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/disruption"
	"github.com/autonode-io/autonode/test/workload"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
)

const (
	// eventually bounds what needs processes to start or nodes to join. It is no claim about speed.
	eventually = 6 * time.Minute
	interval   = 200 * time.Millisecond

	operatorName = "autonode-operator"
	web          = "web"
	nodePool     = "general"

	// everywhere are the kinds that an installation has in the whole cluster.
	everywhere = "customresourcedefinitions,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces"
)

// installation is one way to install, and both clusters.
type installation struct {
	way
	autonode          tool
	management, guest client.WithWatch
	// changes of the HostedCluster that an operator had to see.
	changes int
}

func TestRelease(t *testing.T) {
	earlier, later := releases(t)
	management, guests := newClient(t, world.Management().RESTConfig()), newClient(t, world.Guest(guest).RESTConfig())
	makeCredentials(t, management, hosting.Namespace, hosting.PullSecret)
	autonode := newTool(t)
	for _, way := range ways(t, autonode) {
		passed := t.Run(way.name, func(t *testing.T) {
			s := &installation{way: way, autonode: autonode, management: management, guest: guests}
			t.Cleanup(func() { s.describe(t) })
			s.run(t, earlier, later)
		})
		if !passed {
			return // what it left isn't a management cluster on which AutoNode has never been
		}
	}
}

// run runs the steps of a release's life. A step needs those before it.
func (s *installation) run(t *testing.T, earlier, later made) {
	var nodes sets.Set[string]
	var karpenter map[types.UID]int32
	var end func() (int, []string)
	step := func(name string, do func(t *testing.T)) {
		if !t.Run(name, do) {
			t.FailNow()
		}
	}
	step("When a release is installed, AutoNode should give a hosted cluster its nodes", func(t *testing.T) {
		makeCredentials(t, s.management, localworld.OperatorNamespace, pullSecret)
		s.install(t, earlier)
		s.waitOperator(t, earlier)
		s.enable(t, earlier)
		s.runWorkload(t, 2)
		nodes = s.nodes(NewWithT(t), t.Context())
		NewWithT(t).Expect(nodes).To(HaveLen(2))
		s.check(t, earlier)
	})
	step("When it is upgraded, only the default release's Karpenter should follow, no node should be replaced, and the next should come", func(t *testing.T) {
		g := NewWithT(t)
		s.waitObserved(t)
		karpenter = s.settledKarpenter(t)
		var err error
		end, err = disruption.Watch(context.WithoutCancel(t.Context()), s.guest)
		g.Expect(err).NotTo(HaveOccurred())
		s.upgrade(t, later)
		s.waitOperator(t, later)
		s.waitObserved(t)
		if s.turnOn != nil {
			s.waitEnabled(t, later)
			restarted := s.settledKarpenter(t)
			for pod := range karpenter {
				g.Expect(restarted).NotTo(HaveKey(pod), "the Karpenter of the release before")
			}
			karpenter = restarted
		}
		g.Expect(s.karpenter(g, t.Context())).To(Equal(karpenter), "Karpenter's pods and their restarts")
		g.Expect(s.nodes(g, t.Context())).To(Equal(nodes))
		s.runWorkload(t, 3)
		g.Expect(s.nodes(g, t.Context()).IsSuperset(nodes)).To(BeTrue())
		nodes = s.nodes(g, t.Context())
		g.Expect(nodes).To(HaveLen(3))
		g.Expect(s.karpenter(g, t.Context())).To(Equal(karpenter), "Karpenter's pods and their restarts")
	})
	step("When the CRDs are deleted while there are nodes, the guard should refuse", func(t *testing.T) {
		_, err := command(t, nil, world.Kubectl(), "delete", "crd", "--selector", ours, "--timeout=1m")
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("drains the nodes of all hosted clusters"), ContainSubstring(v1beta1.ConfirmDeletionAnnotation))))
		kubectl(t, "get", "hostedclusters."+v1beta1.Group, guest, "--namespace", hosting.Namespace)
	})
	step("When the HostedCluster gets the payload of the new release, its Karpenter should run, on the same nodes", func(t *testing.T) {
		g := NewWithT(t)
		s.namePayload(t, later)
		s.waitEnabled(t, later)
		g.Expect(s.nodes(g, t.Context())).To(Equal(nodes))
		karpenter = s.settledKarpenter(t)
	})
	step("When it is uninstalled, the nodes and Karpenter should stay", func(t *testing.T) {
		g := NewWithT(t)
		s.remove(t, later)
		err := s.management.Get(t.Context(), client.ObjectKey{Namespace: localworld.OperatorNamespace, Name: operatorName}, &appsv1.Deployment{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the operator: %v", err)
		g.Expect(s.hostedCluster(g, t.Context()).DeletionTimestamp).To(BeNil())
		g.Expect(s.nodes(g, t.Context())).To(Equal(nodes))
		g.Expect(s.karpenter(g, t.Context())).To(Equal(karpenter), "Karpenter's pods and their restarts")
	})
	step("When it is installed again, it should go on with the same Karpenter and nodes", func(t *testing.T) {
		g := NewWithT(t)
		makeCredentials(t, s.management, localworld.OperatorNamespace, pullSecret)
		s.install(t, later)
		s.waitOperator(t, later)
		s.waitObserved(t)
		g.Expect(s.nodes(g, t.Context())).To(Equal(nodes))
		g.Expect(s.karpenter(g, t.Context())).To(Equal(karpenter), "Karpenter's pods and their restarts")
		s.check(t, later)
		_, disrupted := end()
		g.Expect(disrupted).To(BeEmpty(), "nodes that were disrupted at any time")
	})
	step("When the HostedClusters are deleted and then everything, nothing of AutoNode should be left", func(t *testing.T) {
		g := NewWithT(t)
		kubectl(t, "delete", "hostedclusters."+v1beta1.Group, "--all", "--all-namespaces", "--timeout=6m")
		g.Expect(s.nodes(g, t.Context())).To(BeEmpty())
		machines := &clusterv1.MachineList{}
		g.Expect(s.management.List(t.Context(), machines)).To(Succeed())
		g.Expect(machines.Items).To(BeEmpty())
		s.clear(t, later)
		s.expectNothing(t)
	})
}

// makeCredentials makes a namespace, if it isn't there, with the registry's credentials.
func makeCredentials(t *testing.T, management client.Client, namespace, name string) {
	t.Helper()
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: world.Registry().DockerConfigJSON()},
		},
	} {
		NewWithT(t).Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), object))).To(Succeed())
	}
}

// waitOperator waits until the operator of a release runs, and no other.
func (s *installation) waitOperator(t *testing.T, r made) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		deployment := &appsv1.Deployment{}
		g.Expect(s.management.Get(ctx, client.ObjectKey{Namespace: localworld.OperatorNamespace, Name: operatorName}, deployment)).To(Succeed())
		_, digest, _ := strings.Cut(deployment.Spec.Template.Spec.Containers[0].Image, "@")
		g.Expect(r.image(g, operatorName)).To(HaveSuffix("@" + digest))
		status := deployment.Status
		g.Expect(status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect([]int32{status.UpdatedReplicas, status.AvailableReplicas, status.Replicas}).To(HaveEach(*deployment.Spec.Replicas))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// enable turns AutoNode on in the way's manner, and waits until Karpenter of the release runs.
func (s *installation) enable(t *testing.T, r made) {
	t.Helper()
	g := NewWithT(t)
	reason := v1beta1.AsExpectedReason
	if s.turnOn != nil {
		reason = v1beta1.DefaultReleaseReason
		s.turnOn(t, r)
	} else {
		g.Expect(s.management.Create(t.Context(), &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: hosting.Namespace, Name: guest},
			Spec: v1beta1.HostedClusterSpec{
				Release: v1beta1.Release{Image: r.image(g, "release")}, PullSecret: &corev1.LocalObjectReference{Name: hosting.PullSecret},
				AutoNode: hosting.AutoNode(hosting.TemplatePool, hosting.BootstrapTemplate),
			},
		})).To(Succeed())
	}
	s.waitEnabled(t, r)
	g.Expect(meta.FindStatusCondition(s.hostedCluster(g, t.Context()).Status.Conditions, v1beta1.ReleaseResolved)).To(HaveValue(HaveField("Reason", reason)))
}

// namePayload gives the HostedCluster the payload of a release.
func (s *installation) namePayload(t *testing.T, r made) {
	t.Helper()
	g := NewWithT(t)
	hosted := s.hostedCluster(g, t.Context())
	from := hosted.DeepCopy()
	hosted.Spec.Release.Image = r.image(g, "release")
	g.Expect(s.management.Patch(t.Context(), hosted, client.MergeFrom(from))).To(Succeed())
}

// check runs the release's `autonode check` for the management cluster and for the hosted cluster, which has to find nothing wrong.
func (s *installation) check(t *testing.T, r made) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) { // an upgrade of nodes ends after that of Karpenter
		for _, args := range [][]string{{"check"}, {"check", hosting.Namespace + "/" + guest}} {
			g.Expect(s.autonode(t, r, args...)).To(ContainSubstring(" checks: no failures"))
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
}

// waitEnabled waits until the Karpenter of a release runs, by default or by its payload, and the default node class is ready.
func (s *installation) waitEnabled(t *testing.T, r made) {
	t.Helper()
	g := NewWithT(t)
	version := fmt.Sprintf("%s+autonode.%s", localworld.InitialRelease, r.version[1:])
	g.Eventually(func(g Gomega, ctx context.Context) {
		hosted := s.hostedCluster(g, ctx)
		enabled := meta.FindStatusCondition(hosted.Status.Conditions, v1beta1.AutoNodeEnabled)
		g.Expect(enabled).To(HaveValue(And(HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", hosted.Generation))), "%v", hosted.Status.Conditions)
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(s.management.Get(ctx, client.ObjectKey{Namespace: hosting.ControlPlaneNamespace(guest), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal(version))
		class := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(s.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
		g.Expect(class.StatusConditions().IsTrue("Ready")).To(BeTrue(), "default node class: %v", class.Status.Conditions)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func (s *installation) hostedCluster(g Gomega, ctx context.Context) *v1beta1.HostedCluster {
	hosted := &v1beta1.HostedCluster{}
	g.Expect(s.management.Get(ctx, client.ObjectKey{Namespace: hosting.Namespace, Name: guest}, hosted)).To(Succeed())
	return hosted
}

// waitObserved changes the HostedCluster, and waits until the operator that runs now has seen it: what the status said before may be old.
func (s *installation) waitObserved(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	s.changes++
	hosted := s.hostedCluster(g, t.Context())
	from := hosted.DeepCopy()
	hosted.Spec.NodeDrain = &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: time.Hour + time.Duration(s.changes)*time.Minute}}
	g.Expect(s.management.Patch(t.Context(), hosted, client.MergeFrom(from))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		hosted := s.hostedCluster(g, ctx)
		g.Expect(hosted.Status.ObservedGeneration).To(Equal(hosted.Generation))
		g.Expect(meta.IsStatusConditionTrue(hosted.Status.Conditions, v1beta1.AutoNodeEnabled)).To(BeTrue(), "%v", hosted.Status.Conditions)
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(s.management.Get(ctx, client.ObjectKey{Namespace: hosting.ControlPlaneNamespace(guest), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.ObservedGeneration).To(Equal(component.Generation))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// runWorkload runs that many pods, each on a node of its own.
func (s *installation) runWorkload(t *testing.T, replicas int32) {
	t.Helper()
	g := NewWithT(t)
	pool, deployment := workload.NodePool(nodePool), workload.Deployment(web, replicas, "100m", workload.Apart)
	for _, object := range []client.Object{pool, deployment} {
		g.Expect(client.IgnoreAlreadyExists(s.guest.Create(t.Context(), object))).To(Succeed())
	}
	scale := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	g.Expect(s.guest.Patch(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: web}}, scale)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		workload.ExpectRunning(g, ctx, s.guest, web)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// nodes are the names of Karpenter's nodes.
func (s *installation) nodes(g Gomega, ctx context.Context) sets.Set[string] {
	list := &corev1.NodeList{}
	g.Expect(s.guest.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey})).To(Succeed())
	names := sets.New[string]()
	for _, node := range list.Items {
		names.Insert(node.Name)
	}
	return names
}

// settledKarpenter waits until Karpenter is rolled out and the pods before have gone. It returns what karpenter does.
func (s *installation) settledKarpenter(t *testing.T) (pods map[types.UID]int32) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		deployment := &appsv1.Deployment{}
		g.Expect(s.management.Get(ctx, client.ObjectKey{Namespace: hosting.ControlPlaneNamespace(guest), Name: v1beta1.KarpenterComponent}, deployment)).To(Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect([]int32{deployment.Status.UpdatedReplicas, deployment.Status.AvailableReplicas}).To(HaveEach(*deployment.Spec.Replicas))
		pods = s.karpenter(g, ctx)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	return pods
}

// karpenter has Karpenter's pods, with the restarts of each.
func (s *installation) karpenter(g Gomega, ctx context.Context) map[types.UID]int32 {
	list := &corev1.PodList{}
	g.Expect(s.management.List(ctx, list, client.InNamespace(hosting.ControlPlaneNamespace(guest)), client.MatchingLabels{"app.kubernetes.io/name": "karpenter"})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(2), "Karpenter's pods")
	pods := map[types.UID]int32{}
	for _, pod := range list.Items {
		for _, container := range pod.Status.ContainerStatuses {
			pods[pod.UID] += container.RestartCount
		}
	}
	return pods
}

// expectNothing expects a management cluster on which AutoNode might never have been.
func (s *installation) expectNothing(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() string {
		return kubectl(t, "get", everywhere, "--selector", ours, "--output=name")
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).Should(BeEmpty())
	g.Eventually(func() string {
		return kubectl(t, "get", "deployments,roles,rolebindings,serviceaccounts,configmaps", "--all-namespaces", "--output=name")
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).ShouldNot(Or(ContainSubstring("autonode"), ContainSubstring("karpenter")))
	err := s.management.Get(t.Context(), client.ObjectKey{Name: localworld.OperatorNamespace}, &corev1.Namespace{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the operator's namespace: %v", err)
}

// describe prints what a person would look at after a failure.
func (s *installation) describe(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output=wide"}, {"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"get", "hostedclusters." + v1beta1.Group, "--all-namespaces", "--output=yaml"},
		{"get", everywhere, "--selector", ours, "--output=name"}, {"get", "namespace", localworld.OperatorNamespace, "--output=yaml"},
	} {
		out, err := command(t, nil, world.Kubectl(), args...)
		if err != nil {
			out = err.Error()
		}
		t.Logf("kubectl %s:\n%s", strings.Join(args, " "), out)
	}
}
