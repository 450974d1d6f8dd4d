// SPDX-License-Identifier: Apache-2.0

package hostedcluster_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/manifests"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func TestHostedClusterCreate(t *testing.T) {
	admin := server.Admin
	t.Run("When a plain Cluster is ready, it should write the HostedCluster and the consent, without a warning", func(t *testing.T) {
		g := NewWithT(t)
		cluster := server.MakeCluster(t, "team-a", "blue")
		out, warnings, err := server.CreateHostedCluster(t, "--cluster", "team-a/blue", "--release", clitest.PayloadImage)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(BeEmpty())
		g.Expect(out).To(HavePrefix("cluster.cluster.x-k8s.io/blue annotated\nhostedcluster.autonode.io/blue created\n"))
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		g.Expect(cluster.Annotations).To(HaveKeyWithValue(v1beta1.ConsentAnnotation, "team-a/blue"))
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), hostedCluster)).To(Succeed())
		g.Expect(hostedCluster.Spec.ControlPlaneNamespace).To(Equal("team-a"))
		g.Expect(hostedCluster.Spec.Release.Image).To(Equal(clitest.PayloadImage))
		g.Expect(hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.ScalableResourceSelector.MatchLabels).
			To(Equal(map[string]string{clusterv1.ClusterNameLabel: "blue"}))

		_, _, err = server.CreateHostedCluster(t, "--cluster", "team-a/blue")
		g.Expect(err).To(MatchError(ContainSubstring("HostedCluster team-a/blue exists")))
		server.MakeCluster(t, "team-a", "green")
		_, _, err = server.CreateHostedCluster(t, "--cluster", "team-a/green")
		g.Expect(err).To(MatchError(ContainSubstring("namespace team-a belongs to HostedCluster team-a/blue")))
		server.MakeCluster(t, "team-b", "blue")
		_, _, err = server.CreateHostedCluster(t, "--cluster", "team-b/blue")
		g.Expect(err).NotTo(HaveOccurred(), "without --release it takes the one that all name")
	})

	t.Run("When the control-plane namespace is of its own, it should put the HostedCluster where it is asked to", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeCluster(t, "clusters-violet", "violet")
		space := &corev1.Namespace{}
		space.Name = "clusters"
		g.Expect(admin.Create(t.Context(), space)).To(Succeed())
		template := clitest.MachineTemplate("clusters-violet")
		template.SetName("general")
		template.SetLabels(map[string]string{"pool": "general"})
		g.Expect(admin.Create(t.Context(), template)).To(Succeed())
		_, warnings, err := server.CreateHostedCluster(t, "--cluster", "clusters-violet/violet", "-n", "clusters", "--release", clitest.PayloadImage, "--pull-secret", "pull",
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
		server.MakeCluster(t, "clusters-prod-eu", "prod.eu")
		out, _, err := server.CreateHostedCluster(t, "--cluster", "clusters-prod-eu/prod.eu", "-n", "clusters", "--release", clitest.PayloadImage, "--dry-run=client", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("kubectl -n clusters-prod-eu annotate cluster prod.eu autonode.io/consents-to=clusters/prod.eu"))
		g.Expect(out).NotTo(ContainSubstring("controlPlaneNamespace"))
	})

	t.Run("When it is a dry run, it should print and write nothing", func(t *testing.T) {
		g := NewWithT(t)
		cluster := server.MakeCluster(t, "team-c", "red")
		for _, dryRun := range []string{"client", "server"} {
			out, _, err := server.CreateHostedCluster(t, "--cluster", "team-c/red", "--release", clitest.PayloadImage, "--dry-run", dryRun, "-o", "yaml")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("controlPlaneNamespace: team-c"))
			g.Expect(out).To(ContainSubstring("kubectl -n team-c annotate cluster red autonode.io/consents-to=team-c/red"))
			g.Expect(out).NotTo(ContainSubstring("status"))
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
			g.Expect(cluster.Annotations).To(BeEmpty())
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), &v1beta1.HostedCluster{})).To(MatchError(ContainSubstring("not found")))
		}
		out, _, err := server.CreateHostedCluster(t, "--cluster", "team-c/red", "--release", clitest.PayloadImage, "--dry-run=client")
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
			server.Create(t, object)
		}
	}
	server.MakeCluster(t, "team-release", "white")
	const missing = "Default release: not set: the operator's --karpenter-image is empty"
	t.Run("When the operator has no default release, autonode check of a Cluster should say so", func(t *testing.T) {
		out, err := clitest.Run(t, check.NewCommand(), "--kubeconfig", server.Kubeconfig, "team-release/white")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(out).To(ContainSubstring("! " + missing))
	})
	t.Run("When neither the operator nor the command has a release, hosted-cluster create should warn", func(t *testing.T) {
		_, warnings, err := server.CreateHostedCluster(t, "--cluster", "team-release/white", "--release", clitest.PayloadImage, "--dry-run=client")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(warnings).To(BeEmpty())
		_, warnings, err = server.CreateHostedCluster(t, "--cluster", "team-release/white", "--dry-run=client")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(warnings).To(ContainSubstring("Warning: " + missing))
	})
}

func TestHostedClusterCreateShared(t *testing.T) {
	admin := server.Admin
	server.MakeCluster(t, "team-shared", "blue")
	server.MakeCluster(t, "team-shared", "green")
	mode := func(g Gomega, name string) v1beta1.ControlPlaneNamespaceMode {
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "team-shared", Name: name}, hostedCluster)).To(Succeed())
		return hostedCluster.Spec.ControlPlaneNamespaceMode
	}
	t.Run("When the namespace has another Cluster, it should share it, and let the operator in", func(t *testing.T) {
		g := NewWithT(t)
		out, _, err := server.CreateHostedCluster(t, "--cluster", "team-shared/blue", "--release", clitest.PayloadImage, "--dry-run=client", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(And(ContainSubstring("controlPlaneNamespaceMode: Shared"), ContainSubstring("kubectl -n team-shared create rolebinding "+v1beta1.SharedNamespaceRole)))
		for _, name := range []string{"blue", "green"} {
			_, warnings, err := server.CreateHostedCluster(t, "--cluster", "team-shared/"+name, "--release", clitest.PayloadImage)
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
		server.MakeCluster(t, "team-shared", "red")
		_, _, err := server.CreateHostedCluster(t, "--cluster", "team-shared/red", "--release", clitest.PayloadImage, "--shared-namespace=false")
		g.Expect(err).To(MatchError(ContainSubstring("shares namespace team-shared, so this one has to share it too")))
	})
	t.Run("When the HostedCluster is in another namespace, it should say that it can't share", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeCluster(t, "team-red", "red")
		_, _, err := server.CreateHostedCluster(t, "--cluster", "team-red/red", "-n", "team", "--release", clitest.PayloadImage, "--shared-namespace")
		g.Expect(err).To(MatchError(ContainSubstring("can't share namespace team-red")))
	})
	t.Run("When the user may not let the operator in, it should print the command for the namespace's owner", func(t *testing.T) {
		g := NewWithT(t)
		kubeconfig := server.AddUser(t, "plain-user", rbacv1.PolicyRule{
			APIGroups: []string{"", "autonode.io", "cluster.x-k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"},
		})
		cluster := server.MakeCluster(t, "team-user", "blue")
		_, warnings, err := server.CreateHostedCluster(t, "--kubeconfig", kubeconfig, "--cluster", client.ObjectKeyFromObject(cluster).String(), "--release", clitest.PayloadImage, "--shared-namespace")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(ContainSubstring("kubectl -n team-user create rolebinding " + v1beta1.SharedNamespaceRole))
	})
}

func TestHostedClusterCreateMissing(t *testing.T) {
	admin := server.Admin
	t.Run("When something is missing, it should say each and write nevertheless", func(t *testing.T) {
		g := NewWithT(t)
		cluster := server.MakeCluster(t, "team-d", "amber")
		cluster.Status.Initialization.ControlPlaneInitialized = nil
		g.Expect(admin.Status().Update(t.Context(), cluster)).To(Succeed())
		cluster.Spec.Paused = ptr.To(true)
		g.Expect(admin.Update(t.Context(), cluster)).To(Succeed())
		g.Expect(admin.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace("team-d"))).To(Succeed())
		g.Expect(admin.DeleteAllOf(t.Context(), &clusterv1.MachineDeployment{}, client.InNamespace("team-d"))).To(Succeed())
		_, warnings, err := server.CreateHostedCluster(t, "--cluster", "team-d/amber", "--release", clitest.PayloadImage)
		g.Expect(err).NotTo(HaveOccurred())
		for _, want := range []string{
			"isn't initialized", "is paused", "Secret team-d/amber-kubeconfig: doesn't exist", "MachineDeployments: none exists in namespace team-d",
		} {
			g.Expect(warnings).To(ContainSubstring(want))
		}
	})

	t.Run("When the operator would reject the kubeconfig, it should say which field", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeCluster(t, "team-e", "pink")
		secret := &corev1.Secret{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: "team-e", Name: "pink-kubeconfig"}, secret)).To(Succeed())
		secret.Labels = nil
		secret.Data["value"] = []byte(strings.ReplaceAll(clitest.GuestKubeconfig, "token: secret", "exec: {command: aws}"))
		g.Expect(admin.Update(t.Context(), secret)).To(Succeed())
		_, warnings, err := server.CreateHostedCluster(t, "--cluster", "team-e/pink", "--release", clitest.PayloadImage, "--dry-run=client")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(warnings).To(And(ContainSubstring("rejects the kubeconfig"), ContainSubstring("exec"), ContainSubstring("lacks the label")))
	})

	t.Run("When it can't work, it should say why and write nothing", func(t *testing.T) {
		cluster := server.MakeCluster(t, "team-f", "grey")
		for name, test := range map[string]struct {
			args []string
			want string
		}{
			"no such Cluster":      {[]string{"--cluster", "team-f/white", "--release", clitest.PayloadImage}, "there is no Cluster team-f/white"},
			"another namespace":    {[]string{"--cluster", "team-f/grey", "-n", "clusters", "--release", clitest.PayloadImage}, "means a Cluster in clusters or in clusters-grey"},
			"no such kind":         {[]string{"--cluster", "team-f/grey", "--release", clitest.PayloadImage, "--templates", "NoTemplate", "--bootstrap", "A/b"}, "serves no NoTemplate"},
			"templates alone":      {[]string{"--cluster", "team-f/grey", "--release", clitest.PayloadImage, "--templates", "TestMachineTemplate"}, "needs --bootstrap"},
			"a bootstrap alone":    {[]string{"--cluster", "team-f/grey", "--release", clitest.PayloadImage, "--bootstrap", "A/b"}, "--templates"},
			"a malformed selector": {[]string{"--cluster", "team-f/grey", "--release", clitest.PayloadImage, "-l", "a in"}, "--selector"},
			"an invalid release":   {[]string{"--cluster", "team-f/grey", "--release", "a b"}, "image has to be an image reference"},
		} {
			t.Run("When there is "+name+", it should say so", func(t *testing.T) {
				g := NewWithT(t)
				_, _, err := server.CreateHostedCluster(t, test.args...)
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
				g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), &v1beta1.HostedCluster{})).To(MatchError(ContainSubstring("not found")))
			})
		}
	})
}
