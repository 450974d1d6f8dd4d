// SPDX-License-Identifier: Apache-2.0

package adopt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/adopt"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/command"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// world is a hosted cluster with a MachineDeployment, and plays the controllers of both clusters.
type world struct {
	namespace string
	key       client.ObjectKey
	machines  []string
	uids      map[string]string
}

func labels(namespace string) map[string]string {
	return map[string]string{clusterv1.ClusterNameLabel: "blue", clusterv1.MachineDeploymentNameLabel: "workers", "pool": namespace}
}

// newWorld makes a MachineDeployment of so many Machines.
func newWorld(t *testing.T, namespace string, machines int) *world {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	w := &world{namespace: namespace, key: client.ObjectKey{Namespace: namespace, Name: "workers"}, uids: map[string]string{}}
	cluster := server.MakeCluster(t, namespace, "blue")
	inNamespace := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
	}
	app := map[string]string{"app": namespace}
	hosted := &v1beta1.HostedCluster{ObjectMeta: inNamespace("blue", nil), Spec: v1beta1.HostedClusterSpec{
		Release: v1beta1.Release{Image: clitest.PayloadImage}, ControlPlaneNamespace: namespace,
		AutoNode: &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{Name: v1beta1.ProvisionerKarpenter, Karpenter: &v1beta1.Karpenter{
			Platform: v1beta1.PlatformClusterAPI, ClusterAPI: &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: app}}},
		}}},
	}}
	karpenter := &appsv1.Deployment{ObjectMeta: inNamespace("karpenter", nil), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: app},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}},
	}}
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{
		ObjectMeta: karpv1.ObjectMeta{Labels: map[string]string{"team": "a"}},
		Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: namespace},
			ExpireAfter:  karpv1.MustParseNillableDuration("100h"),
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: "example.com/storage", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}},
				{Key: v1alpha1.Group + "/instance-cpu", Operator: corev1.NodeSelectorOpIn, Values: []string{"4"}},
			},
		},
	}}}
	spec := clusterv1.MachineSpec{ClusterName: "blue", Version: "v1.36.3", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate", Name: "small"}}
	template := clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: labels(namespace)}, Spec: spec}
	selector := metav1.LabelSelector{MatchLabels: labels(namespace)}
	deployment := &clusterv1.MachineDeployment{ObjectMeta: inNamespace("workers", labels(namespace)), Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: "blue", Replicas: ptr.To(int32(machines)), Selector: selector, Template: template,
	}}
	server.Create(t, hosted, karpenter, class, pool, deployment)
	class.Status.Templates = []v1alpha1.TemplateStatus{{
		InstanceType: "c4-large", Source: "TestMachineTemplate/small", Architecture: "amd64", CPU: scalar.Text("4"), Memory: scalar.Text("8Gi"), Price: "0.1", Zones: []string{"a"},
	}}
	g.Expect(server.Admin.Status().Update(ctx, class)).To(Succeed())
	hosted.Status.AutoNode = &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateEnabled}
	g.Expect(server.Admin.Status().Update(ctx, hosted)).To(Succeed())
	set := &clusterv1.MachineSet{ObjectMeta: inNamespace("workers-1", labels(namespace)), Spec: clusterv1.MachineSetSpec{
		ClusterName: "blue", Replicas: ptr.To(int32(machines)), Selector: selector, Template: template,
	}}
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, clusterv1.GroupVersion.WithKind("MachineDeployment"))}
	server.Create(t, set)
	for i := range machines {
		w.addMachine(t, set, fmt.Sprintf("%s-%d", namespace, i), spec)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.control(ctx, cluster) }()
	t.Cleanup(func() {
		cancel()
		g.Expect(<-ended).To(Succeed(), "what controllers saw")
	})
	return w
}

func (w *world) addMachine(t *testing.T, set *clusterv1.MachineSet, name string, spec clusterv1.MachineSpec) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	part := &unstructured.Unstructured{Object: map[string]any{}}
	part.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
	part.SetKind("TestMachine")
	part.SetNamespace(w.namespace)
	part.SetName("of-" + name) // as earlier versions of Cluster API name it
	part.SetLabels(labels(w.namespace))
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels(w.namespace), OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(set, clusterv1.GroupVersion.WithKind("MachineSet")),
	}}, Spec: spec}
	m.Labels[clusterv1.MachineSetNameLabel] = set.Name
	m.Spec.InfrastructureRef.Kind, m.Spec.InfrastructureRef.Name, m.Spec.ProviderID = "TestMachine", part.GetName(), "test://"+name
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelInstanceTypeStable: "c4-large", corev1.LabelTopologyZone: "a", "example.com/storage": "ssd",
	}}, Spec: corev1.NodeSpec{ProviderID: m.Spec.ProviderID}}
	server.Create(t, part, m, node)
	m.Status.NodeRef.Name, m.Status.Phase = name, string(clusterv1.MachinePhaseRunning)
	g.Expect(server.Admin.Status().Update(ctx, m)).To(Succeed())
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	g.Expect(server.Admin.Status().Update(ctx, node)).To(Succeed())
	w.machines, w.uids[name] = append(w.machines, name), string(m.UID)
}

// control is Cluster API, the operator and Karpenter. It returns what these would do wrong.
func (w *world) control(ctx context.Context, cluster *clusterv1.Cluster) error {
	for ctx.Err() == nil {
		if err := errors.Join(w.clusterAPI(ctx, cluster), w.operator(ctx)); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func paused(object client.Object, conditions *[]metav1.Condition) bool {
	status := metav1.ConditionFalse
	if _, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]; paused {
		status = metav1.ConditionTrue
	}
	return meta.SetStatusCondition(conditions, metav1.Condition{Type: clusterv1.PausedCondition, Status: status, Reason: "Test"})
}

func (w *world) clusterAPI(ctx context.Context, cluster *clusterv1.Cluster) error {
	set, deployment, machines := &clusterv1.MachineSet{}, &clusterv1.MachineDeployment{}, &clusterv1.MachineList{}
	if err := errors.Join(server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "workers-1"}, set),
		server.Admin.Get(ctx, w.key, deployment), server.Admin.List(ctx, machines, client.InNamespace(w.namespace))); err != nil {
		return err
	}
	if *set.Spec.Replicas != *deployment.Spec.Replicas {
		set.Spec.Replicas = deployment.Spec.Replicas
		return ignoreConflict(server.Admin.Update(ctx, set))
	}
	owned := 0
	for i := range machines.Items {
		m := &machines.Items[i]
		switch {
		case metav1.GetControllerOf(m) == nil && len(m.OwnerReferences) == 0:
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}
			return ignoreConflict(server.Admin.Update(ctx, m))
		case metav1.IsControlledBy(m, set):
			owned++
		}
		if paused(m, &m.Status.Conditions) {
			return ignoreConflict(server.Admin.Status().Update(ctx, m))
		}
	}
	if paused(set, &set.Status.Conditions) {
		return ignoreConflict(server.Admin.Status().Update(ctx, set))
	}
	now := &clusterv1.MachineSet{}
	if err := server.Admin.Get(ctx, client.ObjectKeyFromObject(set), now); err != nil {
		return err
	}
	if meta.IsStatusConditionFalse(set.Status.Conditions, clusterv1.PausedCondition) && owned != int(*set.Spec.Replicas) && now.ResourceVersion == set.ResourceVersion {
		return fmt.Errorf("the MachineSet runs with %d Machines and wants %d", owned, *set.Spec.Replicas)
	}
	return nil
}

func ignoreConflict(err error) error {
	if err != nil && strings.Contains(err.Error(), "the object has been modified") {
		return nil
	}
	return err
}

func enabledCondition(status metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: v1beta1.AutoNodeEnabled, Status: status, Reason: v1beta1.AsExpectedReason}
}

func (w *world) operator(ctx context.Context) error {
	hosted, karpenter, replicas := &v1beta1.HostedCluster{}, &appsv1.Deployment{}, int32(2)
	if err := errors.Join(server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "blue"}, hosted),
		server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "karpenter"}, karpenter)); err != nil {
		return err
	}
	until := ptr.Deref(hosted.Spec.PausedUntil, "")
	if end, err := time.Parse(time.RFC3339, until); until == "true" || err == nil && time.Now().Before(end) {
		replicas = 0
	}
	if *karpenter.Spec.Replicas != replicas {
		karpenter.Spec.Replicas = &replicas
		return ignoreConflict(server.Admin.Update(ctx, karpenter))
	}
	enabled := ptr.Deref(meta.FindStatusCondition(hosted.Status.Conditions, v1beta1.AutoNodeEnabled), enabledCondition(metav1.ConditionTrue))
	enabled.ObservedGeneration = hosted.Generation
	if meta.SetStatusCondition(&hosted.Status.Conditions, enabled) {
		return ignoreConflict(server.Admin.Status().Update(ctx, hosted))
	}
	claims, machines := &karpv1.NodeClaimList{}, &clusterv1.MachineList{}
	if err := errors.Join(server.Admin.List(ctx, claims, client.MatchingLabels{karpv1.NodePoolLabelKey: w.namespace}),
		server.Admin.List(ctx, machines, client.InNamespace(w.namespace))); err != nil || replicas == 0 {
		return err
	}
	for i := range claims.Items {
		bound := false
		for j := range machines.Items {
			bound = bound || machines.Items[j].Labels[v1alpha1.NodeClaimUIDLabel] == string(claims.Items[i].UID)
		}
		if !bound {
			return fmt.Errorf("karpenter runs, and NodeClaim %s has no Machine", claims.Items[i].Name)
		}
	}
	return nil
}

// adopt runs the command with clients that fail from the write on that is left'th.
func (w *world) adopt(ctx context.Context, o adopt.Options, left int32) (string, error) {
	var out bytes.Buffer
	writes := &atomic.Int32{}
	writes.Store(left)
	c := killed{server.Admin, writes}
	o.NodePool = w.namespace
	err := o.Adopt(ctx, c, c, w.key, command.Streams{Out: &out, ErrOut: &out})
	return out.String(), err
}

var errKilled = errors.New("killed")

type killed struct {
	client.Client
	left *atomic.Int32
}

func (k killed) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if !slices.Contains(opts, client.CreateOption(client.DryRunAll)) && k.left.Add(-1) < 0 {
		return errKilled
	}
	return k.Client.Create(ctx, object, opts...)
}

func (k killed) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if k.left.Add(-1) < 0 {
		return errKilled
	}
	return k.Client.Patch(ctx, object, patch, opts...)
}

// Apply keeps the interface of a client that a field owner wraps.
func (k killed) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return k.Client.Apply(ctx, object, opts...)
}

// expectAdopted expects that so many Machines are Karpenter's, and no trace of the command.
func (w *world) expectAdopted(g Gomega, ctx context.Context, adopted int) {
	list, claims := &clusterv1.MachineList{}, &karpv1.NodeClaimList{}
	g.Expect(server.Admin.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	g.Expect(server.Admin.List(ctx, claims, client.MatchingLabels{karpv1.NodePoolLabelKey: w.namespace})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(len(w.machines)))
	g.Expect(claims.Items).To(HaveLen(adopted))
	byName := map[string]karpv1.NodeClaim{}
	for _, claim := range claims.Items {
		byName[claim.Name] = claim
		g.Expect(claim.Annotations).To(And(HaveKeyWithValue(karpv1.DoNotDisruptAnnotationKey, "true"), HaveKeyWithValue(v1alpha1.AdoptedAnnotation, "workers")))
		g.Expect(claim.Labels).To(And(HaveKeyWithValue("example.com/storage", "ssd"), HaveKeyWithValue("team", "a")))
		g.Expect(claim.OwnerReferences).To(ConsistOf(HaveField("Kind", "NodePool")))
	}
	for _, m := range list.Items {
		g.Expect(string(m.UID)).To(Equal(w.uids[m.Name]))
		g.Expect(m.Annotations).NotTo(Or(HaveKey(adopt.Annotation), HaveKey(clusterv1.PausedAnnotation)))
		claim, ok := byName[m.Name]
		if !ok {
			g.Expect(metav1.GetControllerOf(&m)).To(HaveField("Kind", "MachineSet"))
			g.Expect(m.Labels).To(HaveKeyWithValue(clusterv1.MachineSetNameLabel, "workers-1"))
			continue
		}
		g.Expect(v1alpha1.MadeForNodeClaim(&m)).To(BeTrue())
		g.Expect(v1alpha1.NodeClaimOf(&m)).To(Equal(claim.Name))
		g.Expect(metav1.GetControllerOf(&m)).To(HaveField("Kind", "Cluster"))
		g.Expect(m.Labels).To(And(HaveKeyWithValue(v1alpha1.NodeClaimUIDLabel, string(claim.UID)), HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"),
			Not(HaveKey("pool")), Not(HaveKey(clusterv1.MachineSetNameLabel)), HaveKeyWithValue(clusterv1.ClusterNameLabel, "blue")))
		part := &unstructured.Unstructured{}
		part.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
		part.SetKind("TestMachine")
		g.Expect(server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "of-" + m.Name}, part)).To(Succeed())
		g.Expect(v1alpha1.MadeForNodeClaim(part)).To(BeTrue())
		g.Expect(v1alpha1.NodeClaimOf(part)).To(Equal(claim.Name))
	}
	set, deployment, hosted := &clusterv1.MachineSet{}, &clusterv1.MachineDeployment{}, &v1beta1.HostedCluster{}
	g.Expect(server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "workers-1"}, set)).To(Succeed())
	g.Expect(set.Annotations).NotTo(HaveKey(clusterv1.PausedAnnotation))
	g.Expect(server.Admin.Get(ctx, w.key, deployment)).To(Succeed())
	g.Expect(*deployment.Spec.Replicas).To(BeEquivalentTo(len(w.machines) - adopted))
	g.Expect(server.Admin.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "blue"}, hosted)).To(Succeed())
	g.Expect(hosted.Annotations).NotTo(HaveKey(adopt.PauseAnnotation))
}

func TestAdopt(t *testing.T) {
	w := newWorld(t, "adopt-all", 3)
	t.Run("When it is a dry run, it should list the Machines and write nothing", func(t *testing.T) {
		g := NewWithT(t)
		out, err := w.adopt(t.Context(), adopt.Options{DryRun: true}, 0)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(And(ContainSubstring("adopt-all-1"), MatchRegexp(`c4-large +a +133h20m0s +yes`), ContainSubstring("3 Machines would be adopted into NodePool adopt-all (dry run)")))
	})
	t.Run("When so many are to be adopted, it should leave the others", func(t *testing.T) {
		g := NewWithT(t)
		out, err := w.adopt(t.Context(), adopt.Options{Machines: 1, ExpireAfter: "Never"}, 1000)
		g.Expect(err).NotTo(HaveOccurred(), out)
		w.expectAdopted(g, t.Context(), 1)
		claim := &karpv1.NodeClaim{}
		g.Expect(server.Admin.Get(t.Context(), client.ObjectKey{Name: "adopt-all-0"}, claim)).To(Succeed())
		g.Expect(claim.Spec.ExpireAfter.Duration).To(BeNil())
	})
	t.Run("When all are to be adopted, it should scale the MachineDeployment to zero and restore spec.pausedUntil", func(t *testing.T) {
		g := NewWithT(t)
		hosted := &v1beta1.HostedCluster{}
		update(g, t.Context(), hosted, client.ObjectKey{Namespace: w.namespace, Name: "blue"}, func(h *v1beta1.HostedCluster) {
			h.Spec.PausedUntil = ptr.To("false")
		})
		out, err := w.adopt(t.Context(), adopt.Options{}, 1000)
		g.Expect(err).NotTo(HaveOccurred(), out)
		w.expectAdopted(g, t.Context(), 3)
		g.Expect(server.Admin.Get(t.Context(), client.ObjectKeyFromObject(hosted), hosted)).To(Succeed())
		g.Expect(hosted.Spec.PausedUntil).To(HaveValue(Equal("false")))
	})
	t.Run("When nothing is left to adopt, it should do nothing", func(t *testing.T) {
		g := NewWithT(t)
		_, err := w.adopt(t.Context(), adopt.Options{}, 0)
		g.Expect(err).NotTo(HaveOccurred())
	})
}

func TestBatches(t *testing.T) {
	t.Run("When there are more Machines than in a batch, it should adopt all", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t, "batches", 21)
		out, err := w.adopt(t.Context(), adopt.Options{}, 1000)
		g.Expect(err).NotTo(HaveOccurred(), out)
		w.expectAdopted(g, t.Context(), 21)
	})
}

// TestTakenOver has another run begin while one removes Machines from their MachineSet.
func TestTakenOver(t *testing.T) {
	t.Run("When another run begins meanwhile, the first should stop, and the other adopt all", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t, "taken-over", 3)
		first := hooked{Client: server.Admin, before: func() {
			out, err := w.adopt(t.Context(), adopt.Options{}, 1000)
			g.Expect(err).NotTo(HaveOccurred(), out)
		}, at: &atomic.Int32{}}
		first.at.Store(4) // it has paused the MachineSet, and announced and removed a Machine
		var out bytes.Buffer
		o := adopt.Options{NodePool: w.namespace}
		err := o.Adopt(t.Context(), first, first, w.key, command.Streams{Out: &out, ErrOut: &out})
		g.Expect(err).To(MatchError(ContainSubstring("another run has taken MachineSet workers-1 over")))
		w.expectAdopted(g, t.Context(), 3)
	})
}

// hooked calls before in the middle of a run: before the read of the MachineSet that follows so many patches.
type hooked struct {
	client.Client
	before func()
	at     *atomic.Int32
}

func (h hooked) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if _, set := object.(*clusterv1.MachineSet); set && h.at.CompareAndSwap(1, 0) {
		h.before()
	}
	return h.Client.Get(ctx, key, object, opts...)
}

func (h hooked) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	h.at.Add(-1)
	return h.Client.Patch(ctx, object, patch, opts...)
}

func (h hooked) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return h.Client.Apply(ctx, object, opts...)
}

// TestInterrupted kills the command at each of its writes, and lets another one continue.
func TestInterrupted(t *testing.T) {
	const all = 21 // writes for two Machines
	for n := range int32(all + 1) {
		t.Run(fmt.Sprintf("When the command is killed after %d writes, another one should continue", n), func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, fmt.Sprintf("continued-%d", n), 2)
			out, err := w.adopt(t.Context(), adopt.Options{}, n)
			if n == all {
				g.Expect(err).NotTo(HaveOccurred(), out)
			} else {
				g.Expect(err).To(MatchError(And(ContainSubstring("killed"), ContainSubstring("run the command again to continue"))))
			}
			out, err = w.adopt(t.Context(), adopt.Options{}, 1000)
			g.Expect(err).NotTo(HaveOccurred(), out)
			w.expectAdopted(g, t.Context(), 2)
		})
	}
}

// update changes an object and its status.
func update[T client.Object](g Gomega, ctx context.Context, object T, key client.ObjectKey, do func(T)) {
	g.Eventually(func() error {
		if err := server.Admin.Get(ctx, key, object); err != nil {
			return err
		}
		do(object)
		return server.Admin.Update(ctx, object.DeepCopyObject().(T))
	}).Should(Succeed())
	g.Eventually(func() error {
		if err := server.Admin.Get(ctx, key, object); err != nil {
			return err
		}
		do(object)
		return server.Admin.Status().Update(ctx, object)
	}).Should(Succeed())
}

func TestRefusedMachines(t *testing.T) {
	w := newWorld(t, "refused", 1)
	name, ctx := w.machines[0], t.Context()
	machine := func(do func(*clusterv1.Machine)) func(Gomega) {
		return func(g Gomega) {
			update(g, ctx, &clusterv1.Machine{}, client.ObjectKey{Namespace: w.namespace, Name: name}, do)
		}
	}
	node := func(do func(*corev1.Node)) func(Gomega) {
		return func(g Gomega) { update(g, ctx, &corev1.Node{}, client.ObjectKey{Name: name}, do) }
	}
	pool := func(do func(*karpv1.NodePool)) func(Gomega) {
		return func(g Gomega) { update(g, ctx, &karpv1.NodePool{}, client.ObjectKey{Name: w.namespace}, do) }
	}
	class := func(do func(*v1alpha1.ClusterAPINodeClass)) func(Gomega) {
		return func(g Gomega) {
			update(g, ctx, &v1alpha1.ClusterAPINodeClass{}, client.ObjectKey{Name: w.namespace}, do)
		}
	}
	label := func(key string, set bool) func(Gomega) {
		return machine(func(m *clusterv1.Machine) {
			if delete(m.Labels, key); set {
				m.Labels[key] = "x"
			}
		})
	}
	annotate := func(key string, set bool) func(Gomega) {
		return machine(func(m *clusterv1.Machine) {
			if delete(m.Annotations, key); set {
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, "x")
			}
		})
	}
	taint := func(keys ...string) func(Gomega) {
		return node(func(n *corev1.Node) {
			n.Spec.Taints = nil
			for _, key := range keys {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule})
			}
		})
	}
	nodeLabel := func(key, value string) func(Gomega) {
		return node(func(n *corev1.Node) {
			if n.Labels[key] = value; value == "" {
				delete(n.Labels, key)
			}
		})
	}
	for _, test := range []struct {
		name     string
		set, end func(Gomega)
		want     string
		options  adopt.Options
	}{
		{name: "it is of a control plane", set: label(clusterv1.MachineControlPlaneLabel, true), end: label(clusterv1.MachineControlPlaneLabel, false), want: "it is of a control plane"},
		{name: "it is of a MachinePool", set: label(clusterv1.MachinePoolNameLabel, true), end: label(clusterv1.MachinePoolNameLabel, false), want: "it is of a MachinePool"},
		{name: "it is of a topology", set: label(clusterv1.ClusterTopologyOwnedLabel, true), end: label(clusterv1.ClusterTopologyOwnedLabel, false), want: "it is of a ClusterClass's topology"},
		{name: "it is chosen for deletion", set: annotate(clusterv1.DeleteMachineAnnotation, true), end: annotate(clusterv1.DeleteMachineAnnotation, false), want: "has chosen it for deletion"},
		{name: "the Cluster Autoscaler removes its node", set: taint("ToBeDeletedByClusterAutoscaler"), end: taint(), want: "the Cluster Autoscaler removes its node"},
		{name: "the Cluster Autoscaler marked its node", set: taint("DeletionCandidateOfClusterAutoscaler"), end: taint(), want: "the Cluster Autoscaler has marked its node"},
		{name: "its node has a NodePool", set: nodeLabel(karpv1.NodePoolLabelKey, "other"), end: nodeLabel(karpv1.NodePoolLabelKey, ""), want: "it is Karpenter's"},
		{name: "no offering has its type", set: nodeLabel(corev1.LabelInstanceTypeStable, "m8-huge"), end: nodeLabel(corev1.LabelInstanceTypeStable, "c4-large"), want: "offers no instance type m8-huge"},
		{name: "no offering has its zone", set: nodeLabel(corev1.LabelTopologyZone, "b"), end: nodeLabel(corev1.LabelTopologyZone, "a"), want: "in other zones than b"},
		{name: "it lacks a required label", set: nodeLabel("example.com/storage", "hdd"), end: nodeLabel("example.com/storage", "ssd"), want: "requirements of NodePool refused"},
		{
			name: "the limits of the NodePool are used up", want: "limits of NodePool refused",
			set: pool(func(p *karpv1.NodePool) { p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("3")} }),
			end: pool(func(p *karpv1.NodePool) { p.Spec.Limits = nil }),
		},
		{
			name: "it boots in another way", want: "it boots in another way than nodes of node class refused",
			set: class(func(c *v1alpha1.ClusterAPINodeClass) {
				c.Spec.Bootstrap = &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate", Name: "a"}}
			}),
			end: class(func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Bootstrap = nil }),
		},
		{name: "the time is none", options: adopt.Options{ExpireAfter: "tonight"}, want: "spec.expireAfter"},
	} {
		t.Run("When "+test.name+", the dry run should say so and another run write nothing", func(t *testing.T) {
			g := NewWithT(t)
			if test.set != nil {
				test.set(g)
				defer test.end(g)
			}
			out, err := w.adopt(ctx, test.options, 0)
			g.Expect(err).To(MatchError("no Machine of MachineDeployment refused/workers can be adopted"))
			g.Expect(out).To(MatchRegexp("no: .*" + test.want))
			test.options.DryRun = true
			out, err = w.adopt(ctx, test.options, 0)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(MatchRegexp("no: .*" + test.want))
		})
	}
	w.expectAdopted(NewWithT(t), ctx, 0)
}

func TestRefused(t *testing.T) {
	w := newWorld(t, "halted", 1)
	ctx := t.Context()
	hosted := func(do func(*v1beta1.HostedCluster)) func(Gomega) {
		return func(g Gomega) {
			update(g, ctx, &v1beta1.HostedCluster{}, client.ObjectKey{Namespace: w.namespace, Name: "blue"}, do)
		}
	}
	state := func(state v1beta1.AutoNodeState) func(Gomega) {
		return hosted(func(h *v1beta1.HostedCluster) {
			h.Status.AutoNode = &v1beta1.AutoNodeStatus{State: state}
			meta.SetStatusCondition(&h.Status.Conditions, enabledCondition(map[bool]metav1.ConditionStatus{true: "True", false: "False"}[state == v1beta1.AutoNodeStateEnabled]))
		})
	}
	deployment := func(do func(*clusterv1.MachineDeployment)) func(Gomega) {
		return func(g Gomega) { update(g, ctx, &clusterv1.MachineDeployment{}, w.key, do) }
	}
	for _, test := range []struct {
		name     string
		set, end func(Gomega)
		want     string
	}{
		{name: "the cluster sleeps", set: state(v1beta1.AutoNodeStateAsleep), end: state(v1beta1.AutoNodeStateEnabled), want: "is Asleep; wait until it is Enabled"},
		{name: "the cluster drains", set: state(v1beta1.AutoNodeStateDraining), end: state(v1beta1.AutoNodeStateEnabled), want: "is Draining"},
		{name: "the cluster upgrades", set: state(v1beta1.AutoNodeStateUpgrading), end: state(v1beta1.AutoNodeStateEnabled), want: "is Upgrading"},
		{
			name: "another adoption is incomplete", want: "the adoption of MachineDeployment batch isn't complete",
			set: hosted(func(h *v1beta1.HostedCluster) {
				metav1.SetMetaDataAnnotation(&h.ObjectMeta, adopt.PauseAnnotation, "batch=")
			}),
			end: hosted(func(h *v1beta1.HostedCluster) { delete(h.Annotations, adopt.PauseAnnotation) }),
		},
		{
			name: "a topology owns the MachineDeployment", want: "the topology of Cluster halted/blue would restore the replicas",
			set: deployment(func(d *clusterv1.MachineDeployment) { d.Labels[clusterv1.ClusterTopologyOwnedLabel] = "" }),
			end: deployment(func(d *clusterv1.MachineDeployment) { delete(d.Labels, clusterv1.ClusterTopologyOwnedLabel) }),
		},
		{
			name: "the MachineDeployment is paused", want: "is paused or being deleted",
			set: deployment(func(d *clusterv1.MachineDeployment) { d.Spec.Paused = ptr.To(true) }),
			end: deployment(func(d *clusterv1.MachineDeployment) { d.Spec.Paused = nil }),
		},
	} {
		t.Run("When "+test.name+", it should say so and write nothing", func(t *testing.T) {
			g := NewWithT(t)
			test.set(g)
			defer test.end(g)
			_, err := w.adopt(ctx, adopt.Options{}, 0)
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
	t.Run("When only nodes are to be upgraded, it should adopt", func(t *testing.T) {
		g := NewWithT(t)
		hosted(func(h *v1beta1.HostedCluster) { h.Status.AutoNode.State = v1beta1.AutoNodeStateUpgrading })(g)
		defer state(v1beta1.AutoNodeStateEnabled)(g)
		_, err := w.adopt(ctx, adopt.Options{DryRun: true}, 0)
		g.Expect(err).NotTo(HaveOccurred())
	})
	t.Run("When other programs own the replicas, it should name them first", func(t *testing.T) {
		g := NewWithT(t)
		d := &clusterv1.MachineDeployment{}
		g.Expect(server.Admin.Get(ctx, w.key, d)).To(Succeed())
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, clusterv1.AutoscalerMaxSizeAnnotation, "3")
		g.Expect(server.Admin.Update(ctx, d, client.FieldOwner("argocd"))).To(Succeed())
		out, err := w.adopt(ctx, adopt.Options{DryRun: true}, 0)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(And(ContainSubstring("owns spec.replicas of MachineDeployment halted/workers"), ContainSubstring("is a node group of the Cluster Autoscaler: stop that first")))
	})
}
