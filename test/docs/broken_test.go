// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
)

// yamlBlock and shellBlock are pages with one block.
func yamlBlock(text string) string  { return "```yaml\n" + text + "\n```\n" }
func shellBlock(text string) string { return "```\n" + text + "\n```\n" }

func TestBroken(t *testing.T) {
	known := keys(t)
	for name, test := range map[string]struct{ content, want string }{
		"When a field is misspelled, it should name the field": {
			yamlBlock("apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\nspec: {template: {spec: {nodeClassRef: {group: a, kind: b, name: c}, requirement: []}}}"),
			`unknown field "spec.template.spec.requirement"`},
		"When a part has no marker, it should ask for one": {
			yamlBlock("spec:\n  pausedUntil: \"true\""), "no marker declares what it is a part of"},
		"When a part breaks a CEL rule, it should quote the rule": {
			"<!-- part of: HostedCluster -->\n" + yamlBlock("spec:\n  pausedUntil: tomorrow"), "pausedUntil has to be true, false, or a time"},
		"When a part names a field that isn't there, it should name the field": {
			"<!-- part of: HostedCluster, at: spec.autoNode -->\n" + yamlBlock("nodeUpgrades: {}"), "unknown field"},
		"When a kind isn't served, it should name the kind": {
			yamlBlock("apiVersion: karpenter.sh/v1\nkind: NodeGroup\nmetadata: {name: a}"), `no matches for kind "NodeGroup"`},
		"When a built-in has an unknown field, it should name the field": {
			yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatas: {a: b}"), `unknown field "datas"`},
		"When a key is written twice, it should name the key": {
			yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\ndata: {}"), `key "data" already set`},
		"When Cluster API's kind has an unknown field, it should name the field": {
			yamlBlock("apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: a}\nspec: {infrastructureReference: {}}"), "infrastructureReference"},
		"When a foreign template declares no capacity, it should say so": {
			yamlBlock("apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1\nkind: KubevirtMachineTemplate\nmetadata: {name: a}\nspec: {template: {spec: {}}}"), "cpu"},
		"When a template's annotation is malformed, it should name it": {
			"<!-- part of: VSphereMachineTemplate -->\n" + yamlBlock("metadata: {annotations: {karpenter.cluster.x-k8s.io/price: cheap}}"), "karpenter.cluster.x-k8s.io/price"},
		"When an annotation isn't ours, it should name it": {
			"<!-- part of: VSphereMachineTemplate -->\n" + yamlBlock("metadata: {annotations: {karpenter.cluster.x-k8s.io/prices: \"1\"}}"), "no label or annotation is called karpenter.cluster.x-k8s.io/prices"},
		"When a patch is malformed, it should quote its error": {
			"<!-- part of: ClusterAPINodeClass -->\n" + yamlBlock("spec: {bootstrapPatches: [{apiGroup: a, kind: RKE2Config, patches: [{op: add, path: /spec/a, valueFrom: {template: '{{ .nothing }}'}}]}]}"), "nothing"},
		"When a file of settings has an unknown field, it should name the field": {
			"<!-- file: karpenter settings -->\n" + yamlBlock("resource: {}"), `unknown field "resource"`},
		"When a file of prices has a wrong price, it should name the entry": {
			"<!-- file: prices -->\n" + yamlBlock("- {instanceType: a, price: -1}"), "entry 1"},
		"When a marker is misspelled, it should say which there are": {
			"<!-- parts of: NodePool -->\n" + yamlBlock("spec: {}"), "is none of"},
		"When another program's file isn't YAML, it should say so": {
			"<!-- other: clusterctl's configuration -->\n" + yamlBlock("a: b: c"), "mapping values are not allowed"},
		"When an overlay sets a flag that the operator lacks, it should name the flag": {
			"<!-- part of: Kustomization -->\n" + yamlBlock("patches:\n- target: {kind: Deployment}\n  patch: |\n    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --gust-networks=10.0.0.0/8}"), "unknown flag: --gust-networks"},
		"When an overlay patches what isn't there, it should say so": {
			"<!-- part of: Kustomization -->\n" + yamlBlock("patches:\n- target: {kind: Deployment, name: autonode-operator}\n  patch: |\n    - {op: replace, path: /spec/nothing, value: a}"), "nothing"},
		"When a subcommand of autonode doesn't exist, it should say so":  {shellBlock("autonode release make a"), "autonode release has no subcommand make"},
		"When a flag of autonode doesn't exist, it should name the flag": {shellBlock("autonode release new --versions 1.36.3 a"), "unknown flag: --versions"},
		"When a flag of Karpenter doesn't exist, it should name the flag": {
			shellBlock("karpenter-clusterapi --cluster blue"), "flag provided but not defined: -cluster"},
		"When a plugin's flag doesn't exist, it should name the flag":       {shellBlock("kubectl autonode version --wide"), "unknown flag: --wide"},
		"When a target of make doesn't exist, it should name the target":    {shellBlock("make tests"), "no target tests"},
		"When the Makefile has no such variable, it should name it":         {shellBlock("make e2e TESTFLAG=-v"), "no variable TESTFLAG"},
		"When a verb of kubectl doesn't exist, it should name the verb":     {shellBlock("kubectl gets pods"), `unknown command "gets"`},
		"When a flag of kubectl doesn't exist, it should name the flag":     {shellBlock("kubectl get pods --everywhere"), "unknown flag: --everywhere"},
		"When kubectl is asked for an unknown kind, it should name it":      {shellBlock("kubectl get hostedclutsers -A"), `doesn't have a resource type "hostedclutsers"`},
		"When kubectl annotates an unknown kind, it should name it":         {shellBlock("kubectl annotate nodeklass default a=b"), `doesn't have a resource type "nodeklass"`},
		"When the world's kubectl is asked so, it should name it, too":      {shellBlock("bin/autonode-dev world kubectl blue get noodes"), `doesn't have a resource type "noodes"`},
		"When a program beside a known one is misspelled, it should say so": {shellBlock("kubectl get pods\nkubctl get nodes"), "kubctl is no program"},
		"When a command's quote isn't closed, it should say so":             {shellBlock("kubectl get pods -o 'wide"), "isn't closed"},
		"When the second command of a pipe is wrong, it should say so":      {shellBlock("make bench | autonode relase"), "no subcommand relase"},
		"When a transcript's command is wrong, it should say so":            {shellBlock("$ autonode relase\nall is well"), "no subcommand relase"},
		"When JSON isn't JSON, it should say so":                            {"```json\n{a: b}\n```\n", "it isn't JSON"},
		"When a language is unknown, it should name those that are checked": {"```ymal\na: b\n```\n", "aren't checked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := errors.Join(parse("docs/page.md", test.content).check(t.Context(), t.TempDir(), known)...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestUnbroken(t *testing.T) {
	known := keys(t)
	for name, content := range map[string]string{
		"When a block shows what a program prints, it should not be taken for commands": shellBlock("NAME   READY\nblue   it's True"),
		"When a transcript shows a mistake and its error, it should pass":               shellBlock("$ autonode relase\nerror: unknown command"),
		"When commands have pipes, redirections and comments, it should read them":      shellBlock("kubectl get pods -o yaml > all.yaml   # it's all\nmake bench | tee new.txt"),
		"When a command is continued, it should be one":                                 shellBlock("kubectl get pods \\\n  --all-namespaces"),
		"When a placeholder stands for a name, it should be taken for one":              shellBlock("kubectl -n <control plane namespace> get machines"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(errors.Join(parse("docs/page.md", content).check(t.Context(), t.TempDir(), known)...)).To(Succeed())
		})
	}
	t.Run("When a page links to what isn't there, it should name the file and the heading", func(t *testing.T) {
		g := NewWithT(t)
		p := parse("docs/reference/metrics.md", "# A heading\n\n[a](#a-heading), [b](#b), [c](nothing.md), `[d](code)`, [e](metrics.md)\n")
		g.Expect(errors.Join(p.links(map[string]page{p.path: p})...)).To(MatchError(And(
			ContainSubstring("docs/reference/metrics.md has no heading #b"), ContainSubstring("there is no docs/reference/nothing.md"), Not(ContainSubstring("code")))))
	})
}
