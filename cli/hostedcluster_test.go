// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/manifests"
)

// managementCluster is an API server with AutoNode's and Cluster API's kinds, and without controllers. It has Karpenter's kinds too, so
// that it is a guest as well.
var managementCluster struct {
	kubeconfig string
	admin      client.Client
	// addUser returns the kubeconfig of a user, who has the rights of a ClusterRole of that name.
	addUser func(t *testing.T, name string, rules ...rbacv1.PolicyRule) string
}

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "running the API server for tests:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return 0, fmt.Errorf("finding Cluster API's module: %w", err)
	}
	bases := filepath.Join(strings.TrimSpace(string(out)), "core/config/crd/bases")
	guestCRDs, err := crds.Embedded()
	if err != nil {
		return 0, err
	}
	environment := apiserver.New(envtest.CRDInstallOptions{
		CRDs: guestCRDs,
		Paths: []string{
			"../manifests/crds", "../internal/environment/crds.yaml",
			filepath.Join(bases, "cluster.x-k8s.io_clusters.yaml"), filepath.Join(bases, "cluster.x-k8s.io_machinedeployments.yaml"),
			filepath.Join(bases, "cluster.x-k8s.io_machines.yaml"),
		},
		ErrorIfPathMissing: true,
	})
	if _, err := environment.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, environment.Stop()) }()
	user, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return 0, err
	}
	raw, err := user.KubeConfig()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "autonode")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	managementCluster.addUser = func(t *testing.T, name string, rules ...rbacv1.PolicyRule) string {
		return addUser(t, environment, dir, name, rules)
	}
	managementCluster.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(managementCluster.kubeconfig, raw, 0o600); err != nil {
		return 0, err
	}
	flags := cluster.Flags{Kubeconfig: managementCluster.kubeconfig}
	if managementCluster.admin, err = flags.Client(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

func addUser(t *testing.T, environment *envtest.Environment, dir, name string, rules []rbacv1.PolicyRule) string {
	t.Helper()
	g := NewWithT(t)
	user, err := environment.AddUser(envtest.User{Name: name}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	raw, err := user.KubeConfig()
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(dir, name)
	g.Expect(os.WriteFile(file, raw, 0o600)).To(Succeed())
	admin, err := client.New(environment.Config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	g.Expect(admin.Create(t.Context(), role)).To(Succeed())
	g.Expect(admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})).To(Succeed())
	return file
}

// guestKubeconfig is one that the operator accepts.
const guestKubeconfig = `
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: a, user: {token: secret}}]
`

// machineTemplate is the one that the MachineDeployments of makeCluster refer to.
func machineTemplate(namespace string) *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{}}
	template.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
	template.SetKind("TestMachineTemplate")
	template.SetNamespace(namespace)
	template.SetName("small")
	return template
}

// makeCluster makes a Cluster with all that AutoNode needs, in a namespace of its own.
func makeCluster(t *testing.T, namespace, name string) *clusterv1.Cluster {
	t.Helper()
	g := NewWithT(t)
	admin := managementCluster.admin
	space := &corev1.Namespace{}
	space.Name = namespace
	g.Expect(client.IgnoreAlreadyExists(admin.Create(t.Context(), space))).To(Succeed())
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = namespace, name
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
	g.Expect(admin.Create(t.Context(), cluster)).To(Succeed())
	cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
	g.Expect(admin.Status().Update(t.Context(), cluster)).To(Succeed())
	template := machineTemplate(namespace)
	template.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{}}}
	g.Expect(client.IgnoreAlreadyExists(admin.Create(t.Context(), template))).To(Succeed())
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = namespace, name+"-kubeconfig"
	secret.Labels = map[string]string{clusterv1.ClusterNameLabel: name}
	secret.StringData = map[string]string{"value": guestKubeconfig}
	g.Expect(admin.Create(t.Context(), secret)).To(Succeed())
	deployment := &clusterv1.MachineDeployment{}
	deployment.Namespace, deployment.Name = namespace, name+"-workers"
	deployment.Labels = map[string]string{clusterv1.ClusterNameLabel: name}
	deployment.Spec.ClusterName = name
	deployment.Spec.Selector.MatchLabels = deployment.Labels
	deployment.Spec.Template.Spec.ClusterName = name
	deployment.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("data")
	deployment.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate", Name: "small",
	}
	g.Expect(admin.Create(t.Context(), deployment)).To(Succeed())
	t.Cleanup(func() {
		hostedClusters := &v1beta1.HostedClusterList{}
		g.Expect(admin.List(context.Background(), hostedClusters)).To(Succeed())
		for i := range hostedClusters.Items {
			g.Expect(admin.Delete(context.Background(), &hostedClusters.Items[i])).To(Succeed())
		}
	})
	return cluster
}

// create calls the command, and returns what it prints and warns.
func create(t *testing.T, args ...string) (out, warnings string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newCommand("autonode")
	cmd.SetArgs(append([]string{"hosted-cluster", "create", "--kubeconfig", managementCluster.kubeconfig}, args...))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

const payloadImage = "registry.example/release:1.36.3"

func TestHostedClusterCreate(t *testing.T) {
	admin := managementCluster.admin
	t.Run("When a plain Cluster is ready, it should write the HostedCluster and the consent, without a warning", func(t *testing.T) {
		g := NewWithT(t)
		cluster := makeCluster(t, "team-a", "blue")
		out, warnings, err := create(t, "--cluster", "team-a/blue", "--release", payloadImage)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(BeEmpty())
		g.Expect(out).To(HavePrefix("cluster.cluster.x-k8s.io/blue annotated\nhostedcluster.autonode.io/blue created\n"))
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		g.Expect(cluster.Annotations).To(HaveKeyWithValue(v1beta1.ConsentAnnotation, "team-a/blue"))
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), hostedCluster)).To(Succeed())
		g.Expect(hostedCluster.Spec.ControlPlaneNamespace).To(Equal("team-a"))
		g.Expect(hostedCluster.Spec.Release.Image).To(Equal(payloadImage))
		g.Expect(hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.ScalableResourceSelector.MatchLabels).
			To(Equal(map[string]string{clusterv1.ClusterNameLabel: "blue"}))

		_, _, err = create(t, "--cluster", "team-a/blue")
		g.Expect(err).To(MatchError(ContainSubstring("HostedCluster team-a/blue exists")))
		makeCluster(t, "team-a", "green")
		_, _, err = create(t, "--cluster", "team-a/green")
		g.Expect(err).To(MatchError(ContainSubstring("namespace team-a belongs to HostedCluster team-a/blue")))
		makeCluster(t, "team-b", "blue")
		_, _, err = create(t, "--cluster", "team-b/blue")
		g.Expect(err).NotTo(HaveOccurred(), "without --release it takes the one that all name")
	})

	t.Run("When the control-plane namespace is of its own, it should put the HostedCluster where it is asked to", func(t *testing.T) {
		g := NewWithT(t)
		makeCluster(t, "clusters-violet", "violet")
		space := &corev1.Namespace{}
		space.Name = "clusters"
		g.Expect(admin.Create(t.Context(), space)).To(Succeed())
		template := machineTemplate("clusters-violet")
		template.SetName("general")
		template.SetLabels(map[string]string{"pool": "general"})
		g.Expect(admin.Create(t.Context(), template)).To(Succeed())
		_, warnings, err := create(t, "--cluster", "clusters-violet/violet", "-n", "clusters", "--release", payloadImage, "--pull-secret", "pull",
			"--templates", "TestMachineTemplate", "-l", "pool=general", "--bootstrap", "TestMachineTemplate.infrastructure.cluster.x-k8s.io/small")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(BeEmpty())
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "clusters", Name: "violet"}, hostedCluster)).To(Succeed())
		g.Expect(hostedCluster.Spec.ControlPlaneNamespace).To(BeEmpty())
		g.Expect(hostedCluster.Spec.PullSecret.Name).To(Equal("pull"))
		g.Expect(hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.InfrastructureTemplateSelectors[0].Selector.MatchLabels).
			To(Equal(map[string]string{"pool": "general"}))
	})

	t.Run("When the Cluster's name has dots, it should know the namespace with dashes", func(t *testing.T) {
		g := NewWithT(t)
		makeCluster(t, "clusters-prod-eu", "prod.eu")
		out, _, err := create(t, "--cluster", "clusters-prod-eu/prod.eu", "-n", "clusters", "--release", payloadImage, "--dry-run=client", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("kubectl -n clusters-prod-eu annotate cluster prod.eu autonode.io/consents-to=clusters/prod.eu"))
		g.Expect(out).NotTo(ContainSubstring("controlPlaneNamespace"))
	})

	t.Run("When it is a dry run, it should print and write nothing", func(t *testing.T) {
		g := NewWithT(t)
		cluster := makeCluster(t, "team-c", "red")
		for _, dryRun := range []string{"client", "server"} {
			out, _, err := create(t, "--cluster", "team-c/red", "--release", payloadImage, "--dry-run", dryRun, "-o", "yaml")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("controlPlaneNamespace: team-c"))
			g.Expect(out).To(ContainSubstring("kubectl -n team-c annotate cluster red autonode.io/consents-to=team-c/red"))
			g.Expect(out).NotTo(ContainSubstring("status"))
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
			g.Expect(cluster.Annotations).To(BeEmpty())
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), &v1beta1.HostedCluster{})).To(MatchError(ContainSubstring("not found")))
		}
		out, _, err := create(t, "--cluster", "team-c/red", "--release", payloadImage, "--dry-run=client")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("hostedcluster.autonode.io/red created (dry run)"))
	})
}

func TestMissingDefaultRelease(t *testing.T) {
	g := NewWithT(t)
	objects, err := manifests.Render(manifests.Options{Image: "registry.example/autonode-operator:v1", Args: []string{"--karpenter-image="}})
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if kind := object.GetKind(); kind == "Namespace" || kind == "Deployment" {
			made(t, object)
		}
	}
	makeCluster(t, "team-release", "white")
	const missing = "Default release: the operator has none: --karpenter-image is empty"
	t.Run("When the operator has no default release, autonode check of a Cluster should say so", func(t *testing.T) {
		out, err := runCheck(t, "team-release/white")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(out).To(ContainSubstring("! " + missing))
	})
	t.Run("When neither the operator nor the command has a release, hosted-cluster create should warn", func(t *testing.T) {
		_, warnings, err := create(t, "--cluster", "team-release/white", "--release", payloadImage, "--dry-run=client")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(warnings).To(BeEmpty())
		_, warnings, err = create(t, "--cluster", "team-release/white", "--dry-run=client")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(warnings).To(ContainSubstring("Warning: " + missing))
	})
}

func TestHostedClusterCreateShared(t *testing.T) {
	admin := managementCluster.admin
	makeCluster(t, "team-shared", "blue")
	makeCluster(t, "team-shared", "green")
	mode := func(g Gomega, name string) v1beta1.ControlPlaneNamespaceMode {
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "team-shared", Name: name}, hostedCluster)).To(Succeed())
		return hostedCluster.Spec.ControlPlaneNamespaceMode
	}
	t.Run("When the namespace has another Cluster, it should share it, and let the operator in", func(t *testing.T) {
		g := NewWithT(t)
		out, _, err := create(t, "--cluster", "team-shared/blue", "--release", payloadImage, "--dry-run=client", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(And(ContainSubstring("controlPlaneNamespaceMode: Shared"), ContainSubstring("kubectl -n team-shared create rolebinding "+v1beta1.SharedNamespaceRole)))
		for _, name := range []string{"blue", "green"} {
			_, warnings, err := create(t, "--cluster", "team-shared/"+name, "--release", payloadImage)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(warnings).To(BeEmpty())
			g.Expect(mode(g, name)).To(Equal(v1beta1.ControlPlaneNamespaceShared))
		}
		binding := &rbacv1.RoleBinding{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "team-shared", Name: v1beta1.SharedNamespaceRole}, binding)).To(Succeed())
		g.Expect(binding.RoleRef.Name).To(Equal(v1beta1.SharedNamespaceRole))
		g.Expect(binding.Subjects).To(ConsistOf(rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "autonode-system", Name: "autonode-operator"}))
	})
	t.Run("When another HostedCluster shares the namespace, it should refuse one that doesn't", func(t *testing.T) {
		g := NewWithT(t)
		makeCluster(t, "team-shared", "red")
		_, _, err := create(t, "--cluster", "team-shared/red", "--release", payloadImage, "--shared-namespace=false")
		g.Expect(err).To(MatchError(ContainSubstring("shares namespace team-shared, so this one has to share it too")))
	})
	t.Run("When the HostedCluster is in another namespace, it should say that it can't share", func(t *testing.T) {
		g := NewWithT(t)
		makeCluster(t, "team-red", "red")
		_, _, err := create(t, "--cluster", "team-red/red", "-n", "team", "--release", payloadImage, "--shared-namespace")
		g.Expect(err).To(MatchError(ContainSubstring("can't share namespace team-red")))
	})
	t.Run("When the user may not let the operator in, it should print the command for the namespace's owner", func(t *testing.T) {
		g := NewWithT(t)
		kubeconfig := managementCluster.addUser(t, "plain-user", rbacv1.PolicyRule{
			APIGroups: []string{"", "autonode.io", "cluster.x-k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"},
		})
		cluster := makeCluster(t, "team-user", "blue")
		_, warnings, err := create(t, "--kubeconfig", kubeconfig, "--cluster", client.ObjectKeyFromObject(cluster).String(), "--release", payloadImage, "--shared-namespace")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(ContainSubstring("kubectl -n team-user create rolebinding " + v1beta1.SharedNamespaceRole))
	})
}

func TestHostedClusterCreateMissing(t *testing.T) {
	admin := managementCluster.admin
	t.Run("When something is missing, it should say each and write nevertheless", func(t *testing.T) {
		g := NewWithT(t)
		cluster := makeCluster(t, "team-d", "amber")
		cluster.Status.Initialization.ControlPlaneInitialized = nil
		g.Expect(admin.Status().Update(t.Context(), cluster)).To(Succeed())
		cluster.Spec.Paused = ptr.To(true)
		g.Expect(admin.Update(t.Context(), cluster)).To(Succeed())
		g.Expect(admin.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace("team-d"))).To(Succeed())
		g.Expect(admin.DeleteAllOf(t.Context(), &clusterv1.MachineDeployment{}, client.InNamespace("team-d"))).To(Succeed())
		_, warnings, err := create(t, "--cluster", "team-d/amber", "--release", payloadImage)
		g.Expect(err).NotTo(HaveOccurred())
		for _, want := range []string{
			"isn't initialized", "is paused", "Secret team-d/amber-kubeconfig: there is none", "MachineDeployments: there is none in namespace team-d",
		} {
			g.Expect(warnings).To(ContainSubstring(want))
		}
	})

	t.Run("When the operator would reject the kubeconfig, it should say which field", func(t *testing.T) {
		g := NewWithT(t)
		makeCluster(t, "team-e", "pink")
		secret := &corev1.Secret{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "team-e", Name: "pink-kubeconfig"}, secret)).To(Succeed())
		secret.Labels = nil
		secret.Data["value"] = []byte(strings.ReplaceAll(guestKubeconfig, "token: secret", "exec: {command: aws}"))
		g.Expect(admin.Update(t.Context(), secret)).To(Succeed())
		_, warnings, err := create(t, "--cluster", "team-e/pink", "--release", payloadImage, "--dry-run=client")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(And(ContainSubstring("rejects the kubeconfig"), ContainSubstring("exec"), ContainSubstring("lacks the label")))
	})

	t.Run("When it can't work, it should say why and write nothing", func(t *testing.T) {
		cluster := makeCluster(t, "team-f", "grey")
		for name, test := range map[string]struct {
			args []string
			want string
		}{
			"no such Cluster":      {[]string{"--cluster", "team-f/white", "--release", payloadImage}, "there is no Cluster team-f/white"},
			"another namespace":    {[]string{"--cluster", "team-f/grey", "-n", "clusters", "--release", payloadImage}, "means a Cluster in clusters or in clusters-grey"},
			"no such kind":         {[]string{"--cluster", "team-f/grey", "--release", payloadImage, "--templates", "NoTemplate", "--bootstrap", "A/b"}, "serves no NoTemplate"},
			"templates alone":      {[]string{"--cluster", "team-f/grey", "--release", payloadImage, "--templates", "TestMachineTemplate"}, "needs --bootstrap"},
			"a bootstrap alone":    {[]string{"--cluster", "team-f/grey", "--release", payloadImage, "--bootstrap", "A/b"}, "--templates"},
			"a malformed selector": {[]string{"--cluster", "team-f/grey", "--release", payloadImage, "-l", "a in"}, "--selector"},
			"an invalid release":   {[]string{"--cluster", "team-f/grey", "--release", "a b"}, "image has to be an image reference"},
		} {
			t.Run("When there is "+name+", it should say so", func(t *testing.T) {
				g := NewWithT(t)
				_, _, err := create(t, test.args...)
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
				g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), &v1beta1.HostedCluster{})).To(MatchError(ContainSubstring("not found")))
			})
		}
	})
}
