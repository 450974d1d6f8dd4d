// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/test/clusterctl"
)

// managementCluster is an API server with kinds of Cluster API, as clusterctl labels them, and without controllers.
type managementCluster struct {
	client.Client
	kubeconfig string
}

func newManagementCluster(t *testing.T, crds envtest.CRDInstallOptions) managementCluster {
	t.Helper()
	g := NewWithT(t)
	for kind, plural := range map[string]string{"Cluster": "clusters", "Machine": "machines"} {
		definition := scopetest.Definition(clusterv1.GroupVersion.Group, kind, plural, "v1beta2")
		definition.Labels = map[string]string{clusterctlv1.ClusterctlLabel: ""} // clusterctl init labels those that it installs
		crds.CRDs = append(crds.CRDs, definition)
	}
	environment := apiserver.New(crds)
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

// What clusterctl installs and deletes. No controllers run, so a namespace that was deleted stays, with what is in it.
func TestClusterctl(t *testing.T) {
	g := NewWithT(t)
	m := newManagementCluster(t, envtest.CRDInstallOptions{CRDs: clusterctl.CertManager()})
	repository, err := clusterctl.NewRepository(root, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	metadata, err := os.ReadFile(filepath.Join(installation, "clusterctl", "metadata.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	components, err := overlay(t, `resources: [BASE]
components: [BASE/clusterctl]
images: [{name: autonode-operator, newName: registry.example/autonode/autonode-operator, newTag: v0.1.0}]
`).AsYaml()
	g.Expect(err).NotTo(HaveOccurred())
	for _, version := range []string{"v0.1.0", "v0.1.1"} {
		g.Expect(repository.Add(version, components, metadata)).To(Succeed())
	}
	run := func(t *testing.T, args ...string) error {
		t.Helper()
		return repository.Run(t.Context(), m.kubeconfig, args...)
	}
	// ours are the objects of the whole cluster that are AutoNode's, but for those that are being deleted.
	ours := func(g Gomega) (names []string) {
		for _, kind := range []schema.GroupVersionKind{
			{Version: "v1", Kind: "Namespace"},
			{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
			{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
			{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
		} {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind)
			g.Expect(m.List(t.Context(), list, client.MatchingLabels{"app.kubernetes.io/part-of": "autonode"})).To(Succeed())
			for _, object := range list.Items {
				if object.DeletionTimestamp.IsZero() {
					names = append(names, kind.Kind+" "+object.Name)
				}
			}
		}
		return names
	}

	if !t.Run("When clusterctl has installed AutoNode, what the whole cluster has of it should be there", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(run(t, "init", "--core", clusterctl.Core, "--bootstrap", "-", "--control-plane", "-", "--addon", clusterctl.Addon+":v0.1.0")).To(Succeed())
		g.Expect(ours(g)).To(ContainElements("Namespace autonode-system", "CustomResourceDefinition hostedclusters.autonode.io",
			"ClusterRoleBinding autonode-system-operator", "ValidatingAdmissionPolicyBinding deletion.autonode.io"))
	}) {
		return
	}
	hosted := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "blue"},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: "registry.example/release:1.36.3"}},
	}
	t.Run("When clusterctl upgrades AutoNode, the HostedClusters should stay, and everything else be there afterwards", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(m.Create(t.Context(), hosted)).To(Succeed())
		before := ours(g)
		g.Expect(run(t, "upgrade", "apply", "--addon", clusterctl.Addon+":v0.1.1")).To(Succeed())
		g.Expect(ours(g)).To(Equal(before))
		g.Expect(m.Get(t.Context(), client.ObjectKeyFromObject(hosted), hosted)).To(Succeed())
	})
	t.Run("When there is a HostedCluster, clusterctl should delete no CRD, and nothing else", func(t *testing.T) {
		g := NewWithT(t)
		before := ours(g)
		g.Expect(run(t, "delete", "--addon", clusterctl.Addon, "--include-crd", "--include-namespace")).To(MatchError(ContainSubstring("found existing objects for provider CRDs")))
		g.Expect(ours(g)).To(Equal(before))
		g.Expect(m.Get(t.Context(), client.ObjectKeyFromObject(hosted), hosted)).To(Succeed())
	})
	t.Run("When clusterctl deletes all of AutoNode, it should leave nothing in the whole cluster", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(m.Delete(t.Context(), hosted)).To(Succeed())
		definitions := &apiextensionsv1.CustomResourceDefinitionList{}
		g.Expect(m.List(t.Context(), definitions, client.MatchingLabels{"app.kubernetes.io/part-of": "autonode"})).To(Succeed())
		for _, definition := range definitions.Items {
			from := client.MergeFrom(definition.DeepCopy())
			metav1.SetMetaDataAnnotation(&definition.ObjectMeta, v1beta1.ConfirmDeletionAnnotation, "true")
			g.Expect(m.Patch(t.Context(), &definition, from)).To(Succeed())
		}
		g.Expect(run(t, "delete", "--addon", clusterctl.Addon, "--include-crd", "--include-namespace")).To(Succeed())
		g.Expect(ours(g)).To(BeEmpty())
	})
}

func TestMoveLabels(t *testing.T) {
	t.Run("When clusterctl looks for what it moves, it should find HostedClusters, and nothing that the operator makes again", func(t *testing.T) {
		g := NewWithT(t)
		labels := map[string]map[string]string{}
		for _, resource := range build(t, installation).Resources() {
			if resource.GetKind() == "CustomResourceDefinition" {
				labels[resource.GetName()] = resource.GetLabels()
			}
		}
		g.Expect(labels["hostedclusters.autonode.io"]).To(And(HaveKey(clusterctlv1.ClusterctlLabel), HaveKey(clusterctlv1.ClusterctlMoveHierarchyLabel)))
		g.Expect(labels["controlplanecomponents.autonode.io"]).NotTo(Or(HaveKey(clusterctlv1.ClusterctlMoveLabel), HaveKey(clusterctlv1.ClusterctlMoveHierarchyLabel)))
	})
}

func TestClusterctlVersion(t *testing.T) {
	t.Run("When Cluster API is upgraded, the clusterctl of the tests should be of the same version", func(t *testing.T) {
		g := NewWithT(t)
		versions := map[string]string{}
		for _, file := range []string{"go.mod", "tools/clusterctl/go.mod"} {
			content, err := os.ReadFile(filepath.Join(root, file))
			g.Expect(err).NotTo(HaveOccurred())
			match := regexp.MustCompile(`\tsigs\.k8s\.io/cluster-api (v\S+)`).FindSubmatch(content)
			g.Expect(match).NotTo(BeNil(), file)
			versions[file] = string(match[1])
		}
		g.Expect(versions["tools/clusterctl/go.mod"]).To(Equal(versions["go.mod"]))
	})
}
