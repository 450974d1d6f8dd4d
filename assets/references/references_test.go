// SPDX-License-Identifier: Apache-2.0

package references_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/references"
)

var update = flag.Bool("update", false, "write manifests/policy/references.yaml")

func TestPolicy(t *testing.T) {
	t.Run("When a list of fields has changed, the policy should be rendered again", func(t *testing.T) {
		g := NewWithT(t)
		const manifest = "../../manifests/policy/references.yaml"
		rendered, err := references.Policy()
		g.Expect(err).NotTo(HaveOccurred())
		if *update {
			g.Expect(os.WriteFile(manifest, rendered, 0o644)).To(Succeed())
		}
		written, err := os.ReadFile(manifest)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmp.Diff(string(written), string(rendered))).To(BeEmpty(), "run go test ./assets/references -update")
	})
}

func TestText(t *testing.T) {
	bootstrap := schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}
	gcp := schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "GCPMachine"}
	for name, test := range map[string]struct {
		kind schema.GroupKind
		spec string
		want string
		err  string
	}{
		"files, commands and users": {
			bootstrap, `
preKubeadmCommands: [run]
files:
  - {path: /a, content: x}
  - {path: /b, contentFrom: {secret: {name: cloud, key: azure.json}}}
users: [{name: admin, passwdFrom: {secret: {name: admin, key: hash}}}]`,
			"KubeadmConfig.bootstrap.cluster.x-k8s.io {5:files=[{11:contentFrom={6:secret={3:key=10:azure.json;4:name=5:cloud;;;;;" +
				"5:users=[{10:passwdFrom={6:secret={3:key=4:hash;4:name=5:admin;;;;;;", "",
		},
		"fields that may differ":          {bootstrap, `{files: [{path: /a, content: x}], joinConfiguration: {nodeRegistration: {name: a}}}`, "KubeadmConfig.bootstrap.cluster.x-k8s.io {;", ""},
		"scalars in any order":            {gcp, `{subnet: ä, publicIP: true, empty: {}, none: null, list: [1, 2.5, {}], instanceType: n2}`, "GCPMachine.infrastructure.cluster.x-k8s.io {5:empty={;4:list=[1;2.5;{;;8:publicIP=true;6:subnet=1:ä;;", ""},
		"an object deeper than any other": {gcp, strings.Repeat("a: {", 18) + "b: c" + strings.Repeat("}", 18), "", "too deep"},
		"no spec":                         {gcp, ``, "GCPMachine.infrastructure.cluster.x-k8s.io {;", ""},
	} {
		t.Run("When a template has "+name+", its text should say so", func(t *testing.T) {
			g := NewWithT(t)
			kinds, err := references.Embedded()
			g.Expect(err).NotTo(HaveOccurred())
			var spec any
			g.Expect(yaml.Unmarshal([]byte(test.spec), &spec)).To(Succeed())
			template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}}
			text, err := kinds[test.kind].TextOf(template)
			if test.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text).To(Equal(test.want))
		})
	}
}
