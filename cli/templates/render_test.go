// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

const templateNodeClass = `apiVersion: karpenter.cluster.x-k8s.io/v1alpha1
kind: ClusterAPINodeClass
metadata: {name: default}
spec:
  infrastructureTemplateSelectors:
  - {apiGroup: infrastructure.cluster.x-k8s.io, kind: CloudMachineTemplate, selector: {matchLabels: {pool: general}}}
  bootstrap: {configTemplateRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: RKE2ConfigTemplate, name: default}}
  bootstrapPatches:
  - apiGroup: bootstrap.cluster.x-k8s.io
    kind: RKE2Config
    patches:
    - {op: add, path: /spec/agentConfig/nodeTaints, valueFrom: {variable: taintList}}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: RKE2ConfigTemplate
metadata: {name: default}
spec: {template: {spec: {}}}
`

const hostedCluster = `apiVersion: autonode.io/v1beta1
kind: HostedCluster
metadata: {name: blue}
spec:
  infraID: blue
  autoNode:
    provisionerConfig:
      name: Karpenter
      karpenter:
        platform: ClusterAPI
        clusterAPI:
          infrastructureTemplateSelectors:
          - {apiGroup: infrastructure.cluster.x-k8s.io, kind: CloudMachineTemplate, selector: {matchLabels: {pool: general}}}
          bootstrap: {configTemplateRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: RKE2ConfigTemplate, name: default}}
`

// formerDeployment is of v1beta1, as many public examples are.
const formerDeployment = `apiVersion: karpenter.cluster.x-k8s.io/v1alpha1
kind: ClusterAPINodeClass
metadata: {name: default}
spec: {scalableResourceSelector: {matchLabels: {pool: workers}}}
---
apiVersion: cluster.x-k8s.io/v1beta1
kind: MachineDeployment
metadata: {name: dense, labels: {pool: workers}}
spec:
  clusterName: blue
  selector: {matchLabels: null}
  template:
    spec:
      clusterName: blue
      nodeDrainTimeout: 90s
      bootstrap: {configRef: {apiVersion: bootstrap.cluster.x-k8s.io/v1beta1, kind: KubeadmConfigTemplate, name: dense}}
      infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: CloudMachineTemplate, name: c4-large}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: KubeadmConfigTemplate
metadata: {name: dense}
spec: {template: {spec: {joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {max-pods: "220"}}}}}}
`

func cloudTemplate(name, patches string) string {
	return `apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: CloudMachineTemplate
metadata:
  name: ` + name + `
  labels: {pool: general}
  annotations:
    capacity.cluster-autoscaler.kubernetes.io/cpu: "4"
    capacity.cluster-autoscaler.kubernetes.io/memory: 8Gi
    karpenter.cluster.x-k8s.io/infrastructure-patches: |
      ` + patches + `
spec: {template: {spec: {size: large, disks: [{size: 10}]}}}
`
}

func TestTemplatesRender(t *testing.T) {
	const patches = `[{op: add, path: /spec/market, valueFrom: {variable: capacityType}}, {op: add, path: /spec/zone, valueFrom: {variable: zone}},
       {op: add, path: /spec/ami, valueFrom: {variable: image.cloud.mars-1}}]`
	for name, tc := range map[string]struct {
		files, args []string
		want        []string
		mention     string
	}{
		"When the patches apply, it should print what would be made": {
			files: []string{templateNodeClass, cloudTemplate("c4-large", patches)}, args: []string{"--capacity-type", "spot", "--zone", "a", "--cluster-name", "blue"},
			want: []string{
				"# CloudMachineTemplate default/c4-large as c4-large\n---\napiVersion: infrastructure.cluster.x-k8s.io/v1\nkind: CloudMachine\n",
				"  ami: image.cloud.mars-1\n  disks:\n  - size: 10\n  market: spot\n  size: large\n  zone: a\n",
				"kind: RKE2Config\n", "    nodeTaints:\n    - karpenter.sh/unregistered:NoExecute\n",
				"kind: Machine\n", "clusterName: blue\n", "failureDomain: a\n", "version: v1.36.3\n",
			},
		},
		"When one source's patches don't apply, it should print the others and say which": {
			files:   []string{templateNodeClass, cloudTemplate("c4-large", patches) + "---\n" + cloudTemplate("bad", "[{op: remove, path: /spec/spot}]")},
			want:    []string{"c4-large as c4-large", "market: on-demand"},
			mention: "CloudMachineTemplate default/bad: annotation karpenter.cluster.x-k8s.io/infrastructure-patches: patch 0 (remove /spec/spot): /spec/spot doesn't exist",
		},
		"When one source is named, it should print that one alone": {
			files: []string{templateNodeClass, cloudTemplate("c4-large", patches) + "---\n" + cloudTemplate("bad",
				"[{op: remove, path: /spec/spot}]")}, args: []string{"--source", "c4-large"},
			want: []string{"c4-large as c4-large"},
		},
		"When the bootstrap template is missing, it should say so": {
			files: []string{strings.Split(templateNodeClass, "---")[0], cloudTemplate("c4-large", patches)}, mention: `RKE2ConfigTemplate.bootstrap.cluster.x-k8s.io "default" not found`,
		},
		"When nothing is selected, it should say so": {files: []string{templateNodeClass}, mention: "selects none of the objects in the files: they contain no CloudMachineTemplate"},
		"When no object has the selector's labels, it should say so": {
			files:   []string{templateNodeClass, strings.Replace(cloudTemplate("c4-large", "[]"), "pool: general", "pool: other", 1)},
			mention: "no CloudMachineTemplate of Cluster example has the labels of the selector",
		},
		"When a MachineDeployment is of v1beta1, it should read it, and print the kubelet's flags that its machines get": {
			files: []string{formerDeployment, cloudTemplate("c4-large", "[]")}, args: []string{"--cluster-name", "blue"},
			want: []string{"# MachineDeployment default/dense as dense\n", "kind: CloudMachine\n", `max-pods: "220"`, "nodeDrainTimeoutSeconds: 90\n"},
		},
		"When the MachineDeployments are another Cluster's, it should name the flag": {
			files: []string{formerDeployment, cloudTemplate("c4-large", "[]")}, mention: "each MachineDeployment belongs to another Cluster than example, see --cluster-name",
		},
		"When a bootstrap object is no template, it should say so": {
			files: []string{strings.Replace(formerDeployment, "spec: {template: {spec: {join", "spec: {cut: {spec: {join", 1),
				cloudTemplate("c4-large", "[]")}, args: []string{"--cluster-name", "blue"},
			mention: "KubeadmConfigTemplate default/dense has no spec.template",
		},
		"When there is a HostedCluster instead of a node class, it should take its default one": {
			files: []string{hostedCluster + "---\n" + strings.Split(templateNodeClass, "---\n")[1], cloudTemplate("c4-large", patches)}, want: []string{"c4-large as c4-large"},
		},
		"When the HostedCluster has AutoNode off, it should say so": {files: []string{strings.Split(hostedCluster, "  autoNode:")[0]},
			mention: "HostedCluster blue has no spec.autoNode"},
		"When a source makes no spot machines, it should say what it makes, rather than print one": {
			files: []string{templateNodeClass, cloudTemplate("c4-large", "[]")}, args: []string{"--capacity-type", "spot"},
			mention: "CloudMachineTemplate default/c4-large: it offers no spot machines, but on-demand: choose another --capacity-type",
		},
		"When the source is misspelled, it should say which there are": {
			files: []string{templateNodeClass, cloudTemplate("c4-large", patches)}, args: []string{"--source", "c4-lagre"},
			mention: `--source "c4-lagre": the node class selects no such source; it selects c4-large`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			args := append([]string{"render"}, tc.args...)
			for i, content := range tc.files {
				path := filepath.Join(t.TempDir(), string(rune('a'+i))+".yaml")
				g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
				args = append(args, "-f", path)
			}
			var out bytes.Buffer
			cmd := NewCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(args)
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			if tc.mention == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(tc.mention)))
			}
			for _, want := range tc.want {
				g.Expect(out.String()).To(ContainSubstring(want))
			}
		})
	}
	t.Run("When objects come as a list from standard input, it should read its items", func(t *testing.T) {
		g := NewWithT(t)
		list := `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass", "metadata": {"name": "default"}}]}`
		cmd := NewCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"render", "-f", "-"})
		cmd.SetIn(strings.NewReader(list))
		g.Expect(cmd.ExecuteContext(t.Context())).To(MatchError(ContainSubstring("selects none of the objects")))
	})
}

func TestHostileOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "templates.yaml")
	content := templateNodeClass + "---\n" + strings.Replace(cloudTemplate("c4", "[]"), "name: c4", "name: "+printertest.YAML, 1)
	NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	printertest.Harmless(t, "templates render", func(out io.Writer) error {
		cmd := NewCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"render", "-f", path})
		cmd.SetOut(out)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			printer.Error(out, err)
		}
		return nil
	})
}
