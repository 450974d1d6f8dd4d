// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
	"github.com/autonode-io/autonode/test/clusterctl"
)

// managementCluster is an API server with the kinds of Cluster API and others, as clusterctl labels them, and without controllers.
type managementCluster struct {
	client.Client
	kubeconfig string
}

const (
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	hostedNamespace     = "clusters"
	controlPlane        = "clusters-blue"
)

func newManagementCluster(t *testing.T, crds envtest.CRDInstallOptions) managementCluster {
	t.Helper()
	g := NewWithT(t)
	for kind, plural := range map[schema.GroupKind]string{
		{Group: clusterv1.GroupVersion.Group, Kind: "Cluster"}:    "clusters",
		{Group: clusterv1.GroupVersion.Group, Kind: "Machine"}:    "machines",
		{Group: infrastructureGroup, Kind: "TestMachine"}:         "testmachines",
		{Group: infrastructureGroup, Kind: "TestMachineTemplate"}: "testmachinetemplates",
	} {
		definition := scopetest.Definition(kind.Group, kind.Kind, plural, "v1beta2")
		definition.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		definition.Labels = map[string]string{clusterctlv1.ClusterctlLabel: ""} // clusterctl init labels those that it installs
		crds.CRDs = append(crds.CRDs, definition)
	}
	environment := &envtest.Environment{CRDInstallOptions: crds}
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := admin.KubeConfig()
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	return managementCluster{c, file}
}

func (m managementCluster) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		status, _ := object.DeepCopyObject().(client.Object)
		NewWithT(t).Expect(m.Create(t.Context(), object)).To(Succeed())
		switch with := status.(type) {
		case *clusterv1.Cluster, *clusterv1.Machine, *v1beta1.HostedCluster:
			with.SetResourceVersion(object.GetResourceVersion())
			NewWithT(t).Expect(m.Status().Update(t.Context(), with)).To(Succeed())
		}
	}
}

// has reports whether an object is there.
func (m managementCluster) has(g Gomega, ctx context.Context, object client.Object) bool {
	err := m.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object))
	if apierrors.IsNotFound(err) {
		return false
	}
	g.Expect(err).NotTo(HaveOccurred())
	return true
}

func secret(name string, change func(*metav1.ObjectMeta)) *corev1.Secret {
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hostedNamespace, Name: name}}
	if change != nil {
		change(&made.ObjectMeta)
	}
	return made
}

func infrastructure(kind, name string, labels map[string]string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	made := &unstructured.Unstructured{}
	made.SetGroupVersionKind(schema.GroupVersionKind{Group: infrastructureGroup, Version: "v1beta2", Kind: kind})
	made.SetNamespace(controlPlane)
	made.SetName(name)
	made.SetLabels(labels)
	made.SetOwnerReferences(owners)
	return made
}

// What docs/clusterctl.md says that clusterctl moves. No controllers run: what the operator does meanwhile is TestMove's of operator/.
func TestMove(t *testing.T) {
	operators := envtest.CRDInstallOptions{Paths: []string{manifests + "/crds"}}
	from, to := newManagementCluster(t, operators), newManagementCluster(t, operators)
	move := map[string]string{clusterctlv1.ClusterctlMoveLabel: ""}
	for _, name := range []string{hostedNamespace, controlPlane} {
		from.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "blue", Annotations: map[string]string{v1beta1.ConsentAnnotation: "clusters/blue"}},
		Status: clusterv1.ClusterStatus{
			Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)},
			Conditions: []metav1.Condition{{
				Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: metav1.Now(),
			}},
		},
	}
	from.create(t, cluster)
	owner := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "general-x1", Finalizers: []string{clusterv1.MachineFinalizer}, OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       clusterv1.MachineSpec{ClusterName: "blue", ProviderID: "test://general-x1"},
		Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "general-x1"}},
	}
	from.create(t, machine)
	ownedByMachine := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: machine.UID}
	hosted := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: hostedNamespace, Name: "blue", Finalizers: []string{v1beta1.HostedClusterFinalizer}},
		Spec: v1beta1.HostedClusterSpec{
			Release: v1beta1.Release{Image: "registry.example/release:1.36.3"}, PausedUntil: ptr.To("true"), AutoNode: scopetest.AutoNode(),
		},
	}
	from.create(t, hosted)
	component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: v1beta1.KarpenterComponent}}
	moves := []client.Object{
		hosted, cluster, machine,
		infrastructure("TestMachine", "general-x1", nil, ownedByMachine),
		infrastructure("TestMachineTemplate", "labelled", move),
		secret("labelled", func(m *metav1.ObjectMeta) { m.Labels = move }),
		secret("owned", func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: "HostedCluster", Name: hosted.Name, UID: hosted.UID}}
		}),
	}
	stays := []client.Object{component, infrastructure("TestMachineTemplate", "unlabelled", nil), secret("unlabelled", nil)}
	from.create(t, append(moves[3:], stays...)...)

	for _, namespace := range []string{controlPlane, hostedNamespace} {
		NewWithT(t).Expect(clusterctl.Run(t.Context(), root, t.TempDir(), "move", "--kubeconfig", from.kubeconfig, "--to-kubeconfig", to.kubeconfig,
			"--namespace", namespace)).To(Succeed())
	}
	t.Run("When clusterctl moves, it should take HostedClusters along, with what they own and what is labelled", func(t *testing.T) {
		g := NewWithT(t)
		for _, object := range moves {
			g.Expect(to.has(g, t.Context(), object)).To(BeTrue(), "%T %s in the new cluster", object, object.GetName())
			g.Expect(from.has(g, t.Context(), object)).To(BeFalse(), "%T %s in the old cluster", object, object.GetName())
		}
		for _, object := range stays {
			g.Expect(to.has(g, t.Context(), object)).To(BeFalse(), "%T %s in the new cluster", object, object.GetName())
			g.Expect(from.has(g, t.Context(), object)).To(BeTrue(), "%T %s in the old cluster", object, object.GetName())
		}
	})
	t.Run("When a HostedCluster was moved, it should be paused as before, and its Cluster should consent", func(t *testing.T) {
		g := NewWithT(t)
		arrived := &v1beta1.HostedCluster{}
		g.Expect(to.Get(t.Context(), client.ObjectKeyFromObject(hosted), arrived)).To(Succeed())
		g.Expect(arrived.Spec).To(Equal(hosted.Spec))
		consents := &clusterv1.Cluster{}
		g.Expect(to.Get(t.Context(), client.ObjectKeyFromObject(cluster), consents)).To(Succeed())
		g.Expect(consents.Annotations).To(HaveKeyWithValue(v1beta1.ConsentAnnotation, "clusters/blue"))
		g.Expect(consents.Spec.Paused).To(Or(BeNil(), HaveValue(BeFalse())))
	})
}
