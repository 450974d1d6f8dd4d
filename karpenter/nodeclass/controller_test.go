// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/informer"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/nodeclass"
	"github.com/autonode-io/autonode/karpenter/offering"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/sandbox"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/version"
)

const (
	capacity = "capacity.cluster-autoscaler.kubernetes.io/"
	pool     = "autonode.io/shape-pool"
)

// fixture is a running controller of one node class.
type fixture struct {
	*GomegaWithT
	*sandbox.Sandbox
	t       *testing.T
	store   *instancetype.Store
	server  *server
	tracker *version.Tracker
	events  *recorder
	name    string
}

// server is the guest's API server as far as its version goes: the real one has only one.
type server struct {
	mu      sync.Mutex
	version string
}

func (s *server) ServerVersion() (*apiversion.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == "" {
		return nil, errors.New("connection refused")
	}
	return &apiversion.Info{GitVersion: s.version}, nil
}

// recorder keeps the events that people would see.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range published {
		r.events = append(r.events, e.Reason)
	}
}

func (r *recorder) reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// start runs a controller that reads the management cluster as a user, or as the administrator.
func start(t *testing.T, user string) *fixture {
	f := &fixture{
		GomegaWithT: NewWithT(t), Sandbox: sandbox.New(t), t: t, server: &server{version: "v1.36.2"}, events: &recorder{},
	}
	f.SetDefaultEventuallyTimeout(20 * time.Second)
	f.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	f.name = f.Namespace
	f.Cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "b"}, {Name: "a", ControlPlane: ptr.To(true)}}
	f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())

	m, err := manager.New(f.Guest.GetConfig(), manager.Options{
		Scheme:     f.Guest.GetScheme(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		// Node classes have no namespace, and other tests have some of their own.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.ClusterAPINodeClass{}: {Field: fields.OneTermEqualSelector("metadata.name", f.name)},
		}},
	})
	f.Expect(err).NotTo(HaveOccurred())
	management := rest.CopyConfig(f.Management.GetConfig())
	management.Impersonate.UserName = user
	dynamicClient, err := dynamic.NewForConfig(management)
	f.Expect(err).NotTo(HaveOccurred())
	objects := informer.New(informer.Config{
		Management: dynamicClient, Mapper: f.Management.GetRESTMapper(), Namespace: f.Namespace, Versions: shape.Versions,
	})
	f.store = instancetype.NewStore(instancetype.Config{Pricing: pricing.Default(), Unavailable: offering.NewUnavailable(clock.RealClock{})})
	f.tracker = version.NewTracker(f.server)
	_, err = f.tracker.Reconcile(t.Context())
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(m.Add(objects)).To(Succeed())
	f.Expect(nodeclass.New(nodeclass.Config{
		Guest: m.GetClient(), Management: f.Admin, Namespace: f.Namespace, Objects: objects,
		Shapes: shape.NewResolver(shape.Config{Objects: objects, ClusterName: f.Cluster.Name}),
		Store:  f.store, Version: version.Resolver{Tracker: f.tracker, Payload: "1.36.2"}, Recorder: f.events, Clock: clock.RealClock{},
	}).Register(t.Context(), m)).To(Succeed())

	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// template makes an infrastructure machine template of the pool general.
func (f *fixture) template(name string, annotations map[string]string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"size": name}}}}}
	u.SetGroupVersionKind(sandbox.TestMachine.GroupVersion().WithKind("TestMachineTemplate"))
	u.SetNamespace(f.Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{pool: "general"})
	u.SetAnnotations(annotations)
	f.Expect(f.Admin.Create(f.t.Context(), u)).To(Succeed())
	return u
}

func sized(cpu, memory, price string) map[string]string {
	return map[string]string{capacity + "cpu": cpu, capacity + "memory": memory, v1alpha1.PriceAnnotation: price}
}

// nodeClass makes one that selects the pool general and joins by the default template.
func (f *fixture) nodeClass(change func(*v1alpha1.ClusterAPINodeClass)) {
	f.t.Helper()
	nodeClass := &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			ShapeSelectors: v1alpha1.ShapeSelectors{InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{general()}},
			Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
				APIGroup: sandbox.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "default",
			}},
		},
	}
	if change != nil {
		change(nodeClass)
	}
	f.Expect(f.Admin.Create(f.t.Context(), nodeClass)).To(Succeed())
}

func general() v1alpha1.InfrastructureTemplateSelector {
	return v1alpha1.InfrastructureTemplateSelector{
		APIGroup: sandbox.TestMachine.Group, Kind: "TestMachineTemplate",
		Selector: metav1.LabelSelector{MatchLabels: map[string]string{pool: "general"}},
	}
}

func (f *fixture) get() (*v1alpha1.ClusterAPINodeClass, error) {
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	return nodeClass, f.Admin.Get(f.t.Context(), client.ObjectKey{Name: f.name}, nodeClass)
}

// edit changes the node class as a person would.
func (f *fixture) edit(change func(*v1alpha1.ClusterAPINodeClass)) {
	f.t.Helper()
	f.Eventually(func() error {
		nodeClass, err := f.get()
		if err != nil {
			return err
		}
		change(nodeClass)
		return f.Admin.Update(f.t.Context(), nodeClass)
	}).Should(Succeed())
}

// condition waits until a condition says this, and returns its message.
func (f *fixture) condition(conditionType, state, reason string) string {
	f.t.Helper()
	var message string
	f.Eventually(func() (string, error) {
		nodeClass, err := f.get()
		if err != nil {
			return "", err
		}
		for _, c := range nodeClass.Status.Conditions {
			if c.Type == conditionType {
				message = c.Message
				return fmt.Sprintf("%s/%s", c.Status, c.Reason), nil
			}
		}
		return "", nil
	}).Should(Equal(state+"/"+reason), func() string {
		nodeClass, _ := f.get()
		return fmt.Sprintf("status: %+v", nodeClass.Status)
	})
	return message
}

func (f *fixture) ready() {
	f.t.Helper()
	f.condition(status.ConditionReady, "True", "Ready")
}

func (f *fixture) instanceTypes() []string {
	its, err := f.store.InstanceTypes(f.name)
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for _, it := range its {
		names = append(names, it.Name)
	}
	return names
}

// available tells whether a machine of a type could be launched in zone b.
func (f *fixture) available(instanceType string) bool {
	choice, ok, err := f.store.Resolve(f.name, instanceType, "b", "on-demand")
	return err == nil && ok && choice.Offering.Available
}

func TestShapes(t *testing.T) {
	t.Run("When templates match, it should be ready and list them, cheapest first", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-arm", map[string]string{
			capacity + "cpu": "4", capacity + "memory": "8Gi", capacity + "labels": "kubernetes.io/arch=arm64",
			capacity + "gpu-type": "nvidia.com/gpu", capacity + "gpu-count": "1",
			v1alpha1.PriceAnnotation: "0.080", v1alpha1.SpotPriceAnnotation: "0.02",
		})
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Finalizers).To(ConsistOf(v1alpha1.NodeClassFinalizer))
		f.Expect(nodeClass.Annotations).To(HaveKeyWithValue(v1alpha1.NodeClassHashAnnotation, nodeclass.Hash(nodeClass)))
		f.Expect(nodeClass.Annotations).To(HaveKeyWithValue(v1alpha1.NodeClassHashVersionAnnotation, nodeclass.HashVersion))
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		f.Expect(nodeClass.Status.ShapeCount).To(HaveValue(BeEquivalentTo(2)))
		f.Expect(nodeClass.Status.Cheapest).To(Equal("c4-arm $0.02"))
		var lines []string
		for _, s := range nodeClass.Status.Shapes {
			gpu := s.GPU["nvidia.com/gpu"]
			lines = append(lines, fmt.Sprint(s.InstanceType, " ", s.Source, " ", s.Architecture, " ", s.CPU.String(), " ", s.Memory.String(), " ", gpu.String(), " ", s.Price, " ", s.SpotPrice, " ", s.Zones))
		}
		f.Expect(lines).To(Equal([]string{
			"c4-arm TestMachineTemplate/c4-arm arm64 4 8Gi 1 0.08 0.02 [a b]",
			"c2-small TestMachineTemplate/c2-small amd64 2 4Gi 0 0.021  [a b]",
		}))
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small", "c4-arm"}))
		choice, ok, err := f.store.Resolve(f.name, "c2-small", "b", "on-demand")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(ok).To(BeTrue())
		f.Expect(choice.FailureDomain).To(Equal("b"))
		f.Expect(choice.Shape.Bootstrap.ConfigTemplate.GetName()).To(Equal("default"))
		f.Expect(f.events.reasons()).To(BeEmpty(), "that all is well from the start is not an event")
	})

	t.Run("When templates come, change and go, it should follow them, and say each change once", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(nil)
		f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.NoShapesReason)
		small := f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.ready()
		f.template("c4-big", sized("4", "8Gi", "0.096"))
		f.Eventually(f.instanceTypes).Should(Equal([]string{"c2-small", "c4-big"}))

		small.SetAnnotations(sized("four", "4Gi", "0.021"))
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		message := f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.SomeInvalidReason)
		f.Expect(message).To(Equal(fmt.Sprintf("TestMachineTemplate %s/c2-small: annotation %scpu: %q is not a quantity; the other 1 shape is in use", f.Namespace, capacity, "four")))
		f.ready()
		// Its nodes have a type that Karpenter still knows, so that they aren't replaced for a typing error.
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small", "c4-big"}))
		f.Expect(f.available("c2-small")).To(BeFalse())
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.ShapeCount).To(HaveValue(BeEquivalentTo(1)))

		small.SetAnnotations(sized("2", "4Gi", "0.3"))
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.ConditionShapesReady)
		f.Expect(f.available("c2-small")).To(BeTrue())
		nodeClass, err = f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.Cheapest).To(Equal("c4-big $0.096"))
		f.Expect(f.Admin.Delete(t.Context(), small)).To(Succeed())
		f.Eventually(f.instanceTypes).Should(Equal([]string{"c4-big"}))
		f.Expect(f.events.reasons()).To(Equal([]string{v1alpha1.NoShapesReason, v1alpha1.ConditionShapesReady, v1alpha1.SomeInvalidReason, v1alpha1.ConditionShapesReady}))
	})

	t.Run("When a template's content changes, it should touch the node class, so that Karpenter looks for drift at once", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(nil)
		small := f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.ready()
		hash := func() (string, error) {
			nodeClass, err := f.get()
			return nodeClass.Annotations[nodeclass.ShapesHashAnnotation], err
		}
		f.Eventually(hash).ShouldNot(BeEmpty())
		before, err := hash()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(unstructured.SetNestedField(small.Object, "other", "spec", "template", "spec", "size")).To(Succeed())
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		f.Eventually(hash).ShouldNot(Equal(before))
	})

	t.Run("When nothing matches, it should say what exists", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		})
		message := f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.NoShapesReason)
		f.Expect(message).To(Equal(fmt.Sprintf("no TestMachineTemplate in namespace %[1]s of the management cluster matches spec.infrastructureTemplateSelectors[0] "+
			"(autonode.io/shape-pool=general): 1 exists, and it doesn't have the labels; no MachineDeployment in namespace %[1]s of the management cluster "+
			"matches spec.scalableResourceSelector (team=web): none exists", f.Namespace)))
		f.condition(status.ConditionReady, "False", "UnhealthyDependents")
	})

	t.Run("When all that matches is malformed, it should say what is wrong", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", nil)
		f.nodeClass(nil)
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.AllInvalidReason)).To(ContainSubstring("c2-small: has no cpu capacity"))
	})

	t.Run("When it selects nothing, it should say what to set", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.InfrastructureTemplateSelectors = nil })
		f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.NoSelectorReason)
	})

	t.Run("When a selector can't be parsed, it should name the field and use the others", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}
		})
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.SomeInvalidReason)).To(ContainSubstring("spec.scalableResourceSelector: "))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.InfrastructureTemplateSelectors = nil })
		f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.InvalidSelectorReason)
	})

	t.Run("When a kind isn't served, it should name it and use the others", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		missing := general()
		missing.Kind = "NoSuchMachineTemplate"
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.InfrastructureTemplateSelectors = append(n.Spec.InfrastructureTemplateSelectors, missing)
		})
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.SomeInvalidReason)).To(ContainSubstring("NoSuchMachineTemplate"))
		f.ready()
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.InfrastructureTemplateSelectors = []v1alpha1.InfrastructureTemplateSelector{missing}
		})
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.SourceUnreadableReason)).To(ContainSubstring("NoSuchMachineTemplate"))
	})

	t.Run("When a kind may not be read, it should say so, and follow once it may", func(t *testing.T) {
		const user = "karpenter"
		f := start(t, user)
		allow := func(name, group string, resources ...string) {
			role := &rbacv1.Role{
				ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
				Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}},
			}
			f.Expect(f.Admin.Create(t.Context(), role)).To(Succeed())
			f.Expect(f.Admin.Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
			})).To(Succeed())
		}
		allow("cluster", "cluster.x-k8s.io", "clusters")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		message := f.condition(v1alpha1.ConditionShapesReady, "False", v1alpha1.SourceUnreadableReason)
		f.Expect(message).To(And(ContainSubstring("testmachinetemplates"), ContainSubstring("forbidden"), ContainSubstring(user)))
		f.condition(v1alpha1.ConditionLaunchAllowed, "True", v1alpha1.ConditionLaunchAllowed)

		allow("templates", sandbox.TestMachine.Group, "testmachinetemplates")
		f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.ConditionShapesReady)
		f.Expect(f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.SourceUnreadableReason)).To(ContainSubstring("kubeadmconfigtemplates"))
		allow("bootstrap", sandbox.KubeadmConfig.Group, "kubeadmconfigtemplates")
		f.ready()
	})

	t.Run("When an object is another Cluster's, it should not be a shape", func(t *testing.T) {
		f := start(t, "")
		theirs := f.template("theirs", sized("2", "4Gi", "0.001"))
		theirs.SetLabels(map[string]string{pool: "general", clusterv1.ClusterNameLabel: "green"})
		f.Expect(f.Admin.Update(t.Context(), theirs)).To(Succeed())
		owned := f.template("owned", sized("2", "4Gi", "0.001"))
		owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "green", UID: "1"}})
		f.Expect(f.Admin.Update(t.Context(), owned)).To(Succeed())
		f.template("ours", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		f.Expect(f.instanceTypes()).To(Equal([]string{"ours"}))
	})
}

func TestMachineDeployment(t *testing.T) {
	machineDeployment := func(f *fixture, name, template, cluster string) *clusterv1.MachineDeployment {
		md := &clusterv1.MachineDeployment{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: f.Namespace, Name: name, Labels: map[string]string{"team": "web"},
				Annotations: map[string]string{v1alpha1.PriceAnnotation: "0.05", capacity + "memory": "6Gi"},
			},
			Spec: clusterv1.MachineDeploymentSpec{
				ClusterName: cluster,
				Replicas:    ptr.To[int32](0),
				Selector:    metav1.LabelSelector{MatchLabels: map[string]string{"md": name}},
				Template: clusterv1.MachineTemplateSpec{
					ObjectMeta: clusterv1.ObjectMeta{Labels: map[string]string{"md": name, "node.cluster.x-k8s.io/rack": "1"}},
					Spec: clusterv1.MachineSpec{
						ClusterName: cluster, Version: "v1.36.1", FailureDomain: "b",
						InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: sandbox.TestMachine.Group, Kind: "TestMachineTemplate", Name: template},
						Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
							APIGroup: sandbox.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "default"}},
						Taints: []clusterv1.MachineTaint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways}},
					},
				},
			},
		}
		f.Expect(f.Admin.Create(f.t.Context(), md)).To(Succeed())
		return md
	}
	t.Run("When MachineDeployments match, it should read template, bootstrap, labels, taints, version and zone, and leave their replicas alone", func(t *testing.T) {
		f := start(t, "")
		machineDeployment(f, "workers", "c4-large-sized", "blue")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		machineDeployment(f, "orphans", "gone", "blue")
		machineDeployment(f, "green-workers", "c4-large-sized", "green")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec = v1alpha1.ClusterAPINodeClassSpec{ShapeSelectors: v1alpha1.ShapeSelectors{
				ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}}}
		})
		f.ready()
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.SomeInvalidReason)).To(Equal(fmt.Sprintf(
			"MachineDeployment %s/orphans: TestMachineTemplate gone, which it refers to, doesn't exist; the other 1 shape is in use", f.Namespace)))
		choice, ok, err := f.store.Resolve(f.name, "workers", "b", "on-demand")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(ok).To(BeTrue())
		sh := choice.Shape
		f.Expect(sh.Template.GetName()).To(Equal("c4-large-sized"))
		f.Expect(sh.Bootstrap.ConfigTemplate.GetName()).To(Equal("default"))
		f.Expect(sh.Version()).To(Equal("v1.36.1"))
		f.Expect(sh.Labels).To(Equal(map[string]string{"node.cluster.x-k8s.io/rack": "1"}))
		f.Expect(sh.Taints).To(Equal([]corev1.Taint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}}))
		f.Expect(sh.Capacity.Memory().String()).To(Equal("6Gi"))
		f.Expect(choice.Offering.Price).To(Equal(0.05))
		f.Expect(choice.FailureDomain).To(Equal("b"))
		f.Expect(f.instanceTypes()).To(Equal([]string{"workers"}))
	})
	t.Run("When a MachineDeployment has a version of its own, its nodes should get that, and none if it isn't possible", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := machineDeployment(f, "workers", "c4-large-sized", "blue")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		})
		f.ready()
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		versions := map[string]string{}
		for _, s := range nodeClass.Status.Shapes {
			versions[s.InstanceType] = s.Version
		}
		f.Expect(versions).To(Equal(map[string]string{"workers": "1.36.1", "c4-large-sized": ""}))
		choice, _, err := f.store.Resolve(f.name, "workers", "b", "on-demand")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(choice.Shape.NodeVersion).To(Equal("1.36.1"))

		version := func(v string) {
			patch := client.MergeFrom(md.DeepCopy())
			md.Spec.Template.Spec.Version = v
			f.Expect(f.Admin.Patch(t.Context(), md, patch)).To(Succeed())
		}
		version("v1.32.9")
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.SomeInvalidReason)).To(Equal(fmt.Sprintf("MachineDeployment %s/workers: "+
			"the MachineDeployment's version 1.32.9 is more than 3 minor versions behind the API server's version 1.36.2; raise it; the other 1 shape is in use", f.Namespace)))
		f.Expect(f.available("workers")).To(BeFalse())
		f.Expect(f.available("c4-large-sized")).To(BeTrue())
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.36.0" })
		f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.ConditionShapesReady)
		f.Expect(f.available("workers")).To(BeTrue())
	})
	t.Run("When it has sizes, its own replicas should count, and it should say that nobody keeps the rest of the minimum", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := machineDeployment(f, "workers", "c4-large-sized", "blue")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec = v1alpha1.ClusterAPINodeClassSpec{ShapeSelectors: v1alpha1.ShapeSelectors{
				ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}}}
		})
		f.ready()
		patch := client.MergeFrom(md.DeepCopy())
		md.Spec.Replicas = ptr.To[int32](2)
		md.Annotations[clusterv1.AutoscalerMinSizeAnnotation], md.Annotations[clusterv1.AutoscalerMaxSizeAnnotation] = "4", "5"
		f.Expect(f.Admin.Patch(t.Context(), md, patch)).To(Succeed())
		f.Expect(f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.MinSizeNotKeptReason)).To(HavePrefix(fmt.Sprintf(
			`MachineDeployment %s/workers: annotation cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size: "4" isn't kept`, f.Namespace)))
		choice, _, err := f.store.Resolve(f.name, "workers", "b", "on-demand")
		f.Expect(err).NotTo(HaveOccurred())
		limit, limited := choice.Shape.Limit()
		f.Expect(limited).To(BeTrue())
		f.Expect(limit).To(Equal(3))
	})
	t.Run("When it is paused, it should offer nothing from it", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := machineDeployment(f, "workers", "c4-large-sized", "blue")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		})
		available := func() bool { return f.available("workers") }
		f.Eventually(available).Should(BeTrue())
		patch := client.MergeFrom(md.DeepCopy())
		md.Spec.Paused = ptr.To(true)
		f.Expect(f.Admin.Patch(t.Context(), md, patch)).To(Succeed())
		f.Eventually(available).Should(BeFalse())
	})
}

func TestBootstrap(t *testing.T) {
	for _, tc := range []struct {
		name      string
		bootstrap *v1alpha1.Bootstrap
		reason    string
		message   string
	}{
		{"When templates are selected without a bootstrap, it should say what to set", nil,
			v1alpha1.BootstrapMissingReason, "set spec.bootstrap"},
		{"When the bootstrap template doesn't exist, it should name it", &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: sandbox.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "other"}},
			v1alpha1.BootstrapNotFoundReason, "spec.bootstrap.configTemplateRef: KubeadmConfigTemplate other doesn't exist in namespace"},
		{"When the bootstrap kind isn't served, it should name it", &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: sandbox.KubeadmConfig.Group, Kind: "NoSuchTemplate", Name: "other"}},
			v1alpha1.SourceUnreadableReason, "NoSuchTemplate"},
		{"When the bootstrap Secret doesn't exist, it should name it", &v1alpha1.Bootstrap{DataSecretName: "join"},
			v1alpha1.BootstrapNotFoundReason, "spec.bootstrap.dataSecretName: Secret join doesn't exist in namespace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, "")
			f.template("c2-small", sized("2", "4Gi", "0.021"))
			f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap = tc.bootstrap })
			f.Expect(f.condition(v1alpha1.ConditionBootstrapReady, "False", tc.reason)).To(ContainSubstring(tc.message))
			f.condition(v1alpha1.ConditionShapesReady, "True", v1alpha1.ConditionShapesReady)
			f.condition(status.ConditionReady, "False", "UnhealthyDependents")
			f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small"}), "what nodes were made from still exists")
			f.Expect(f.events.reasons()).To(Equal([]string{tc.reason}))
		})
	}
	t.Run("When the bootstrap Secret exists, it should be ready and say that its nodes may register without the taint", func(t *testing.T) {
		f := start(t, "")
		f.Expect(f.Admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "join"}})).To(Succeed())
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: "join"} })
		f.ready()
		f.Expect(f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.RegistrationUnknownReason)).To(And(
			ContainSubstring("1 of 1 shape may register without the taint karpenter.sh/unregistered"), ContainSubstring("Secret join")))
	})
	t.Run("When the bootstrap kind isn't known, it should be ready and say which patches are missing, until they are there", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			// To this provider it is a template like any other.
			n.Spec.Bootstrap.ConfigTemplateRef = &v1alpha1.BootstrapTemplateReference{
				APIGroup: sandbox.TestMachine.Group, Kind: "TestMachineTemplate", Name: f.InfrastructureTemplate.GetName(),
			}
		})
		f.ready()
		f.Expect(f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.RegistrationUnknownReason)).To(
			ContainSubstring("set spec.bootstrapPatches for TestMachine (infrastructure.cluster.x-k8s.io)"))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{
				APIGroup: sandbox.TestMachine.Group, Kind: sandbox.TestMachine.Kind,
				Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/taints", Value: "$(Taints)"}},
			}}
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.ConditionBootstrapReady)
	})
	t.Run("When the bootstrap template appears, it should become ready", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap.ConfigTemplateRef.Name = "late" })
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotFoundReason)
		late := f.BootstrapTemplate.DeepCopy()
		late.SetName("late")
		late.SetResourceVersion("")
		f.Expect(f.Admin.Create(t.Context(), late)).To(Succeed())
		f.ready()
	})
}

func TestLaunchAllowed(t *testing.T) {
	f := start(t, "")
	f.template("c2-small", sized("2", "4Gi", "0.021"))
	f.nodeClass(nil)
	f.ready()
	t.Run("When AutoNode is being turned off, it should launch nothing until it is on again", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Annotations[v1alpha1.DrainingAnnotation] = "true" })
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.DrainingReason)
		f.condition(status.ConditionReady, "False", "UnhealthyDependents")
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { delete(n.Annotations, v1alpha1.DrainingAnnotation) })
		f.ready()
	})
	t.Run("When the Cluster is paused, it should launch nothing until it resumes", func(t *testing.T) {
		patch := client.MergeFrom(f.Cluster.DeepCopy())
		f.Cluster.Spec.Paused = ptr.To(true)
		f.Expect(f.Admin.Patch(t.Context(), f.Cluster, patch)).To(Succeed())
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterPausedReason)
		choice, _, err := f.store.Resolve(f.name, "c2-small", "a", "on-demand")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(choice.Offering.Available).To(BeFalse())
		patch = client.MergeFrom(f.Cluster.DeepCopy())
		f.Cluster.Spec.Paused = ptr.To(false)
		f.Expect(f.Admin.Patch(t.Context(), f.Cluster, patch)).To(Succeed())
		f.ready()
	})
	t.Run("When the Cluster's infrastructure isn't provisioned, as after a move, it should launch nothing and keep the zones it knew", func(t *testing.T) {
		provisioned := func(state bool, domains ...clusterv1.FailureDomain) {
			f.Cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(state)
			f.Cluster.Status.FailureDomains = domains
			f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())
		}
		provisioned(false)
		f.Expect(f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterNotProvisionedReason)).To(Equal(fmt.Sprintf(
			"the Cluster's infrastructure isn't provisioned yet in namespace %s of the management cluster; nothing is launched until its infrastructure provider is done", f.Namespace)))
		f.Expect(f.available("c2-small")).To(BeTrue())
		provisioned(true, clusterv1.FailureDomain{Name: "a"}, clusterv1.FailureDomain{Name: "b"})
		f.ready()
	})
	t.Run("When nothing changes, it should write nothing", func(t *testing.T) {
		before, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(f.InfrastructureTemplate.GroupVersionKind())
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.InfrastructureTemplate), u)).To(Succeed())
		u.SetAnnotations(map[string]string{"unrelated": "change"})
		f.Expect(f.Admin.Update(t.Context(), u)).To(Succeed())
		f.Consistently(func() (string, error) {
			after, err := f.get()
			return after.ResourceVersion, err
		}, "500ms").Should(Equal(before.ResourceVersion))
	})
}

func TestVersion(t *testing.T) {
	f := start(t, "")
	f.template("c2-small", sized("2", "4Gi", "0.021"))
	serve := func(v string) {
		f.server.mu.Lock()
		f.server.version = v
		f.server.mu.Unlock()
		_, err := f.tracker.Reconcile(t.Context())
		f.Expect(err).NotTo(HaveOccurred())
	}
	serve("v1.36.1")
	f.nodeClass(nil)
	t.Run("When the payload is ahead of the API server, it should hold nodes back and be ready", func(t *testing.T) {
		f.Expect(f.condition(v1alpha1.ConditionVersionReady, "True", "HeldBack")).To(ContainSubstring("nodes stay at 1.36.1"))
		f.ready()
	})
	t.Run("When the API server is away, it should change nothing", func(t *testing.T) {
		serve("")
		f.ready()
	})
	t.Run("When the API server has been upgraded, it should follow and tell", func(t *testing.T) {
		serve("v1.36.2")
		f.condition(v1alpha1.ConditionVersionReady, "True", v1alpha1.ConditionVersionReady)
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		f.Eventually(f.events.reasons).Should(ContainElement("VersionChanged"))
	})
	t.Run("When the node class asks for too much, it should launch nothing, and keep the version so that nothing drifts", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.37.0" })
		f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionTooNewReason)
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		f.condition(status.ConditionReady, "False", "UnhealthyDependents")
	})
	t.Run("When the node class asks for what is beyond the skew, it should launch nothing and say so", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.32.9" })
		f.Expect(f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionTooOldReason)).To(Equal(
			"spec.version 1.32.9 is more than 3 minor versions behind the API server's version 1.36.2; raise it"))
	})
	t.Run("When the node class asks for what is no version, it should launch nothing and say so", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.36.2-a_b" })
		f.Expect(f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionMalformedReason)).To(Equal(`spec.version "1.36.2-a_b" is not a version, such as 1.36.3`))
	})
	t.Run("When the node class asks for what the API server supports, it should be ready again", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.33.0" })
		f.ready()
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(nodeClass.Status.Version).To(Equal("1.33.0"))
	})
}

func TestHashVersion(t *testing.T) {
	t.Run("When the provider is upgraded to another rule, it should hash NodeClaims anew and let what has drifted be replaced", func(t *testing.T) {
		f := start(t, "")
		const version = v1alpha1.NodeClassHashVersionAnnotation
		const hash = v1alpha1.NodeClassHashAnnotation
		before := func(name string) *karpv1.NodeClaim {
			nodeClaim := f.NodeClaim(t.Context(), name)
			patch := client.MergeFrom(nodeClaim.DeepCopy())
			nodeClaim.Annotations = map[string]string{version: "v0", hash: "old"}
			f.Expect(f.Admin.Patch(t.Context(), nodeClaim, patch)).To(Succeed())
			return nodeClaim
		}
		settled, drifted := before("settled"), before("drifted")
		drifted.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodeClassDrifted", "NodeClassDrifted")
		f.Expect(f.Admin.Status().Update(t.Context(), drifted)).To(Succeed())
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Annotations = map[string]string{version: "v0", hash: "old"} })

		annotation := func(nodeClaim *karpv1.NodeClaim, key string) func() (string, error) {
			return func() (string, error) {
				err := f.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), nodeClaim)
				return nodeClaim.Annotations[key], err
			}
		}
		f.Eventually(annotation(settled, version)).Should(Equal(nodeclass.HashVersion))
		f.Eventually(annotation(drifted, version)).Should(Equal(nodeclass.HashVersion))
		f.Eventually(func() (string, error) {
			nodeClass, err := f.get()
			return nodeClass.Annotations[version], err
		}).Should(Equal(nodeclass.HashVersion))
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(settled.Annotations[hash]).To(Equal(nodeclass.Hash(nodeClass)))
		f.Expect(drifted.Annotations[hash]).To(Equal("old"))

		late := before("late")
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		})
		f.Eventually(func() (string, error) {
			nodeClass, err := f.get()
			return nodeClass.Annotations[hash], err
		}).ShouldNot(Equal(settled.Annotations[hash]))
		f.Expect(annotation(settled, hash)()).To(Equal(nodeclass.Hash(nodeClass)), "what changes afterwards is drift")
		f.Expect(annotation(late, version)()).To(Equal("v0"))
	})
}

func TestDelete(t *testing.T) {
	f := start(t, "")
	f.template("c2-small", sized("2", "4Gi", "0.021"))
	f.nodeClass(nil)
	f.ready()
	nodeClaim := f.NodeClaim(t.Context(), "web")
	t.Run("When a NodeClaim uses the node class, it should stay until that is gone", func(t *testing.T) {
		nodeClass, err := f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(f.Admin.Delete(t.Context(), nodeClass)).To(Succeed())
		f.Eventually(f.events.reasons).Should(ContainElement("WaitingForNodeClaims"))
		_, err = f.get()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small"}))

		f.Expect(f.Admin.Delete(t.Context(), nodeClaim)).To(Succeed())
		f.Eventually(func() bool {
			_, err := f.get()
			return apierrors.IsNotFound(err)
		}).Should(BeTrue())
		f.Eventually(f.instanceTypes).Should(ConsistOf(ContainSubstring(instancetype.ErrNotBuilt.Error())))
	})
}
