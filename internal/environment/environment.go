// SPDX-License-Identifier: Apache-2.0

// Package environment is shared by karpenter's envtest packages: one real API server that is a management cluster and a guest cluster at
// once, without controllers. Tests play the part of Cluster API.
package environment

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

//go:embed crds.yaml
var infrastructureCRDs []byte

// Kinds of the infrastructure provider that tests play, and of the bootstrap provider.
var (
	TestMachine   = schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Kind: "TestMachine"}
	KubeadmConfig = schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfig"}
)

// HoldFinalizer keeps a Machine that is being deleted for as long as a test needs it, as Cluster API does until the infrastructure has
// gone.
const HoldFinalizer = "environment.autonode.io/hold"

// ChildKinds are the kinds that machines in an environment have.
func ChildKinds(context.Context) []schema.GroupVersionKind {
	return []schema.GroupVersionKind{TestMachine, KubeadmConfig}
}

var config *rest.Config

// Main runs a package's tests with an API server, whose programs are in the directory that KUBEBUILDER_ASSETS names. Benchmarks
// alone (-run '^$') need none.
func Main(m *testing.M) int {
	flag.Parse()
	if only := flag.Lookup("test.run"); only != nil && only.Value.String() == "^$" {
		return m.Run()
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "running the API server for tests:", err)
		return 1
	}
	return code
}

func run(m *testing.M) (code int, err error) {
	bases, err := clusterAPICRDs()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "environment")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, "infrastructure.yaml"), infrastructureCRDs, 0o600); err != nil {
		return 0, err
	}
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return 0, err
	}
	guestCRDs, err := crds.Embedded()
	if err != nil {
		return 0, err
	}
	environment := apiserver.New(envtest.CRDInstallOptions{CRDs: guestCRDs, Paths: append(bases, dir), ErrorIfPathMissing: true})
	config, err = environment.Start()
	if err != nil {
		return 0, err
	}
	config.QPS = -1
	defer func() { err = errors.Join(err, environment.Stop()) }()
	return m.Run(), nil
}

// clusterAPICRDs finds Cluster API's CRDs where its module was unpacked, and that of the CapacityLease.
func clusterAPICRDs() ([]string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api", "github.com/autonode-io/autonode").Output()
	if err != nil {
		return nil, fmt.Errorf("finding Cluster API's module: %w", err)
	}
	root, product, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	files := []string{filepath.Join(product, "manifests/crds/autonode.io_capacityleases.yaml")}
	for _, name := range []string{
		"core/config/crd/bases/cluster.x-k8s.io_clusters.yaml",
		"core/config/crd/bases/cluster.x-k8s.io_machines.yaml",
		"core/config/crd/bases/cluster.x-k8s.io_machinedeployments.yaml",
		"core/config/crd/bases/cluster.x-k8s.io_machinehealthchecks.yaml",
		"bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigs.yaml",
		"bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml",
	} {
		files = append(files, filepath.Join(root, name))
	}
	return files, nil
}

// Environment is a control-plane namespace of its own, with a Cluster and templates.
type Environment struct {
	t *testing.T
	// Namespace in the management cluster. Guest objects, which have none, have it in their names.
	Namespace string
	Cluster   *clusterv1.Cluster
	// Admin reads and writes past any cache, in both clusters.
	Admin client.Client
	// Management reads the namespace from a cache that has package machine's indexes.
	Management cluster.Cluster
	// Guest reads from a cache.
	Guest cluster.Cluster

	InfrastructureTemplate, BootstrapTemplate *unstructured.Unstructured
	// CACertHashes that Machines gives a provider: with some, it renders bootstrap data itself.
	CACertHashes []string
}

// New makes an environment that ends with the test.
func New(t *testing.T) *Environment {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	scheme := runtime.NewScheme()
	must(errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), autonodev1alpha1.AddToScheme(scheme),
		clusterv1.AddToScheme(scheme)))
	scheme.AddKnownTypes(schema.GroupVersion{Group: apis.Group, Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{},
		&karpv1.NodePool{}, &karpv1.NodePoolList{})
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Group: apis.Group, Version: "v1"})

	admin, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	s := &Environment{t: t, Admin: admin}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "clusters-"}}
	must(admin.Create(ctx, namespace))
	s.Namespace = namespace.Name

	s.Cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "blue"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: TestMachine.Group, Kind: "TestCluster", Name: "blue",
		}},
	}
	must(admin.Create(ctx, s.Cluster))
	s.Cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	must(admin.Status().Update(ctx, s.Cluster))
	s.InfrastructureTemplate = s.template(TestMachine.GroupVersion(), "TestMachineTemplate", "c4-large", map[string]any{
		"spec": map[string]any{"size": "c4"},
	})
	s.BootstrapTemplate = s.template(KubeadmConfig.GroupVersion(), "KubeadmConfigTemplate", "default", map[string]any{
		"spec": map[string]any{"preKubeadmCommands": []any{"echo hello"}},
	})
	must(admin.Create(ctx, s.InfrastructureTemplate))
	must(admin.Create(ctx, s.BootstrapTemplate))

	s.Management, err = cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{s.Namespace: {}}}
	})
	must(err)
	must(machine.Index(ctx, s.Management.GetFieldIndexer()))
	s.Guest, err = cluster.New(config, func(o *cluster.Options) { o.Scheme = scheme })
	must(err)
	// As Karpenter core's.
	must(s.Guest.GetFieldIndexer().IndexField(ctx, &karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string {
		return []string{o.(*karpv1.NodeClaim).Status.ProviderID}
	}))
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 2)
	for _, c := range []cluster.Cluster{s.Management, s.Guest} {
		go func() { done <- c.Start(ctx) }()
		if !c.GetCache().WaitForCacheSync(ctx) {
			t.Fatal("waiting for the cache")
		}
	}
	must(s.letMachinesGo(ctx))
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// letMachinesGo takes Cluster API's finalizer, which Machines are made with, from those that are being deleted.
func (s *Environment) letMachinesGo(ctx context.Context) error {
	informer, err := s.Management.GetCache().GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return err
	}
	release := func(object any) {
		cached, ok := object.(*clusterv1.Machine)
		if !ok || cached.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(cached, clusterv1.MachineFinalizer) {
			return
		}
		released := cached.DeepCopy()
		controllerutil.RemoveFinalizer(released, clusterv1.MachineFinalizer)
		if err := s.Admin.Patch(ctx, released, client.MergeFrom(cached)); client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			s.t.Errorf("letting Machine %s go: %v", cached.Name, err)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    release,
		UpdateFunc: func(_, object any) { release(object) },
	})
	return err
}

func (s *Environment) template(gv schema.GroupVersion, kind, name string, content map[string]any) *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": content}}}
	template.SetGroupVersionKind(gv.WithKind(kind))
	template.SetNamespace(s.Namespace)
	template.SetName(name)
	return template
}

// NodeClass makes a node class in the guest that is ready, at version 1.36.2.
func (s *Environment) NodeClass(ctx context.Context) *v1alpha1.ClusterAPINodeClass {
	s.t.Helper()
	nodeClass := &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Spec: v1alpha1.ClusterAPINodeClassSpec{TemplateSelectors: v1alpha1.TemplateSelectors{
			InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{APIGroup: TestMachine.Group, Kind: "TestMachineTemplate"}},
		}},
	}
	if err := s.Admin.Create(ctx, nodeClass); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = s.Admin.Delete(context.WithoutCancel(ctx), nodeClass) })
	nodeClass.Status.Version = "1.36.2"
	for _, condition := range v1alpha1.ReadyConditions() {
		nodeClass.StatusConditions().SetTrue(condition)
	}
	if err := s.Admin.Status().Update(ctx, nodeClass); err != nil {
		s.t.Fatal(err)
	}
	return nodeClass
}

// NodeClaim makes a NodeClaim in the guest that requests a core.
func (s *Environment) NodeClaim(ctx context.Context, name string, change ...func(*karpv1.NodeClaimSpec)) *karpv1.NodeClaim {
	s.t.Helper()
	nodeClaim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:   s.Namespace + "-" + name,
			Labels: map[string]string{karpv1.NodePoolLabelKey: "general"},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: s.Namespace},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}},
			},
			Resources: karpv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		},
	}
	for _, change := range change {
		change(&nodeClaim.Spec)
	}
	if err := s.Admin.Create(ctx, nodeClaim); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = s.Admin.Patch(ctx, nodeClaim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		_ = s.Admin.Delete(ctx, nodeClaim)
	})
	return nodeClaim
}

// Template returns a template with four cores and a price, of the environment's infrastructure and bootstrap templates.
func (s *Environment) Template(instanceType string, price float64) template.Template {
	return template.Template{
		Source: template.Source{
			GroupKind:        schema.GroupKind{Group: TestMachine.Group, Kind: "TestMachineTemplate"},
			Namespace:        s.Namespace,
			Name:             s.InfrastructureTemplate.GetName(),
			ResourceVersions: instanceType,
		},
		Infrastructure: s.InfrastructureTemplate,
		ContentHash:    "template-1",
		Bootstrap:      template.Bootstrap{ConfigTemplate: s.BootstrapTemplate, Hash: "bootstrap-1"},
		InstanceType:   instanceType,
		Arch:           "amd64",
		OS:             "linux",
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("4"),
			corev1.ResourceMemory: resource.MustParse("8Gi"),
			corev1.ResourcePods:   resource.MustParse("110"),
		},
		Price: ptr.To(price),
	}
}

// Plan is a machine.Plan for a NodeClaim, made from the sandbox's templates.
func (s *Environment) Plan(nodeClaim *karpv1.NodeClaim) machine.Plan {
	return machine.Plan{
		NodeClaim: nodeClaim,
		Cluster:   s.Cluster,
		Template: template.Template{
			Infrastructure: s.InfrastructureTemplate, Bootstrap: template.Bootstrap{ConfigTemplate: s.BootstrapTemplate},
		},
		Version:       "1.36.2",
		FailureDomain: "a",
		NodeLabels: map[string]string{
			karpv1.NodePoolLabelKey:        "general",
			karpv1.CapacityTypeLabelKey:    karpv1.CapacityTypeOnDemand,
			corev1.LabelInstanceTypeStable: "c4-large",
			corev1.LabelTopologyZone:       "a",
		},
		Annotations: map[string]string{v1alpha1.TemplateHashAnnotation: "template-1"},
	}
}

// Machines is a provider for the sandbox's Cluster whose writes go through the client given, or the cached one.
func (s *Environment) Machines(management client.Client) *machine.Provider {
	if management == nil {
		management = s.Management.GetClient()
	}
	return machine.New(machine.Config{
		Management:  management,
		Live:        s.Admin,
		Namespace:   s.Namespace,
		ClusterName: s.Cluster.Name,
		Tokens:      bootstraptoken.Minter{Guest: s.Admin, Clock: clock.RealClock{}},
		ChildKinds:  ChildKinds,

		CACertHashes: s.CACertHashes,
	})
}

// MachineName returns the name of a NodeClaim's Machine.
func (s *Environment) MachineName(nodeClaim string) string {
	return v1alpha1.InstanceName(s.Cluster.UID, nodeClaim)
}

// Objects returns the names of the kind's objects in the namespace.
func (s *Environment) Objects(ctx context.Context, kind schema.GroupVersionKind) []string {
	s.t.Helper()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := s.Admin.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names
}
