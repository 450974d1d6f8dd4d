// SPDX-License-Identifier: Apache-2.0

package released

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/clusterctl"
	localworld "github.com/autonode-io/autonode/test/world"
)

// clusterctlWay installs the components of a release beside a Cluster API that clusterctl finds installed.
func clusterctlWay(t *testing.T) way {
	t.Helper()
	g := NewWithT(t)
	repository, err := clusterctl.NewRepository(root, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	run := func(t *testing.T, args ...string) error {
		t.Helper()
		return repository.Run(t.Context(), world.Kubeconfig(localworld.Management), args...)
	}
	// add puts a release into the repository, with what this platform needs.
	add := func(t *testing.T, r made) {
		t.Helper()
		g := NewWithT(t)
		metadata, err := os.ReadFile(filepath.Join(r.folder, "metadata.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		components := kubectl(t, "kustomize", overlay(t, filepath.Join(r.folder, "addon-components.yaml")))
		g.Expect(repository.Add(r.version, []byte(components), metadata)).To(Succeed())
	}
	return way{
		name: "clusterctl",
		install: func(t *testing.T, r made) {
			g := NewWithT(t)
			add(t, r)
			management := newClient(t, world.Management().RESTConfig())
			for _, definition := range clusterctl.CertManager() {
				g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), definition))).To(Succeed())
			}
			// It skips providers that are installed in this version.
			g.Expect(run(t, "init", "--core", clusterctl.Core, "--bootstrap", "-", "--control-plane", "-", "--addon", clusterctl.Addon+":"+r.version)).To(Succeed())
		},
		upgrade: func(t *testing.T, r made) {
			add(t, r)
			NewWithT(t).Expect(run(t, "upgrade", "apply", "--addon", clusterctl.Addon+":"+r.version)).To(Succeed())
		},
		remove: func(t *testing.T, _ made) {
			g := NewWithT(t)
			g.Expect(run(t, "delete", "--addon", clusterctl.Addon, "--include-crd", "--include-namespace")).To(
				MatchError(ContainSubstring("found existing objects for provider CRDs")))
			g.Expect(run(t, "delete", "--addon", clusterctl.Addon)).To(Succeed())
			kubectl(t, "wait", "pod", "--namespace", localworld.OperatorNamespace, "--all", "--for=delete", "--timeout=3m")
		},
		clear: func(t *testing.T, _ made) {
			confirm(t)
			NewWithT(t).Expect(run(t, "delete", "--addon", clusterctl.Addon, "--include-crd", "--include-namespace")).To(Succeed())
		},
	}
}
