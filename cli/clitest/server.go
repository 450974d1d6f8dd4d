// SPDX-License-Identifier: Apache-2.0

// Package clitest runs commands, and an API server for them, for the tests of each command. It needs the programs that KUBEBUILDER_ASSETS
// names.
package clitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/internal/apiserver"
)

// Server is an API server with AutoNode's and Cluster API's kinds, and without controllers. It has Karpenter's kinds too, so that it is a
// guest as well.
type Server struct {
	// Kubeconfig is the path of an administrator's.
	Kubeconfig string
	Admin      client.Client

	environment *envtest.Environment
}

// Run starts the server, runs the tests, and stops it. It returns the exit code for TestMain.
func (s *Server) Run(m *testing.M) int {
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "running the API server for tests:", err)
		return 1
	}
	return code
}

func (s *Server) run(m *testing.M) (code int, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/autonode-io/autonode", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return 0, fmt.Errorf("finding the modules of the CRDs: %w", err)
	}
	product, clusterAPI, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	bases := filepath.Join(clusterAPI, "core/config/crd/bases")
	guestCRDs, err := crds.Embedded()
	if err != nil {
		return 0, err
	}
	s.environment = apiserver.New(envtest.CRDInstallOptions{
		CRDs: guestCRDs,
		Paths: []string{
			filepath.Join(product, "manifests/crds"), filepath.Join(product, "internal/environment/crds.yaml"),
			filepath.Join(bases, "cluster.x-k8s.io_clusters.yaml"), filepath.Join(bases, "cluster.x-k8s.io_machinedeployments.yaml"),
			filepath.Join(bases, "cluster.x-k8s.io_machines.yaml"), filepath.Join(bases, "cluster.x-k8s.io_machinesets.yaml"),
		},
		ErrorIfPathMissing: true,
	})
	if _, err := s.environment.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.environment.Stop()) }()
	dir, err := os.MkdirTemp("", "autonode")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s.Kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := s.writeKubeconfig(s.Kubeconfig, envtest.User{Name: "admin", Groups: []string{"system:masters"}}); err != nil {
		return 0, err
	}
	flags := cluster.Flags{Kubeconfig: s.Kubeconfig}
	if s.Admin, err = flags.Client(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

func (s *Server) writeKubeconfig(path string, user envtest.User) error {
	authenticated, err := s.environment.AddUser(user, nil)
	if err != nil {
		return err
	}
	raw, err := authenticated.KubeConfig()
	if err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// AddUser returns the kubeconfig of a user, who has the rights of a ClusterRole of that name.
func (s *Server) AddUser(t *testing.T, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	g := gomega.NewWithT(t)
	path := filepath.Join(t.TempDir(), name)
	g.Expect(s.writeKubeconfig(path, envtest.User{Name: name})).To(gomega.Succeed())
	s.Create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})
	return path
}

// AlteredKubeconfig returns the path of a copy of Kubeconfig with a change.
func (s *Server) AlteredKubeconfig(t *testing.T, change func(*clientcmdapi.Config)) string {
	t.Helper()
	g := gomega.NewWithT(t)
	config, err := clientcmd.LoadFromFile(s.Kubeconfig)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	change(config)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(clientcmd.WriteToFile(*config, path)).To(gomega.Succeed())
	return path
}

// Away changes a kubeconfig to one of an API server that doesn't answer.
func Away(config *clientcmdapi.Config) {
	for _, cluster := range config.Clusters {
		cluster.Server = "https://127.0.0.1:1"
	}
}

// Create creates objects that don't exist, and deletes them at the end of a test.
func (s *Server) Create(t *testing.T, objects ...client.Object) {
	t.Helper()
	g := gomega.NewWithT(t)
	for _, object := range objects {
		g.Expect(client.IgnoreAlreadyExists(s.Admin.Create(t.Context(), object))).To(gomega.Succeed())
		if _, ok := object.(*corev1.Namespace); ok || object.GetObjectKind().GroupVersionKind().Kind == "Namespace" {
			continue // no controller finishes its deletion
		}
		t.Cleanup(func() {
			g.Expect(client.IgnoreNotFound(s.Admin.Delete(context.WithoutCancel(t.Context()), object))).To(gomega.Succeed())
		})
	}
}
