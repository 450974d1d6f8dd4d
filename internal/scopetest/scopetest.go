// SPDX-License-Identifier: Apache-2.0

// Package scopetest runs a management and a guest API server for the tests of steps, and makes Scopes of them. It needs the
// programs that KUBEBUILDER_ASSETS names. Neither has a controller manager: nothing is garbage collected.
package scopetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

// Cluster is an API server, and an administrator's way to it.
type Cluster struct {
	Environment *envtest.Environment
	Config      *rest.Config
	// Client has no cache.
	Client client.Client
}

// Clusters are the two clusters of a test binary.
type Clusters struct {
	// Management serves HostedClusters and ControlPlaneComponents, and takes any Cluster and Machine.
	Management Cluster
	// Guest is empty.
	Guest Cluster
}

// Run starts both clusters, runs the tests, and stops the clusters. It returns the exit code for TestMain.
func Run(m *testing.M, clusters *Clusters) int {
	if os.Getenv("GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT") == "" { // make sets it, and test/mutants another one
		gomega.SetDefaultEventuallyTimeout(apiserver.Timeout)
	}
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	log.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(os.Stderr)))
	if fuzzing() {
		// The workers' API servers would hold the pipes by which "go test" notices that a worker has ended.
		return m.Run()
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, "KUBEBUILDER_ASSETS isn't set: it names the folder of etcd and kube-apiserver; make unit sets it")
		return 1
	}
	scheme, err := Scheme()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	clusters.Management.Environment = apiserver.New(envtest.CRDInstallOptions{
		CRDs:               []*apiextensionsv1.CustomResourceDefinition{permissive("Cluster", "clusters"), permissive("Machine", "machines")},
		Paths:              []string{filepath.Join(root(), "manifests", "crds")},
		ErrorIfPathMissing: true,
	})
	clusters.Guest.Environment = apiserver.New(envtest.CRDInstallOptions{})
	started := make(chan error)
	for _, cluster := range []*Cluster{&clusters.Management, &clusters.Guest} {
		go func() { started <- cluster.start(scheme) }()
	}
	err = errors.Join(<-started, <-started)
	defer func() {
		for _, cluster := range []*Cluster{&clusters.Management, &clusters.Guest} {
			if err := cluster.Environment.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stopping an API server:", err)
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the API servers:", err)
		return 1
	}
	return m.Run()
}

// fuzzing reports whether a fuzz target runs, which uses no cluster.
func fuzzing() bool {
	flag.Parse()
	target := flag.Lookup("test.fuzz")
	return target != nil && target.Value.String() != ""
}

func (c *Cluster) start(scheme *runtime.Scheme) error {
	var err error
	if c.Config, err = c.Environment.Start(); err != nil {
		return err
	}
	c.Config.QPS = -1
	c.Client, err = client.New(c.Config, client.Options{Scheme: scheme})
	return err
}

// Scheme holds every kind that the operator uses in either cluster.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme, autonodev1alpha1.AddToScheme, watch.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// NewScope makes a HostedCluster with AutoNode on, its control-plane namespace, its Cluster and its ControlPlaneComponent in the
// management cluster, and a Scope with a payload of version 1.36.3. Its guest reads live in both of its clients.
func (c *Clusters) NewScope(t testing.TB, name string) *scope.Scope {
	t.Helper()
	g, ctx := gomega.NewWithT(t), t.Context()
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Finalizers: []string{v1beta1.HostedClusterFinalizer}},
		Spec: v1beta1.HostedClusterSpec{
			Release:  v1beta1.Release{Image: "registry.example/release:1.36.3"},
			AutoNode: AutoNode(),
		},
	}
	namespace := "clusters-" + name
	component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.KarpenterComponent}}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: map[string]string{v1beta1.ConsentAnnotation: "clusters/" + name},
	}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		hostedCluster, component, cluster,
	} {
		err := c.Management.Client.Create(ctx, object)
		if apierrors.IsAlreadyExists(err) {
			err = c.Management.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
		}
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(c.Management.Client.Status().Update(ctx, cluster)).To(gomega.Succeed())
	return &scope.Scope{
		HostedCluster:         hostedCluster,
		ControlPlaneNamespace: namespace,
		Cluster:               cluster,
		Component:             component,
		Profile:               clusterapi.New(clusterapi.DefaultGroups),
		Release:               &payload.Release{Version: "1.36.3", Digest: "sha256:1363", Image: "registry.example/release@sha256:1363"},
		Karpenter:             payload.Component{Name: "karpenter-clusterapi", Versions: map[string]string{payload.KubernetesVersion: "1.36.3"}},
		FeatureGates:          &scope.FeatureGates{},
		Guest:                 &scope.Guest{Cached: c.Guest.Client, Live: c.Guest.Client, Config: c.Guest.Config, Complete: true},
	}
}

// Reconcile runs a step that has to succeed.
func Reconcile(t testing.TB, step scope.Step, s *scope.Scope) scope.Result {
	t.Helper()
	result, err := step.Reconcile(t.Context(), s)
	gomega.NewWithT(t).Expect(err).NotTo(gomega.HaveOccurred())
	return result
}

// Get reads an object that has to exist.
func Get[T client.Object](ctx context.Context, g gomega.Gomega, from client.Reader, namespace, name string, into T) T {
	g.Expect(from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)).To(gomega.Succeed())
	return into
}

// ExpectGone expects that an object doesn't exist.
func ExpectGone(ctx context.Context, g gomega.Gomega, from client.Reader, object client.Object) {
	err := from.Get(ctx, client.ObjectKeyFromObject(object), object)
	g.Expect(apierrors.IsNotFound(err) || meta.IsNoMatchError(err)).To(gomega.BeTrue(), "%T: %v", object, err)
}

// NodeClaim is one of the default node class.
func NodeClaim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
	}}
}

// AutoNode is a valid configuration.
func AutoNode() *v1beta1.AutoNode {
	return &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name: v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{
			Platform: v1beta1.PlatformClusterAPI,
			ClusterAPI: &v1beta1.ClusterAPI{
				TemplateSelectors: v1alpha1.TemplateSelectors{
					InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{
						APIGroup: "infrastructure.cluster.x-k8s.io",
						Kind:     "KwokMachineTemplate",
						Selector: metav1.LabelSelector{MatchLabels: map[string]string{"autonode.io/template-pool": "general"}},
					}},
				},
				Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
					APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate", Name: "default",
				}},
			},
		},
	}}
}

// AWS is a valid configuration of the AWS provider.
func AWS() *v1beta1.AutoNode {
	return &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name: v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{
			Platform: v1beta1.PlatformAWS,
			AWS:      &v1beta1.AWS{RoleARN: "arn:aws:iam::123456789012:role/karpenter"},
		},
	}}
}

// InstallDefinitions puts the embedded definitions into the guest cluster, for steps that come behind the one that does.
func (c *Clusters) InstallDefinitions() error {
	definitions, err := crds.Embedded()
	if err != nil {
		return err
	}
	err = apiserver.InstallCRDs(c.Guest.Config, envtest.CRDInstallOptions{CRDs: definitions})
	return err
}

// root is the repository's folder: go test runs in the package's own, which may be of another module.
func root() string {
	directory, err := os.Getwd()
	for err == nil && directory != filepath.Dir(directory) {
		if _, err := os.Stat(filepath.Join(directory, "manifests", "crds")); err == nil {
			return directory
		}
		directory = filepath.Dir(directory)
	}
	return "."
}

// Definition is of a namespaced kind whose objects may hold anything.
func Definition(group, kind, plural, version string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.ToLower(kind),
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
				},
			}},
		},
	}
}

// permissive defines a kind of Cluster API's without a schema: Go's types check the operator's reads and writes.
func permissive(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	definition := Definition(clusterv1.GroupVersion.Group, kind, plural, clusterv1.GroupVersion.Version)
	definition.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
	}
	return definition
}

// EC2NodeClasses defines the AWS provider's node class as a payload does, but without its schema.
func EC2NodeClasses() *apiextensionsv1.CustomResourceDefinition {
	definition := Definition("karpenter.k8s.aws", "EC2NodeClass", "ec2nodeclasses", "v1")
	definition.TypeMeta = metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"}
	definition.Spec.Scope = apiextensionsv1.ClusterScoped
	return definition
}

// Cached returns an object as readers of a cache get it. Tests of readers use it for every kind that the operator's cache shrinks.
func Cached[T client.Object](t testing.TB, as cache.ByObject, object T) T {
	cached, err := as.Transform(object.DeepCopyObject())
	gomega.NewWithT(t).Expect(err).NotTo(gomega.HaveOccurred())
	return cached.(T)
}
