// SPDX-License-Identifier: Apache-2.0

package references_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/references"
)

func TestPermissions(t *testing.T) {
	t.Run("When a kind can refer to Secrets, the operator should be allowed to watch its templates, and no others of that group", func(t *testing.T) {
		g := NewWithT(t)
		kinds, err := references.Embedded()
		g.Expect(err).NotTo(HaveOccurred())
		want := map[string][]string{}
		for kind := range kinds {
			want[kind.Group] = append(want[kind.Group], strings.ToLower(kind.Kind)+"templates")
		}
		manifest, err := os.ReadFile("../../../manifests/rbac/role.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		role := &rbacv1.ClusterRole{}
		g.Expect(yaml.Unmarshal([]byte(strings.Split(string(manifest), "\n---\n")[0]), role)).To(Succeed())
		for group, resources := range want {
			var allowed []string
			for _, rule := range role.Rules {
				if slices.Equal(rule.APIGroups, []string{group}) && slices.Equal(rule.Verbs, []string{"list", "watch"}) {
					allowed = append(allowed, rule.Resources...)
				}
			}
			g.Expect(allowed).To(ConsistOf(resources), group)
		}
	})
}
