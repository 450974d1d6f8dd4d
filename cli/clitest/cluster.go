// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"bytes"
	"context"
	_ "embed"
	"strconv"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/hostedcluster"
)

// PayloadImage is the release of the HostedClusters.
const PayloadImage = "registry.example/release:1.36.3"

// GuestKubeconfig is one that the operator accepts.
const GuestKubeconfig = `
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: a, user: {token: secret}}]
`

// MachineTemplate is the one that the MachineDeployments of MakeCluster refer to.
func MachineTemplate(namespace string) *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{}}
	template.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
	template.SetKind("TestMachineTemplate")
	template.SetNamespace(namespace)
	template.SetName("small")
	return template
}

//go:embed cluster.yaml
var clusterYAML string

//go:embed hosted.yaml
var hostedYAML string

// create creates the objects of a file, with their status. words replace words of the file, as strings.NewReplacer has them.
func (s *Server) create(t *testing.T, content string, words ...string) {
	t.Helper()
	g := gomega.NewWithT(t)
	objects, err := file.ReadObjects(strings.NewReader(strings.NewReplacer(words...).Replace(content)), []string{"-"})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, object := range objects {
		status := object.Object["status"]
		s.Create(t, object)
		if status != nil {
			object.Object["status"] = status
			g.Expect(s.Admin.Status().Update(t.Context(), object)).To(gomega.Succeed())
		}
	}
}

// MakeCluster makes a Cluster with all that AutoNode needs, in a namespace of its own.
func (s *Server) MakeCluster(t *testing.T, namespace, name string) *clusterv1.Cluster {
	t.Helper()
	g := gomega.NewWithT(t)
	s.create(t, clusterYAML, "NAMESPACE", namespace, "NAME", name, "KUBECONFIG", strconv.Quote(GuestKubeconfig))
	t.Cleanup(func() {
		hostedClusters := &v1beta1.HostedClusterList{}
		g.Expect(s.Admin.List(context.Background(), hostedClusters)).To(gomega.Succeed())
		for i := range hostedClusters.Items {
			g.Expect(s.Admin.Delete(context.Background(), &hostedClusters.Items[i])).To(gomega.Succeed())
		}
	})
	cluster := &clusterv1.Cluster{}
	g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, cluster)).To(gomega.Succeed())
	return cluster
}

// MakeHosted makes a control plane with one template, and in its guest, which is the same cluster, a NodePool of it.
func (s *Server) MakeHosted(t *testing.T, namespace string, provisioned bool) {
	t.Helper()
	cluster := s.MakeCluster(t, namespace, "blue")
	cluster.Status.Initialization.InfrastructureProvisioned = &provisioned
	gomega.NewWithT(t).Expect(s.Admin.Status().Update(t.Context(), cluster)).To(gomega.Succeed())
	s.create(t, hostedYAML, "NAMESPACE", namespace)
}

// CreateHostedCluster runs `autonode hosted-cluster create`, and returns what it prints and warns.
func (s *Server) CreateHostedCluster(t *testing.T, args ...string) (out, warnings string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := Command(hostedcluster.NewCommand(), append([]string{"create", "--kubeconfig", s.Kubeconfig}, args...)...)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}
