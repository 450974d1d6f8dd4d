// SPDX-License-Identifier: Apache-2.0

package released

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/charts"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
)

const (
	pullSecret = "registry-credentials"
	// networks of the world's guests and of its registry.
	networks = "127.0.0.0/8"
	// ours selects what is installed.
	ours = "app.kubernetes.io/part-of=autonode"
)

// way is one to install that docs/platform/install.md describes. Before each installation they make the namespace with the registry's credentials.
type way struct {
	name string
	// turnOn creates the HostedCluster without a payload, so that it has the operator's default release. Without turnOn it names the release's payload.
	turnOn func(t *testing.T, r made)
	// install installs a release, and upgrade replaces another one by it.
	install, upgrade func(t *testing.T, r made)
	// remove removes the operator and leaves the CRDs.
	remove func(t *testing.T, r made)
	// clear removes everything.
	clear func(t *testing.T, r made)
}

func ways(t *testing.T, tool tool) []way {
	// clusterctl leaves its own CRD behind, so it comes last.
	return []way{kubectlWay(t), toolWay(t, tool), helmWay(t, tool), clusterctlWay(t)}
}

// tool runs the program that is in a release's archive, which has the operator's image.
type tool func(t *testing.T, r made, args ...string) (string, error)

func newTool(t *testing.T) tool {
	folder := t.TempDir()
	return func(t *testing.T, r made, args ...string) (string, error) {
		t.Helper()
		program := filepath.Join(folder, r.version, "autonode")
		if _, err := os.Stat(program); err != nil {
			g := NewWithT(t)
			g.Expect(os.MkdirAll(filepath.Dir(program), 0o755)).To(Succeed())
			archive := fmt.Sprintf("autonode_%s_linux_%s.tar.gz", strings.TrimPrefix(r.version, "v"), goruntime.GOARCH)
			_, err := command(t, nil, "tar", "--extract", "--gzip", "--file", filepath.Join(r.folder, archive), "--directory", filepath.Dir(program))
			g.Expect(err).NotTo(HaveOccurred())
		}
		return command(t, nil, program, args...)
	}
}

// overlay is what docs/platform/install.md shows: it adds to a file of a release what this platform needs. It returns the overlay's folder.
func overlay(t *testing.T, file string) string {
	t.Helper()
	g := NewWithT(t)
	folder := t.TempDir()
	content, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(folder, "install.yaml"), content, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, "kustomization.yaml"), fmt.Appendf(nil, `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [install.yaml]
patches:
  - target: {kind: Deployment, name: autonode-operator}
    patch: |
      - {op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: %[1]s}]}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--guest-networks=%[2]s"}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--registry-networks=%[2]s"}
`, pullSecret, networks), 0o600)).To(Succeed())
	return folder
}

// confirm lets the CRDs be deleted.
func confirm(t *testing.T) {
	t.Helper()
	kubectl(t, "annotate", "crd", "--selector", ours, v1beta1.ConfirmDeletionAnnotation+"=true")
}

// hostedCluster is what docs/platform/install.md shows, for templates of the world. The pull Secret is the registry's, which needs credentials.
const hostedCluster = `apiVersion: autonode.io/v1beta1
kind: HostedCluster
metadata: {name: blue, namespace: clusters}
spec:
  infraID: blue
  pullSecret: {name: %[4]s}
  autoNode:
    provisionerConfig:
      name: Karpenter
      karpenter:
        platform: ClusterAPI
        clusterAPI:
          infrastructureTemplateSelectors:
            - apiGroup: infrastructure.cluster.x-k8s.io
              kind: KwokMachineTemplate
              selector: {matchLabels: {%[1]s: %[2]s}}
          bootstrap:
            configTemplateRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfigTemplate, name: %[3]s}
`

func kubectlWay(t *testing.T) way {
	file := filepath.Join(t.TempDir(), "hostedcluster.yaml") // a subtest's folder may have a comma in its name, at which kubectl splits
	apply := func(t *testing.T, r made) {
		kubectl(t, "apply", "--server-side", "-k", overlay(t, filepath.Join(r.folder, "install.yaml")))
	}
	return way{
		name: "kubectl", install: apply, upgrade: apply,
		turnOn: func(t *testing.T, _ made) {
			NewWithT(t).Expect(os.WriteFile(file, fmt.Appendf(nil, hostedCluster, hosting.TemplatePoolLabel, hosting.TemplatePool, hosting.BootstrapTemplate, hosting.PullSecret), 0o600)).To(Succeed())
			kubectl(t, "apply", "-f", file)
		},
		remove: func(t *testing.T, r made) {
			_, err := command(t, nil, world.Kubectl(), "delete", "--timeout=3m", "-k", overlay(t, filepath.Join(r.folder, "install.yaml")))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("drains the nodes of all hosted clusters")))
			kubectl(t, "wait", "namespace", localworld.OperatorNamespace, "--for=delete", "--timeout=3m")
		},
		clear: func(t *testing.T, r made) {
			confirm(t)
			kubectl(t, "delete", "--timeout=3m", "-k", overlay(t, filepath.Join(r.folder, "install.yaml")))
		},
	}
}

func toolWay(_ *testing.T, autonode tool) way {
	install := func(t *testing.T, r made) {
		_, err := autonode(t, r, "install", "--pull-secret="+pullSecret, "--operator-arg=--guest-networks="+networks, "--operator-arg=--registry-networks="+networks)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	return way{
		name: "autonode install", install: install, upgrade: install,
		remove: func(t *testing.T, r made) {
			g := NewWithT(t)
			_, err := autonode(t, r, "uninstall")
			g.Expect(err).To(MatchError(ContainSubstring("--leave-nodes")))
			_, err = autonode(t, r, "uninstall", "--leave-nodes")
			g.Expect(err).NotTo(HaveOccurred())
		},
		clear: func(t *testing.T, r made) {
			_, err := autonode(t, r, "uninstall", "--delete-crds")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		},
	}
}

// helmWay takes the charts from the registry, and creates the HostedCluster with the release's program: the three commands at the top of
// docs/platform/install.md.
func helmWay(t *testing.T, autonode tool) way {
	g := NewWithT(t)
	folder := t.TempDir()
	helm, err := charts.NewHelm(t.Context(), root, charts.Helm4, folder)
	g.Expect(err).NotTo(HaveOccurred())
	run := func(t *testing.T, args ...string) {
		t.Helper()
		_, err := command(t, helm.Env, helm.Path, append(args, "--namespace", localworld.OperatorNamespace, "--timeout", "5m")...)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	values, err := yaml.Marshal(map[string]any{
		"imagePullSecrets": []any{map[string]any{"name": pullSecret}}, "guestNetworks": []any{networks}, "registryNetworks": []any{networks},
	})
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(folder, "values.yaml")
	g.Expect(os.WriteFile(file, values, 0o600)).To(Succeed())
	username, password := world.Registry().Credentials()
	apply := func(verb string) func(t *testing.T, r made) {
		return func(t *testing.T, r made) {
			for _, chart := range []string{charts.CRDs, charts.Operator} {
				args := []string{verb, chart, "oci://" + prefix() + "/charts/" + chart, "--version", strings.TrimPrefix(r.version, "v"),
					"--plain-http", "--username", username, "--password", password, "--wait"}
				if chart == charts.Operator {
					args = append(args, "--values", file)
				}
				run(t, args...)
			}
		}
	}
	remove := func(t *testing.T, _ made) { run(t, "uninstall", charts.Operator, charts.CRDs, "--wait") }
	return way{
		name: "Helm", install: apply("install"), upgrade: apply("upgrade"), remove: remove,
		turnOn: func(t *testing.T, r made) {
			_, err := autonode(t, r, "hosted-cluster", "create", "--cluster", hosting.ControlPlaneNamespace(guest)+"/"+guest, "--namespace", hosting.Namespace,
				"--templates", "KwokMachineTemplate", "--selector", hosting.TemplatePoolLabel+"="+hosting.TemplatePool,
				"--bootstrap", "KubeadmConfigTemplate/"+hosting.BootstrapTemplate, "--pull-secret", hosting.PullSecret)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		},
		clear: func(t *testing.T, r made) {
			remove(t, r)
			confirm(t)
			kubectl(t, "delete", "crd", "--selector", ours)
			kubectl(t, "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "deletion."+v1beta1.Group)
			kubectl(t, "delete", "namespace", localworld.OperatorNamespace)
		},
	}
}
