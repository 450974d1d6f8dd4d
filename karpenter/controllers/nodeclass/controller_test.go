// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
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
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/nodeupgrade"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

const (
	autoscaler = "capacity.cluster-autoscaler.kubernetes.io/"
	pool       = "autonode.io/template-pool"
)

// fixture is a running controller of one node class.
type fixture struct {
	*GomegaWithT
	*environment.Environment
	t       *testing.T
	store   *instancetype.Provider
	server  *server
	tracker *version.Tracker
	// unavailable and machines say which offerings of the store are unavailable.
	unavailable *offering.Unavailable
	machines    *inventory.Inventory
	// prices, images and profiles are the paths of the files of prices, of node images and of profiles, which don't exist.
	prices, images, profiles string
	// plan is the path of the file of an upgrade, which doesn't exist, and upgrade follows it when it is reconciled.
	plan    string
	upgrade *nodeupgrade.Upgrade
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
	return startWith(t, user, "", nil, nil)
}

// startSmall is start with one template, for a node class.
func startSmall(t *testing.T, change func(*v1alpha1.ClusterAPINodeClass)) *fixture {
	f := start(t, "")
	f.template("c2-small", sized("2", "4Gi", "0.021"))
	f.nodeClass(change)
	return f
}

// startWith is start for a platform that allows some patches and bounds kubelets, and the Secrets that a user may read.
func startWith(t *testing.T, user, secretReader string, allowed []v1alpha1.BootstrapPatches, bounds *v1alpha1.KubeletBounds) *fixture {
	f := &fixture{
		GomegaWithT: NewWithT(t), Environment: environment.New(t), t: t, server: &server{version: "v1.36.2"}, events: &recorder{},
	}
	f.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	f.name = f.Namespace
	f.Cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "b"}, {Name: "a", ControlPlane: ptr.To(true)}}
	f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())

	m := f.Manager(func(o *manager.Options) {
		// Node classes have no namespace, and other tests have some of their own.
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&v1alpha1.ClusterAPINodeClass{}: {Field: fields.OneTermEqualSelector("metadata.name", f.name)},
		}
	})
	management := rest.CopyConfig(f.Management.GetConfig())
	management.Impersonate.UserName = user
	dynamicClient, err := dynamic.NewForConfig(management)
	f.Expect(err).NotTo(HaveOccurred())
	secretConfig := rest.CopyConfig(f.Management.GetConfig())
	secretConfig.Impersonate.UserName = secretReader
	secrets, err := client.New(secretConfig, client.Options{Scheme: f.Guest.GetScheme()})
	f.Expect(err).NotTo(HaveOccurred())
	objects := informer.New(informer.Config{
		Management: dynamicClient, Mapper: f.Management.GetRESTMapper(), Namespace: f.Namespace, Versions: template.Versions,
	})
	f.prices = filepath.Join(t.TempDir(), "prices.yaml")
	prices := pricing.NewFile(f.prices)
	f.Expect(m.Add(prices)).To(Succeed())
	f.images = filepath.Join(t.TempDir(), "images.json")
	images := nodeimage.NewFile(f.images)
	f.Expect(m.Add(images)).To(Succeed())
	f.profiles = filepath.Join(t.TempDir(), "profiles.yaml")
	profiles, err := profile.New(f.profiles)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(m.Add(profiles)).To(Succeed())
	f.unavailable = offering.NewUnavailable(clock.RealClock{})
	f.machines = inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: clock.RealClock{}})
	f.tracker = version.NewTracker(f.server, version.ResolvedOf(f.ownNodeClasses()))
	_, err = f.tracker.Reconcile(t.Context())
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(m.Add(objects)).To(Succeed())
	versions := version.Resolver{Tracker: f.tracker, Payload: "1.36.2"}
	f.store = instancetype.New(instancetype.Config{
		Templates: template.NewResolver(template.Config{Objects: objects, ClusterName: f.Cluster.Name, Secrets: secrets, Namespace: f.Namespace, Profiles: profiles}),
		Check:     machine.CheckPatches,
		Version:   versions.Resolve, Pricing: pricing.New(prices), Unavailable: f.unavailable, Inventory: f.machines, Capacity: capacityprovider.Unlimited{},
	})
	f.plan = filepath.Join(t.TempDir(), upgradeplan.Key)
	f.upgrade = nodeupgrade.New(nodeupgrade.Config{
		Path: f.plan, Version: "1.36.2", Guest: f.Guest.GetClient(), Machines: f.Machines(nil), TooOld: versions.TooOld, Clock: clock.RealClock{},
	})
	f.Expect(nodeclass.New(nodeclass.Config{
		Guest: m.GetClient(), Namespace: f.Namespace, Objects: objects, AllowedPatches: allowed, KubeletBounds: bounds,
		InstanceTypes: f.store, Prices: prices, Images: images, Profiles: profiles, Version: versions, Upgrade: f.upgrade, Recorder: f.events, Clock: clock.RealClock{},
		AvailabilityDelay: time.Millisecond, Pending: func(context.Context) (int, error) { return 12, nil },
	}).Register(t.Context(), m)).To(Succeed())

	f.Run(t.Context(), m)
	return f
}

// ownNodeClasses reads this test's node class alone: another test's would be one that nodes were resolved to before.
func (f *fixture) ownNodeClasses() client.Reader { return named{f.Guest.GetAPIReader(), f.name} }

// named lists the objects of one name.
type named struct {
	client.Reader
	name string
}

func (n named) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return n.Reader.List(ctx, list, append(opts, client.MatchingFields{"metadata.name": n.name})...)
}

// template makes an infrastructure machine template of the pool general.
func (f *fixture) template(name string, annotations map[string]string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"size": name}}}}}
	u.SetGroupVersionKind(environment.TestMachine.GroupVersion().WithKind("TestMachineTemplate"))
	u.SetNamespace(f.Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{pool: "general"})
	u.SetAnnotations(annotations)
	f.Expect(f.Admin.Create(f.t.Context(), u)).To(Succeed())
	return u
}

func sized(cpu, memory, price string) map[string]string {
	return map[string]string{autoscaler + "cpu": cpu, autoscaler + "memory": memory, autoscaler + "ephemeral-disk": "100Gi", v1alpha1.PriceAnnotation: price}
}

// nodeClass makes one that selects the pool general and joins by the default template.
func (f *fixture) nodeClass(change func(*v1alpha1.ClusterAPINodeClass)) {
	f.t.Helper()
	nodeClass := &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			TemplateSelectors: v1alpha1.TemplateSelectors{InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{general()}},
			Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
				APIGroup: environment.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "default",
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
		APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate",
		Selector: metav1.LabelSelector{MatchLabels: map[string]string{pool: "general"}},
	}
}

func (f *fixture) get() (*v1alpha1.ClusterAPINodeClass, error) {
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	return nodeClass, f.Admin.Get(f.t.Context(), client.ObjectKey{Name: f.name}, nodeClass)
}

// stored is the node class as the API server has it.
func (f *fixture) stored() *v1alpha1.ClusterAPINodeClass {
	f.t.Helper()
	nodeClass, err := f.get()
	f.Expect(err).NotTo(HaveOccurred())
	return nodeClass
}

// patch writes a change of an object.
func (f *fixture) patch(object client.Object, change func()) {
	f.t.Helper()
	before := object.DeepCopyObject().(client.Object)
	change()
	f.Expect(f.Admin.Patch(f.t.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// write replaces a file that the controller follows.
func (f *fixture) write(path, content string) {
	f.t.Helper()
	f.Expect(os.WriteFile(path+".new", []byte(content), 0o600)).To(Succeed())
	f.Expect(os.Rename(path+".new", path)).To(Succeed())
}

// secret makes the Secret that a node class names for its bootstrap data.
func (f *fixture) secret(name string) {
	f.t.Helper()
	f.Expect(f.Admin.Create(f.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}})).To(Succeed())
}

// resolve returns the template that a machine of a type would be launched from in zone b.
func (f *fixture) resolve(instanceType string) instancetype.Choice {
	f.t.Helper()
	choice, ok, err := f.store.Resolve(f.name, instanceType, "b", "on-demand")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(ok).To(BeTrue())
	return choice
}

// deployments selects the MachineDeployments of team web, and nothing else.
func deployments(n *v1alpha1.ClusterAPINodeClass) {
	n.Spec = v1alpha1.ClusterAPINodeClassSpec{}
	andDeployments(n)
}

// andDeployments selects the MachineDeployments of team web, too.
func andDeployments(n *v1alpha1.ClusterAPINodeClass) {
	n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
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

// condition waits until a condition reports this, with a message that matches.
func (f *fixture) condition(conditionType, state, reason string, message ...gomegatypes.GomegaMatcher) {
	f.t.Helper()
	all := []gomegatypes.GomegaMatcher{HaveField("Status", BeEquivalentTo(state)), HaveField("Reason", reason)}
	for _, matcher := range message {
		all = append(all, HaveField("Message", matcher))
	}
	f.Eventually(func() (status.Condition, error) {
		nodeClass, err := f.get()
		if err != nil {
			return status.Condition{}, err
		}
		for _, c := range nodeClass.Status.Conditions {
			if c.Type == conditionType {
				return c, nil
			}
		}
		return status.Condition{}, nil
	}).Should(And(all...), func() string {
		nodeClass, _ := f.get()
		return fmt.Sprintf("status: %+v", nodeClass.Status)
	})
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

// machineDeployment makes one of team web, without replicas.
func (f *fixture) machineDeployment(name, template, cluster string) *clusterv1.MachineDeployment {
	md := &clusterv1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: name, Labels: map[string]string{"team": "web"},
			Annotations: map[string]string{v1alpha1.PriceAnnotation: "0.05", autoscaler + "memory": "6Gi"},
		},
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: cluster,
			Replicas:    ptr.To[int32](0),
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{"md": name}},
			Template: clusterv1.MachineTemplateSpec{
				ObjectMeta: clusterv1.ObjectMeta{Labels: map[string]string{"md": name, "node.cluster.x-k8s.io/rack": "1"}},
				Spec: clusterv1.MachineSpec{
					ClusterName: cluster, Version: "v1.36.1", FailureDomain: "b",
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate", Name: template},
					Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
						APIGroup: environment.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "default"}},
					Taints: []clusterv1.MachineTaint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways}},
				},
			},
		},
	}
	f.Expect(f.Admin.Create(f.t.Context(), md)).To(Succeed())
	return md
}

// allow lets a user read a kind in the management cluster.
func (f *fixture) allow(user, name, group string, resources ...string) {
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}},
	}
	f.Expect(f.Admin.Create(f.t.Context(), role)).To(Succeed())
	f.Expect(f.Admin.Create(f.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	})).To(Succeed())
}

// available reports whether a machine of a type could be launched in zone b.
func (f *fixture) available(instanceType string) bool {
	choice, ok, err := f.store.Resolve(f.name, instanceType, "b", "on-demand")
	return err == nil && ok && choice.Offering.Available
}

func TestHashVersion(t *testing.T) {
	t.Run("When the provider is upgraded to another rule, it should rehash NodeClaims and have drifted ones replaced", func(t *testing.T) {
		f := start(t, "")
		const version = v1alpha1.NodeClassHashVersionAnnotation
		const hash = v1alpha1.NodeClassHashAnnotation
		before := func(name string) *karpv1.NodeClaim {
			nodeClaim := f.NodeClaim(t.Context(), name)
			f.patch(nodeClaim, func() { nodeClaim.Annotations = map[string]string{version: "v0", hash: "old"} })
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
		f.Eventually(annotation(settled, version)).Should(Equal(v1alpha1.NodeClassHashVersion))
		f.Eventually(annotation(drifted, version)).Should(Equal(v1alpha1.NodeClassHashVersion))
		f.Eventually(func() string { return f.stored().Annotations[version] }).Should(Equal(v1alpha1.NodeClassHashVersion))
		nodeClass := f.stored()
		f.Expect(settled.Annotations[hash]).To(Equal(nodeClass.Hash()))
		f.Expect(drifted.Annotations[hash]).To(Equal("old"))

		late := before("late")
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		})
		f.Eventually(func() string { return f.stored().Annotations[hash] }).ShouldNot(Equal(settled.Annotations[hash]))
		f.Expect(annotation(settled, hash)()).To(Equal(nodeClass.Hash()), "what changes afterwards is drift")
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
		nodeClass := f.stored()
		f.Expect(f.Admin.Delete(t.Context(), nodeClass)).To(Succeed())
		f.Eventually(f.events.reasons).Should(ContainElement("WaitingForNodeClaims"))
		f.stored()
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small"}))

		f.Expect(f.Admin.Delete(t.Context(), nodeClaim)).To(Succeed())
		f.Eventually(func() bool {
			_, err := f.get()
			return apierrors.IsNotFound(err)
		}).Should(BeTrue())
		f.Eventually(f.instanceTypes).Should(ConsistOf(ContainSubstring(instancetype.ErrUnresolved.Error())))
	})
}
