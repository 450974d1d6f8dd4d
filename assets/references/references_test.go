// SPDX-License-Identifier: Apache-2.0

package references_test

import (
	"flag"
	"os"
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
	t.Run("When references.yaml has changed, the policy should be rendered again", func(t *testing.T) {
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
	for name, test := range map[string]struct {
		kind schema.GroupKind
		spec string
		want string
		err  string
	}{
		"files and users": {
			schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}, `
files:
  - {path: /a, content: x}
  - {path: /b, contentFrom: {secret: {name: cloud, key: azure.json}}}
  - {path: /c, contentFrom: {secret: {name: cloud}}}
users: [{name: admin, passwdFrom: {secret: {name: admin, key: hash}}}]`,
			"KubeadmConfig.bootstrap.cluster.x-k8s.io spec.files[].contentFrom.secret=cloud/azure.json spec.files[].contentFrom.secret=cloud/ spec.users[].passwdFrom.secret=admin/hash", "",
		},
		"no reference": {schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}, `files: [{path: /a, content: x}]`, "", ""},
		"texts": {
			schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "GCPMachine"}, `serviceAccounts: {email: a@example.com, scopes: [s1, s2]}`,
			"GCPMachine.infrastructure.cluster.x-k8s.io spec.serviceAccounts.email=a@example.com spec.serviceAccounts.scopes[]=s1 spec.serviceAccounts.scopes[]=s2", "",
		},
		"a number where the API has text": {schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSMachine"}, `iamInstanceProfile: 7`, "", "spec.iamInstanceProfile: is"},
		"text where the API has a list":   {schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}, `files: x`, "", "spec.files is no list"},
		"a template without a spec":       {schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSMachine"}, ``, "", ""},
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
