// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/cli/printer"
)

var update = flag.Bool("update", false, "write what tests got into testdata")

// wrongFiles are in the folder in which the commands of TestWrongInputs run.
var wrongFiles = map[string]string{
	"syntax.yaml":   "kind: [\n",
	"list.yaml":     "- a\n- b\n",
	"text.yaml":     "hello\n",
	"kindless.yaml": "metadata: {name: a}\n",
	"other.yaml":    "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n",
	"types.yaml": "{apiVersion: karpenter.cluster.x-k8s.io/v1alpha1, kind: ClusterAPINodeClass, metadata: {name: default}, spec: " +
		"{kubelet: {maxPods: many}, bootstrapPatches: {a: 1}}}\n",
	"unknown.yaml":       "{apiVersion: karpenter.cluster.x-k8s.io/v1alpha1, kind: ClusterAPINodeClass, metadata: {name: default}, spec: {kubelt: {}}}\n",
	"catalog.yaml":       "{apiVersion: karpenter.cluster.x-k8s.io/v1alpha1, kind: InstanceTypeCatalog, metadata: {name: general}, spec: {instanceTypes: {a: 1}}}\n",
	"hostedcluster.yaml": "{apiVersion: autonode.io/v1beta1, kind: HostedCluster, metadata: {name: blue}, spec: {autoNode: {provisionerConfig: {karpenter: [1]}}}}\n",
	"settings.yaml":      "{logLevel: [debug]}\n",
	"types.csv":          "name,cpu\nc2,two\n",
	"empty.csv":          "",
	"types.json":         "{\"InstanceTypes\": \"none\"}\n",
	"registry.json":      "[]\n",
}

// wrongInputs are command lines that need no cluster. Each fails, and its error is in testdata/wrong.golden.
var wrongInputs = []string{
	// what is missing
	"catalog check", "catalog diff", "catalog diff catalog.yaml", "catalog import", "catalog import csv", "catalog refresh", "catalog refresh aws -f types.json", "describe cluster",
	"adopt machinedeployment", "adopt machinedeployment workers",
	"hosted-cluster create", "install", "migrate nodepool", "release inspect", "release new registry.example/release:1", "templates render", "why node", "why pod",
	// what is too much, or misspelled
	"catalog diff a b c", "catalogs", "machines", "check a b", "describe cluster a b", "describe clutser", "dump a",
	"hc create a --cluster a/b", "history a", "install a", "migrate nodepol", "nodes a", "nodes --wide", "offerings a",
	"templates rendr", "uninstall a", "version a", "why pods",
	// values of flags and arguments
	"catalog check -f catalog.yaml --print", "catalog import csv -f types.csv --labels a --template a",
	"catalog import csv -f types.csv --template A_/b", "catalog import gce -f types.json",
	"catalog refresh aws --name a --max-closed many", "catalog refresh aws --name a --max-closed 200", "check a/b/c", "check /b",
	"check a/b -n c", "check -n a", "check -o table", "describe cluster a/", "dump --hosted-cluster blue", "dump --log-lines all", "dump --log-lines 0",
	"dump --to a.zip", "dump --to none/a.tar.gz --kubeconfig none",
	"hosted-cluster create --cluster blue", "hosted-cluster create --cluster a/b --bootstrap a --templates B",
	"hosted-cluster create --cluster a/b --dry-run=yes", "hosted-cluster create --cluster a/b -o table",
	"install --image A", "install --image operator:1 --timeout 5", "install --image operator:1 --operator-arg debug",
	"install --image operator:1 --operator-arg=--leader-elect=perhaps", "install --image operator:1 --operator-arg=--guest-networks=10.0.0.0",
	"install --image operator:1 --operator-arg=--hosted-cluster-selector=a,,b", "install --image operator:1 --karpenter-settings none.yaml",
	"install --image operator:1 --karpenter-settings settings.yaml", "install --image operator --render",
	"install --image registry.example/operator@sha256:0123", "version -o table", "catalog refresh aws --name a --dry-run=yes", "history --since week", "history -o table",
	"nodes --sort-by age2", "nodes -o table", "nodes --watch -o json", "offerings -o csv", "release inspect A",
	"release inspect release -o csv", "release inspect release --registry-config registry.json",
	"release new --version 1.36.3 --component a registry.example/release", "release new --version 1.36.3 --component karpenter=image:1 --component-version b registry.example/release",
	"release new --version 1.36.3 --component karpenter=image:1 --crds karpenter=none registry.example/release",
	"release new --version 1.36.3 --component karpenter=image:1 --node-image amd64 registry.example/release",
	"templates render -f other.yaml --capacity-type cheap", "why pod a/b/c", "why pod a/b -n c", "why pod a -o table", "why pod a --hosted-cluster clusters/blue",
	// files
	"catalog check -f none.yaml", "catalog check -f catalog.yaml", "catalog check -f other.yaml", "catalog check -f syntax.yaml",
	"catalog diff list.yaml text.yaml", "catalog import csv -f types.csv --template ATemplate/b",
	"catalog import csv -f empty.csv --template ATemplate/b", "catalog import aws -f types.json --template b",
	"catalog import aws -f syntax.yaml --template b", "catalog import csv -f types.csv --template ATemplate/b --patches list.yaml",
	"migrate nodepool none.yaml", "migrate nodepool kindless.yaml", "migrate nodepool list.yaml", "migrate nodepool other.yaml", "migrate nodepool syntax.yaml",
	"migrate nodepool types.yaml", "migrate nodepool unknown.yaml", "templates render -f hostedcluster.yaml", "templates render -f kindless.yaml", "templates render -f list.yaml",
	"templates render -f other.yaml", "templates render -f syntax.yaml", "templates render -f text.yaml",
	"templates render -f types.yaml", "templates render -f unknown.yaml",
	// no kubeconfig
	"catalog refresh aws -f types.json --name a", "check", "check blue", "describe cluster blue", "dump",
	"history", "hosted-cluster create --cluster a/b", "install --image operator:1", "nodes", "nodes --context blue", "nodes --kubeconfig none",
	"nodes --kubeconfig syntax.yaml", "offerings", "uninstall", "why node a", "why pod a",
}

func TestWrongInputs(t *testing.T) { testWrong(t, "testdata/wrong.golden", wrongInputs) }

// testWrong compares the errors of inputs with a golden file.
func testWrong(t *testing.T, golden string, inputs []string) {
	t.Helper()
	g, dir := NewWithT(t), t.TempDir()
	golden, err := filepath.Abs(golden)
	g.Expect(err).NotTo(HaveOccurred())
	for name, content := range wrongFiles {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)).To(Succeed())
	}
	t.Chdir(dir)
	t.Setenv("KUBECONFIG", "nowhere")
	t.Setenv("HOME", dir)
	var got strings.Builder
	for _, input := range inputs {
		t.Run("When a user runs "+input+", it should fail, and name what they wrote", func(t *testing.T) {
			g := NewWithT(t)
			cmd := newCommand("autonode")
			cmd.SetArgs(strings.Fields(input))
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).NotTo(MatchRegexp(`(^|\s)(json|yaml):|strconv|unmarshal|Go (struct|value)|\*?v1(alpha1|beta1)\.[A-Z]|interface \{\}|%!`), "internals of Go")
			fmt.Fprintf(&got, "$ autonode %s\n", input)
			printer.Error(&got, err)
		})
	}
	if *update {
		g.Expect(os.WriteFile(golden, []byte(got.String()), 0o600)).To(Succeed())
	}
	t.Run("When the errors are printed, they should be those of the golden file", func(t *testing.T) {
		want, err := os.ReadFile(golden)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("run the test with -update if this is meant (-want +got):\n%s", diff)
		}
	})
}

func TestHelp(t *testing.T) {
	t.Run("When help is requested, it should list the commands in groups", func(t *testing.T) {
		out, err := run(t, "autonode", "--help")
		NewWithT(t).Expect(out, err).To(MatchRegexp(`(?s)Install AutoNode and turn it on:\n  adopt .*\n  hosted-cluster .*\n  install .*\n  uninstall .*` +
			`Inspect clusters:\n  check .*\n  describe .*\n  dump .*\n  history .*\n  nodes .*\n  offerings .*\n  why .*Create and check files:\n  catalog .*\n  release .*\n  templates .*Additional Commands:\n`))
	})
}
