// SPDX-License-Identifier: Apache-2.0

package dump_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/dump"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// unpack returns the files of a bundle by name, without the folder that all are in.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	g := NewWithT(t)
	opened, err := os.Open(file)
	g.Expect(err).NotTo(HaveOccurred())
	defer opened.Close()
	compressed, err := gzip.NewReader(opened)
	g.Expect(err).NotTo(HaveOccurred())
	archive, files := tar.NewReader(compressed), map[string]string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(archive)
		g.Expect(err).NotTo(HaveOccurred())
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(content)
	}
}

func TestDump(t *testing.T) {
	const namespace = "clusters-dumped"
	g := NewWithT(t)
	server.MakeHosted(t, namespace, true)
	_, _, err := server.CreateHostedCluster(t, "--cluster", namespace+"/blue", "--namespace", namespace, "--release", clitest.PayloadImage)
	g.Expect(err).NotTo(HaveOccurred())
	admin := server.Admin
	g.Expect(admin.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull-secret", Annotations: map[string]string{"example.com/" + marker: marker}},
		StringData: map[string]string{"token": marker},
	})).To(Succeed())
	g.Expect(admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app"}, Data: map[string]string{"a": marker}})).To(Succeed())
	g.Expect(admin.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db", Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": marker}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "registry.example/c", Args: []string{"--password=" + marker}, Env: []corev1.EnvVar{{Name: "A", Value: marker}},
		}}},
	})).To(Succeed())
	g.Expect(admin.Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: namespace, Kind: "Pod", Name: "db"},
		Reason: "Failed", Message: "pulling: Authorization: Bearer " + marker,
	})).To(Succeed())
	deployment := &clusterv1.MachineDeployment{}
	g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "blue-workers"}, deployment)).To(Succeed())
	before := client.MergeFrom(deployment.DeepCopy())
	deployment.Annotations = map[string]string{"example.com/note": marker}
	g.Expect(admin.Patch(t.Context(), deployment, before)).To(Succeed())

	t.Run("When a bundle is made, it should have what is needed and no secret", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "blue.tar.gz")
		out, err := clitest.Run(t, dump.NewCommand(""), "--kubeconfig", server.Kubeconfig, "--guest-kubeconfig", server.Kubeconfig,
			"--hosted-cluster", namespace+"/blue", "--to", file)
		g.Expect(err).NotTo(HaveOccurred())
		clitest.Shown(t, "docs/reference/cli/dump.md", "autonode dump --hosted-cluster clusters/blue --guest-kubeconfig blue.kubeconfig --to blue.tar.gz",
			strings.ReplaceAll(out, file, "blue.tar.gz"))
		files := unpack(t, file)
		for _, name := range []string{
			"README.txt", "autonode-version.txt", "errors.txt", "management/version.yaml", "guest/version.yaml",
			"management/" + namespace + "/hostedclusters.autonode.io.yaml", "management/" + namespace + "/clusters.cluster.x-k8s.io.yaml",
			"management/" + namespace + "/machinedeployments.cluster.x-k8s.io.yaml", "management/" + namespace + "/testmachinetemplates.infrastructure.cluster.x-k8s.io.yaml",
			"management/" + namespace + "/deployments.apps.yaml", "management/" + namespace + "/pods.yaml", "management/" + namespace + "/events.yaml",
			"management/" + namespace + "/secrets.txt", "guest/cluster/nodepools.karpenter.sh.yaml", "guest/cluster/clusterapinodeclasses.karpenter.cluster.x-k8s.io.yaml",
			"guest/cluster/pods.yaml",
		} {
			g.Expect(files).To(HaveKey(name))
		}
		for name, content := range files {
			g.Expect(content).NotTo(ContainSubstring(marker), name)
			g.Expect(content).NotTo(ContainSubstring("managedFields"), name)
		}
		g.Expect(files["management/"+namespace+"/secrets.txt"]).To(And(ContainSubstring("pull-secret"), ContainSubstring("Opaque")))
		g.Expect(files["management/"+namespace+"/deployments.apps.yaml"]).To(ContainSubstring("--cluster-name=blue"))
		g.Expect(files["management/"+namespace+"/configmaps.yaml"]).To(ContainSubstring("instanceType: blue-workers"))
		g.Expect(strings.TrimSpace(files["errors.txt"])).To(BeEmpty())
	})
	t.Run("When a kind can't be read, it should list it and collect the rest", func(t *testing.T) {
		g := NewWithT(t)
		reader := server.AddUser(t, "dump-reader", rbacv1.PolicyRule{
			APIGroups: []string{"autonode.io", "apps", "cluster.x-k8s.io"}, Resources: []string{"*"}, Verbs: []string{"get", "list"},
		})
		folder := filepath.Join(t.TempDir(), "bundle")
		out, err := clitest.Run(t, dump.NewCommand(""), "--kubeconfig", reader, "--hosted-cluster", namespace+"/blue", "--to", folder)
		g.Expect(err).NotTo(HaveOccurred())
		problems, err := os.ReadFile(filepath.Join(folder, "errors.txt"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(problems)).To(And(ContainSubstring("management: secrets in namespace "+namespace), ContainSubstring("management: pods in namespace "+namespace)))
		g.Expect(out).To(ContainSubstring("failed; errors.txt in the bundle lists them"))
		g.Expect(filepath.Join(folder, "management", namespace, "deployments.apps.yaml")).To(BeAnExistingFile())
	})
	t.Run("When the file exists, it should not overwrite it", func(t *testing.T) {
		g := NewWithT(t)
		folder := t.TempDir()
		_, err := clitest.Run(t, dump.NewCommand(""), "--kubeconfig", server.Kubeconfig, "--to", folder)
		g.Expect(err).To(MatchError("--to " + folder + ": exists, and isn't overwritten; choose another name, or remove it"))
		_, err = clitest.Run(t, dump.NewCommand(""), "--kubeconfig", server.Kubeconfig, "--to", filepath.Join(folder, "none", "a.tar.gz"))
		g.Expect(err).To(MatchError(ContainSubstring("there is no folder " + filepath.Join(folder, "none") + "; create it, or choose another")))
	})
	t.Run("When it goes to standard output, that should have the archive alone, bit by bit", func(t *testing.T) {
		g := NewWithT(t)
		var stdout, stderr bytes.Buffer
		cmd := clitest.Command(dump.NewCommand(""), "--kubeconfig", server.Kubeconfig, "--hosted-cluster", namespace+"/blue", "--to", "-")
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		g.Expect(cmd.ExecuteContext(t.Context())).To(Succeed())
		g.Expect(stderr.String()).To(HavePrefix("standard output: 1 HostedCluster\n"))
		file := filepath.Join(t.TempDir(), "a.tar.gz")
		g.Expect(os.WriteFile(file, stdout.Bytes(), 0o600)).To(Succeed())
		g.Expect(unpack(t, file)).To(And(HaveKey("README.txt"), HaveKey("management/"+namespace+"/hostedclusters.autonode.io.yaml")))
	})
	t.Run("When the cluster can't be read, it should leave no part of a bundle", func(t *testing.T) {
		g := NewWithT(t)
		to := filepath.Join(t.TempDir(), "a.tar.gz")
		_, err := clitest.Run(t, dump.NewCommand(""), "--kubeconfig", server.AlteredKubeconfig(t, clitest.Away), "--to", to)
		g.Expect(err).To(MatchError(ContainSubstring("check the cluster with `kubectl cluster-info`")))
		g.Expect(to).NotTo(BeAnExistingFile())
	})
	t.Run("When there is no such HostedCluster, it should say how to find it", func(t *testing.T) {
		_, err := clitest.Run(t, dump.NewCommand(""), "--kubeconfig", server.Kubeconfig, "--hosted-cluster", "a/b")
		NewWithT(t).Expect(err).To(MatchError("there is no HostedCluster a/b; see `kubectl get hostedclusters -A`"))
	})
}
