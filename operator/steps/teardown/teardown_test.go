// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
	"github.com/autonode-io/autonode/operator/steps/policy"
	"github.com/autonode-io/autonode/operator/steps/teardown"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

const drainTimeout = 30 * time.Minute

// fixture is a hosted cluster in which AutoNode was on.
type fixture struct {
	*scope.Scope
	clusters *scopetest.Clusters
	step     *teardown.Teardown
	tokens   *access.Access
	clock    *clocktesting.FakePassiveClock
	events   *events.FakeRecorder
}

// definitions belong to another owner in every test: an API server takes up to minutes to delete one, and to serve it
// again.
var definitions = sync.OnceValue(func() error { return clusters.InstallDefinitions() })

// start is a little ahead of the API server's clock and at the beginning of a minute, so that messages name the minute that a test expects.
func start() time.Time { return time.Now().Truncate(time.Minute).Add(time.Minute) }

// setUp makes a hosted cluster with what Karpenter needs in the guest.
func setUp(ctx context.Context, t *testing.T, name string, changes ...func(*scope.Scope)) *fixture {
	t.Helper()
	NewWithT(t).Expect(definitions()).To(Succeed())
	f := setUpIn(t, &clusters, name)
	t.Cleanup(func() { f.cleanUp(context.WithoutCancel(ctx), t) })
	f.equip(t, changes...)
	return f
}

// equip gives the guest what Karpenter needs.
func (f *fixture) equip(t *testing.T, changes ...func(*scope.Scope)) {
	t.Helper()
	for _, change := range changes {
		change(f.Scope)
	}
	applier := apply.New()
	f.tokens = access.New(access.Config{
		Management: f.clusters.Management.Client, Live: f.clusters.Management.Client, Secrets: f.clusters.Management.Client, Apply: applier, Clock: f.clock,
	})
	f.step = f.newStep(f.tokens)
	for _, step := range []scope.Step{f.tokens, nodeclass.New(nodeclass.Config{Apply: applier})} {
		scopetest.Reconcile(t, step, f.Scope)
	}
}

func setUpIn(t *testing.T, clusters *scopetest.Clusters, name string) *fixture {
	t.Helper()
	f := &fixture{Scope: clusters.NewScope(t, name), clusters: clusters, clock: clocktesting.NewFakePassiveClock(start()), events: events.NewFakeRecorder(100)}
	f.step = f.newStep()
	return f
}

func (f *fixture) newStep(upkeep ...scope.Step) *teardown.Teardown {
	f.Upkeep = func(ctx context.Context) error {
		for _, step := range upkeep {
			if _, err := step.Reconcile(ctx, f.Scope); err != nil {
				return fmt.Errorf("%s: %w", step.Name(), err)
			}
		}
		return nil
	}
	return teardown.New(teardown.Config{
		Management: f.clusters.Management.Client, Live: f.clusters.Management.Client, Apply: apply.New(),
		Recorder: f.events, Clock: f.clock, DrainTimeout: drainTimeout,
	})
}

// cleanUp empties the guest for the next test.
func (f *fixture) cleanUp(ctx context.Context, t *testing.T) {
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		for _, list := range []client.ObjectList{
			&karpv1.NodeClaimList{}, &v1alpha1.NodeRecordList{}, &v1alpha1.ClusterAPINodeClassList{}, &karpv1.NodePoolList{}, &corev1.PodList{}, &corev1.NodeList{}, &policyv1.PodDisruptionBudgetList{},
		} {
			g.Expect(f.clusters.Guest.Client.List(ctx, list)).To(Succeed())
			items, err := meta.ExtractList(list)
			g.Expect(err).NotTo(HaveOccurred())
			for _, item := range items {
				object := item.(client.Object)
				finalizers := object.GetFinalizers()
				object.SetFinalizers(nil)
				if len(finalizers) > 0 {
					g.Expect(client.IgnoreNotFound(f.clusters.Guest.Client.Update(ctx, object))).To(Succeed())
				}
				g.Expect(client.IgnoreNotFound(f.clusters.Guest.Client.Delete(ctx, object, client.GracePeriodSeconds(0)))).To(Succeed())
			}
		}
	}).Should(Succeed())
}

// created makes the definition of a kind one that the operator created, for as long as the test runs. It lacks the label of what the operator
// keeps, so that it isn't removed: see definitions.
func (f *fixture) created(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	annotate := func(ctx context.Context, value string) {
		d := &metav1.PartialObjectMetadata{}
		d.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		d.SetName(name)
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, crd.CreatedAnnotation, value))
		g.Expect(f.clusters.Guest.Client.Patch(ctx, d, patch)).To(Succeed())
	}
	annotate(ctx, `"true"`)
	t.Cleanup(func() { annotate(context.WithoutCancel(ctx), "null") })
}

func (f *fixture) reconcile(ctx context.Context, g Gomega) scope.Result {
	component := &v1beta1.ControlPlaneComponent{}
	f.Component = nil
	if err := f.clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: f.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent}, component); err == nil {
		f.Component = component
	}
	result, err := f.step.Reconcile(ctx, f.Scope)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

func (f *fixture) finishes(ctx context.Context, g Gomega) {
	g.Eventually(func(g Gomega) { g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{})) }).Should(Succeed())
}

func (f *fixture) delete() {
	f.HostedCluster.DeletionTimestamp = ptr.To(metav1.NewTime(f.clock.Now().Truncate(time.Second)))
}

func (f *fixture) disable() { f.set(nil) }

// enable turns AutoNode on again, and gives Karpenter back what a drain took from it.
func (f *fixture) enable(ctx context.Context, g Gomega, autoNode *v1beta1.AutoNode) {
	f.set(autoNode)
	_, err := f.tokens.Reconcile(ctx, f.Scope)
	g.Expect(err).NotTo(HaveOccurred())
}

// set changes the spec as an API server does.
func (f *fixture) set(autoNode *v1beta1.AutoNode) {
	f.HostedCluster.Spec.AutoNode = autoNode
	f.HostedCluster.Generation++
}

// deadline is how messages name when the drain's time is over.
func (f *fixture) deadline() string {
	at, now := f.HostedCluster.Status.AutoNode.DrainStartedTime.At().Add(drainTimeout).UTC(), f.clock.Now().UTC()
	if at.YearDay() != now.YearDay() {
		return at.Format("Mon 2 Jan 15:04 MST")
	}
	return at.Format("15:04 MST")
}

// budget puts a pod on a node, and forbids to evict it.
func (f *fixture) budget(ctx context.Context, g Gomega, node string) {
	g.Expect(f.clusters.Guest.Client.Create(ctx, pod("cart", node, map[string]string{"app": "cart"}))).To(Succeed())
	g.Expect(f.clusters.Guest.Client.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cart"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}},
		},
	})).To(Succeed())
}

func (f *fixture) pass(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

func (f *fixture) unreachable() {
	f.Guest = nil
	meta.SetStatusCondition(&f.HostedCluster.Status.Conditions, metav1.Condition{
		Type: v1beta1.GuestReachable, Status: metav1.ConditionFalse, Reason: v1beta1.GuestUnreachableReason, Message: "https://blue has stopped answering",
	})
}

func (f *fixture) reachable() {
	f.Guest = &scope.Guest{Cached: f.clusters.Guest.Client, Live: f.clusters.Guest.Client, Config: f.clusters.Guest.Config, Complete: true}
}

// claim makes a NodeClaim as Karpenter would have: with its finalizer, its Node and its Machine.
func (f *fixture) claim(ctx context.Context, g Gomega, name string) *karpv1.NodeClaim {
	claim := scopetest.NodeClaim(name)
	claim.Finalizers, claim.Labels = []string{karpv1.TerminationFinalizer}, map[string]string{karpv1.NodePoolLabelKey: "general"}
	g.Expect(f.clusters.Guest.Client.Create(ctx, claim)).To(Succeed())
	claim.Status.NodeName = name
	g.Expect(f.clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{karpv1.TerminationFinalizer}}}
	g.Expect(f.clusters.Guest.Client.Create(ctx, node)).To(Succeed())
	f.machine(ctx, g, name)
	return claim
}

func (f *fixture) machine(ctx context.Context, g Gomega, name string) {
	g.Expect(f.clusters.Management.Client.Create(ctx, &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.ControlPlaneNamespace, Name: name, Finalizers: []string{clusterv1.MachineFinalizer},
			Labels: map[string]string{
				clusterv1.ClusterNameLabel: f.HostedCluster.Name, v1alpha1.NodeClaimUIDLabel: "uid-" + name, v1alpha1.NodeClaimLabel: name,
			},
		},
		Spec: clusterv1.MachineSpec{ClusterName: f.HostedCluster.Name, ProviderID: "kwok://" + name},
	})).To(Succeed())
}

// karpenterRemoves does what Karpenter and Cluster API do once a node is drained.
func (f *fixture) karpenterRemoves(ctx context.Context, g Gomega, name string) {
	for _, object := range []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}} {
		g.Expect(f.clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: name}, object)).To(Succeed())
		object.SetFinalizers(nil)
		g.Expect(f.clusters.Guest.Client.Update(ctx, object)).To(Succeed())
		g.Expect(client.IgnoreNotFound(f.clusters.Guest.Client.Delete(ctx, object))).To(Succeed())
	}
	f.clusterAPIRemoves(ctx, g, name)
}

func (f *fixture) clusterAPIRemoves(ctx context.Context, g Gomega, name string) {
	machine := f.machineOf(ctx, g, name)
	machine.Finalizers = nil
	g.Expect(f.clusters.Management.Client.Update(ctx, machine)).To(Succeed())
	g.Expect(client.IgnoreNotFound(f.clusters.Management.Client.Delete(ctx, machine))).To(Succeed())
}

func (f *fixture) claimOf(ctx context.Context, g Gomega, name string) *karpv1.NodeClaim {
	return scopetest.Get(ctx, g, f.clusters.Guest.Client, "", name, &karpv1.NodeClaim{})
}

func (f *fixture) machineOf(ctx context.Context, g Gomega, name string) *clusterv1.Machine {
	return scopetest.Get(ctx, g, f.clusters.Management.Client, f.ControlPlaneNamespace, name, &clusterv1.Machine{})
}

// expectEquipment reports whether Karpenter's identity and component are there.
func (f *fixture) expectEquipment(ctx context.Context, g Gomega, there bool) {
	for _, check := range []struct {
		cluster client.Client
		object  client.Object
	}{
		{f.clusters.Guest.Client, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}}},
		{f.clusters.Guest.Client, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}},
		{f.clusters.Guest.Client, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}},
		{f.clusters.Guest.Client, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass}}},
		{f.clusters.Management.Client, &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: f.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent}}},
	} {
		if there {
			g.Expect(check.cluster.Get(ctx, client.ObjectKeyFromObject(check.object), check.object)).To(Succeed())
		} else {
			scopetest.ExpectGone(ctx, g, check.cluster, check.object)
		}
	}
}

// managed names every object in the guest that is marked as the operator's, of any kind that its API server serves, but definitions.
func managed(ctx context.Context, g Gomega) []string {
	discoverer, err := discovery.NewDiscoveryClientForConfig(clusters.Guest.Config)
	g.Expect(err).NotTo(HaveOccurred())
	kinds, err := discoverer.ServerPreferredResources()
	g.Expect(err).NotTo(HaveOccurred())
	var found []string
	for _, group := range kinds {
		for _, kind := range group.APIResources {
			if !slices.Contains(kind.Verbs, "list") || kind.Kind == "CustomResourceDefinition" {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.APIVersion, list.Kind = group.GroupVersion, kind.Kind+"List"
			err := clusters.Guest.Client.List(ctx, list, client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator})
			g.Expect(err).NotTo(HaveOccurred(), kind.Kind)
			for _, object := range list.Items {
				found = append(found, kind.Kind+" "+object.Name)
			}
		}
	}
	return found
}

func (f *fixture) event() string {
	select {
	case event := <-f.events.Events:
		return event
	default:
		return ""
	}
}

func TestDisable(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	f := setUp(ctx, t, "disable")
	pool := nodePool("general")
	g.Expect(clusters.Guest.Client.Create(ctx, pool)).To(Succeed())
	mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine", Finalizers: []string{v1alpha1.NodeClassFinalizer}}}
	g.Expect(clusters.Guest.Client.Create(ctx, mine)).To(Succeed())
	for _, name := range []string{"a", "b"} {
		f.claim(ctx, g, name)
	}
	scopetest.Reconcile(t, policy.New(policy.Config{Apply: apply.New()}), f.Scope)
	foreign := scopetest.NodeClaim("foreign")
	foreign.Spec.NodeClassRef.Group, foreign.Spec.NodeClassRef.Kind = "karpenter.k8s.aws", "EC2NodeClass"
	g.Expect(clusters.Guest.Client.Create(ctx, foreign)).To(Succeed())
	f.disable()

	t.Run("When AutoNode is turned off, it should delete the NodeClaims and keep Karpenter from launching others", func(t *testing.T) {
		g := NewWithT(t)
		result := f.reconcile(ctx, g)
		g.Expect(result).To(Equal(scope.Result{Wait: true, Message: "2 nodes are left to drain; forced at " + f.deadline(), RequeueAfter: 30 * time.Second}))
		for _, name := range []string{"a", "b"} {
			g.Expect(f.claimOf(ctx, g, name).DeletionTimestamp.IsZero()).To(BeFalse())
			g.Expect(f.machineOf(ctx, g, name).DeletionTimestamp.IsZero()).To(BeTrue(), "Karpenter removes Machines, when their nodes are drained")
		}
		for _, name := range []string{v1alpha1.DefaultNodeClass, "mine"} {
			class := scopetest.Get(ctx, g, clusters.Guest.Client, "", name, &v1alpha1.ClusterAPINodeClass{})
			g.Expect(class.Annotations).To(HaveKeyWithValue(v1alpha1.DrainingAnnotation, "true"))
			g.Expect(class.DeletionTimestamp.IsZero()).To(BeTrue())
		}
		f.expectEquipment(ctx, g, true)
	})

	t.Run("When a PodDisruptionBudget blocks a drain, it should name it, and force nothing before the deadline", func(t *testing.T) {
		g := NewWithT(t)
		f.budget(ctx, g, "a")
		f.pass(drainTimeout - time.Minute)
		deadline := f.deadline() // as it is called by then: by the day, if that isn't today
		g.Expect(f.reconcile(ctx, g).Message).To(Equal(
			"2 nodes are left to drain; NodeClaim a waits for PodDisruptionBudget default/cart (0 disruptions allowed); forced at " + deadline))
		g.Expect(f.claimOf(ctx, g, "a").Annotations).NotTo(HaveKey(karpv1.NodeClaimTerminationTimestampAnnotationKey))
		g.Expect(f.event()).To(BeEmpty())
		g.Expect(clusters.Guest.Client.DeleteAllOf(ctx, &policyv1.PodDisruptionBudget{}, client.InNamespace("default"))).To(Succeed())
	})

	t.Run("When the guest can't be reached, it should wait for it without an end", func(t *testing.T) {
		g := NewWithT(t)
		now := f.clock.Now()
		f.unreachable()
		for range 3 {
			f.pass(24 * time.Hour)
			g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{
				Wait: true, Message: "the guest can't be reached (https://blue has stopped answering); 2 Machines to be drained once it answers", RequeueAfter: 30 * time.Second,
			}))
		}
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
		f.reachable()
		f.clock.SetTime(now)
	})

	t.Run("When Karpenter isn't available, it should say that the drain waits for it", func(t *testing.T) {
		g := NewWithT(t)
		f.reconcile(ctx, g)
		f.Component.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.Available, Status: metav1.ConditionFalse, Reason: "Waiting", Message: "0 of 2 replicas are ready", LastTransitionTime: metav1.Now(),
		}}
		g.Expect(clusters.Management.Client.Status().Update(ctx, f.Component)).To(Succeed())
		g.Expect(f.reconcile(ctx, g).Message).To(HavePrefix("2 nodes are left to drain; Karpenter, which drains them, isn't available: 0 of 2 replicas are ready; forced at "))
	})

	t.Run("When a Machine is left without a NodeClaim, it should delete it and wait, without a second drain", func(t *testing.T) {
		g := NewWithT(t)
		f.karpenterRemoves(ctx, g, "a")
		g.Expect(f.reconcile(ctx, g).Message).To(HavePrefix("1 of 2 nodes is left to drain; "))
		f.karpenterRemoves(ctx, g, "b")
		f.machine(ctx, g, "unowned")
		g.Expect(f.reconcile(ctx, g).Message).To(Equal("1 Machine is to be deleted by Cluster API: unowned"))
		unowned := f.machineOf(ctx, g, "unowned")
		g.Expect(unowned.DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(unowned.Annotations).To(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
		f.expectEquipment(ctx, g, true)
		f.clusterAPIRemoves(ctx, g, "unowned")
	})

	t.Run("When all is drained, it should stop Karpenter before it removes what Karpenter uses", func(t *testing.T) {
		g := NewWithT(t)
		class := scopetest.Get(ctx, g, clusters.Guest.Client, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
		class.Finalizers = []string{v1alpha1.NodeClassFinalizer}
		g.Expect(clusters.Guest.Client.Update(ctx, class)).To(Succeed())
		deployment, err := karpenterassets.Deployment()
		g.Expect(err).NotTo(HaveOccurred())
		f.clock.SetTime(time.Now())
		running := pod("karpenter-1", "", deployment.Spec.Selector.MatchLabels)
		running.Namespace, running.Finalizers = f.ControlPlaneNamespace, []string{"example.com/kubelet"}
		g.Expect(clusters.Management.Client.Create(ctx, running)).To(Succeed())
		env := deployment.Spec.Template.Spec.Containers[0].Env
		name := env[slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "LEADER_ELECTION_NAME" })].Value
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: f.ControlPlaneNamespace, Name: name}}
		g.Expect(clusters.Management.Client.Create(ctx, lease)).To(Succeed())
		deployment.Namespace = f.ControlPlaneNamespace
		deployment.Spec.Template.Spec.Containers[0].Image = "example.com/karpenter"
		g.Expect(clusters.Management.Client.Create(ctx, deployment)).To(Succeed())

		stopping := Equal(scope.Result{Wait: true, Message: "stopping Karpenter in namespace clusters-disable", RequeueAfter: time.Second})
		g.Eventually(func(g Gomega) { g.Expect(f.reconcile(ctx, g)).To(stopping) }).Should(Succeed())
		scopetest.ExpectGone(ctx, g, clusters.Management.Client, deployment)
		g.Expect(clusters.Management.Client.Delete(ctx, running, client.GracePeriodSeconds(0))).To(Succeed())
		g.Expect(f.reconcile(ctx, g)).To(stopping)
		g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: "autonode:karpenter"}, &rbacv1.ClusterRole{})).To(Succeed())

		f.pass(time.Minute) // the pod's node is dead
		f.finishes(ctx, g)
		scopetest.ExpectGone(ctx, g, clusters.Management.Client, lease)
	})

	t.Run("When all is done, it should have removed Karpenter and kept what is the admin's", func(t *testing.T) {
		g := NewWithT(t)
		f.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{NodeCount: ptr.To(int32(2))}
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		g.Expect(managed(ctx, g)).To(BeEmpty())
		g.Expect(f.HostedCluster.Status.AutoNode).To(BeNil())
		for _, object := range []client.Object{pool, mine, foreign} {
			g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetDeletionTimestamp().IsZero()).To(BeTrue())
		}
		g.Expect(mine.Finalizers).To(BeEmpty(), "its admin couldn't delete it any more")
		g.Expect(mine.Annotations).NotTo(HaveKey(v1alpha1.DrainingAnnotation))
	})
}

func TestDelete(t *testing.T) {
	ctx := t.Context()

	t.Run("When a HostedCluster is deleted, it should leave nothing in the guest that the operator made", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "delete")
		created := definition("widgets", map[string]string{crd.CreatedAnnotation: "true"})
		adopted := definition("gadgets", nil)
		for _, d := range []*apiextensionsv1.CustomResourceDefinition{created, adopted} {
			g.Expect(clusters.Guest.Client.Create(ctx, d)).To(Succeed())
		}
		t.Cleanup(func() { _ = clusters.Guest.Client.Delete(context.WithoutCancel(ctx), adopted) })
		f.created(ctx, t, f.Profile.NodeClass.Definition())
		g.Expect(clusters.Guest.Client.Create(ctx, nodePool("general"))).To(Succeed())
		g.Expect(clusters.Guest.Client.Create(ctx, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})).To(Succeed())
		f.claim(ctx, g, "a")
		f.delete()
		g.Expect(f.reconcile(ctx, g).Message).To(Equal("1 node is left to drain; forced at " + f.deadline()))
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		classes := &v1alpha1.ClusterAPINodeClassList{}
		g.Expect(clusters.Guest.Client.List(ctx, classes)).To(Succeed())
		g.Expect(classes.Items).To(BeEmpty())
		scopetest.ExpectGone(ctx, g, clusters.Guest.Client, created)
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(adopted), adopted)).To(Succeed())
		g.Expect(adopted.DeletionTimestamp.IsZero()).To(BeTrue(), "it was there before the operator")
		g.Expect(f.event()).To(BeEmpty())
		expectNoRecord(ctx, g, f)
	})

	t.Run("When node classes were defined before the operator came, it should leave the admin's, and nothing on them", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "adopted")
		mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{
			Name: "mine", Finalizers: []string{v1alpha1.NodeClassFinalizer}, Annotations: map[string]string{"example.com/note": "mine"},
		}}
		g.Expect(clusters.Guest.Client.Create(ctx, mine)).To(Succeed())
		f.claim(ctx, g, "a")
		f.delete()
		f.reconcile(ctx, g)
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(mine), mine)).To(Succeed())
		g.Expect(mine.DeletionTimestamp.IsZero()).To(BeTrue())
		g.Expect(mine.Annotations).To(Equal(map[string]string{"example.com/note": "mine"}))
		g.Expect(mine.Finalizers).To(BeEmpty(), "its admin couldn't delete it any more")
	})
}

// A drain may take hours, of hundreds of nodes.
func TestLook(t *testing.T) {
	ctx := t.Context()

	t.Run("When a watch wakes it, it should ask the guest nothing, until it is time to", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "watched")
		f.claim(ctx, g, "a")
		f.claim(ctx, g, "b")
		f.budget(ctx, g, "a")
		f.disable()
		g.Expect(f.reconcile(ctx, g).RequeueAfter).To(Equal(30 * time.Second))
		const held = "NodeClaim a waits for PodDisruptionBudget default/cart (0 disruptions allowed); "

		f.Guest.Live = failing{f.Guest.Live}
		f.pass(10 * time.Second)
		f.karpenterRemoves(ctx, g, "b")
		g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{Wait: true, Message: "1 of 2 nodes is left to drain; " + held + "forced at " + f.deadline(), RequeueAfter: 20 * time.Second}))
		f.pass(20 * time.Second)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring(errBroken.Error()))
		f.reachable()
		f.pass(5 * time.Second)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring(held))

		// The PodDisruptionBudget is gone, and the operator has not yet read what blocks the drain now.
		f.claim(ctx, g, "c")
		f.karpenterRemoves(ctx, g, "a")
		f.Guest.Live = failing{f.Guest.Live}
		g.Expect(f.reconcile(ctx, g).Message).To(Equal("1 of 2 nodes is left to drain; forced at " + f.deadline()))
		g.Expect(f.claimOf(ctx, g, "c").DeletionTimestamp.IsZero()).To(BeFalse(), "one that came late is drained at once")
		f.reachable()
		f.karpenterRemoves(ctx, g, "c")
		f.finishes(ctx, g)
	})

	t.Run("When the guest's watches have reported nothing, it should go by what the API server reports", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "behind")
		f.claim(ctx, g, "a")
		f.disable()
		f.reconcile(ctx, g)
		f.Guest.Cached = blind{f.Guest.Cached}
		g.Expect(f.reconcile(ctx, g).Message).To(HavePrefix("1 node is left to drain; "))
		f.expectEquipment(ctx, g, true)
		f.reachable()
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})

	t.Run("When the guest isn't watched, it should look often", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "unwatched")
		f.claim(ctx, g, "a")
		f.disable()
		f.Guest.Complete, f.Guest.Cached = false, failing{f.Guest.Cached} // a read of it could block
		for range 2 {
			g.Expect(f.reconcile(ctx, g)).To(And(HaveField("Message", HavePrefix("1 node is left to drain; ")), HaveField("RequeueAfter", 5*time.Second)))
		}
		f.reachable()
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})
}

func TestCrash(t *testing.T) {
	ctx := t.Context()
	for stopAfter := range 8 {
		t.Run(fmt.Sprintf("When the operator stops after %d writes to the guest, another should finish the work", stopAfter), func(t *testing.T) {
			g := NewWithT(t)
			f := setUp(ctx, t, "crash")
			f.claim(ctx, g, "a")
			f.disable()
			f.reconcile(ctx, g)
			f.karpenterRemoves(ctx, g, "a")
			limited := &budget{Client: clusters.Guest.Client, writes: stopAfter}
			f.Guest.Live, f.Guest.Cached = limited, limited
			_, _ = f.step.Reconcile(ctx, f.Scope)
			f.reachable()
			f.step = f.newStep()
			f.finishes(ctx, g)
			f.expectEquipment(ctx, g, false)
		})
	}
}

func expectRecord(ctx context.Context, g Gomega, f *fixture) *corev1.ConfigMap {
	record := scopetest.Get(ctx, g, f.clusters.Management.Client, f.ControlPlaneNamespace, v1beta1.AbandonedConfigMap, &corev1.ConfigMap{})
	g.Expect(record.Data).To(HaveKeyWithValue("hostedCluster", "clusters/"+f.HostedCluster.Name))
	return record
}

func expectNoRecord(ctx context.Context, g Gomega, f *fixture) {
	scopetest.ExpectGone(ctx, g, f.clusters.Management.Client, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ControlPlaneNamespace, Name: v1beta1.AbandonedConfigMap}})
}

// definition is one that the operator applies.
func definition(plural string, annotations map[string]string) *apiextensionsv1.CustomResourceDefinition {
	made := scopetest.Definition("example.com", plural, plural, "v1")
	made.Annotations, made.Labels = annotations, map[string]string{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}
	return made
}

func nodePool(name string) *karpv1.NodePool {
	return &karpv1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		}}},
	}
}

func pod(name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}},
		},
	}
}

var errBroken = errors.New("etcdserver: request timed out")

// failing is an API server that is up and can't read.
type failing struct{ client.Client }

func (failing) List(context.Context, client.ObjectList, ...client.ListOption) error { return errBroken }

// blind is a cache that hasn't seen Karpenter's objects yet.
type blind struct{ client.Client }

func (b blind) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *karpv1.NodeClaimList, *v1alpha1.ClusterAPINodeClassList:
		return nil
	default:
		return b.Client.List(ctx, list, options...)
	}
}

// budget is a process that dies after a number of writes.
type budget struct {
	client.Client
	writes int
}

func (b *budget) spend() error {
	if b.writes--; b.writes < 0 {
		return errBroken
	}
	return nil
}

func (b *budget) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if err := b.spend(); err != nil {
		return err
	}
	return b.Client.Delete(ctx, object, options...)
}

func (b *budget) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if err := b.spend(); err != nil {
		return err
	}
	return b.Client.Patch(ctx, object, patch, options...)
}
