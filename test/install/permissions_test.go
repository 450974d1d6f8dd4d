// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

const permissionsDoc = root + "/docs/reference/permissions.md"

// TestPermissions keeps the tables of docs/reference/permissions.md as the roles are.
func TestPermissions(t *testing.T) {
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"operator": clusterRole(t, "autonode-operator"), "shared": clusterRole(t, v1beta1.SharedNamespaceRole), "karpenter": karpenterRules(t), "guest": guestRules(t),
		"CapacityBuffer": gateRules(t, featuregate.CapacityBuffer), "DynamicResourceAllocation": gateRules(t, featuregate.DynamicResourceAllocation),
		"PodDeletionCostManagement": gateRules(t, featuregate.PodDeletionCostManagement),
	} {
		t.Run("When the role of "+name+" changes, docs/reference/permissions.md should say so", func(t *testing.T) {
			content, err := os.ReadFile(permissionsDoc)
			if err != nil {
				t.Fatal(err)
			}
			begin, end := "<!-- "+name+" rules, written by go test -C test ./install -update -->\n", "<!-- end -->"
			before, rest, ok := strings.Cut(string(content), begin)
			_, after, closed := strings.Cut(rest, end)
			if !ok || !closed {
				t.Fatalf("%s has no table between %q and %q", permissionsDoc, begin, end)
			}
			want := before + begin + table(rules) + end + after
			if *update {
				if err := os.WriteFile(permissionsDoc, []byte(want), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want != string(content) {
				t.Errorf("%s differs from the role of %s; go test -C test ./install -update writes it", permissionsDoc, name)
			}
		})
	}
}

// TestGuest is about what no test can use, too: other providers' Karpenters.
func TestGuest(t *testing.T) {
	for _, profile := range profiles {
		t.Run("When Karpenter is that of "+profile.Component+", it should have no wildcard in the guest, and see no Secret", func(t *testing.T) {
			role, err := profile.ClusterRole()
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range append(role.Rules, gateRules(t, featuregate.Names()...)...) {
				for _, names := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
					for _, name := range names {
						if strings.Contains(name, "*") || name == "secrets" || name == "escalate" || name == "bind" || name == "impersonate" || strings.HasSuffix(name, "/token") {
							t.Errorf("a rule has %q: %v", name, rule)
						}
					}
				}
			}
		})
	}
}

func table(rules []rbacv1.PolicyRule) string {
	var b strings.Builder
	b.WriteString("| API group | resources | names | verbs |\n| --- | --- | --- | --- |\n")
	for _, rule := range rules {
		groups := make([]string, len(rule.APIGroups))
		for i, group := range rule.APIGroups {
			if groups[i] = group; group == "" {
				groups[i] = "core"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.Join(groups, ", "), strings.Join(rule.Resources, ", "),
			strings.Join(rule.ResourceNames, ", "), strings.Join(rule.Verbs, ", "))
	}
	return b.String()
}

// clusterRole returns the rules of one in manifests.
func clusterRole(t *testing.T, name string) []rbacv1.PolicyRule {
	t.Helper()
	for _, resource := range build(t, installation).Resources() {
		if resource.GetKind() != "ClusterRole" || resource.GetName() != name {
			continue
		}
		document, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		role := &rbacv1.ClusterRole{}
		if err := yaml.UnmarshalStrict(document, role); err != nil {
			t.Fatal(err)
		}
		return role.Rules
	}
	t.Fatalf("manifests have no ClusterRole %s", name)
	return nil
}

func karpenterRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	role, err := karpenterassets.Role()
	if err != nil {
		t.Fatal(err)
	}
	return role.Rules
}

func guestRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	_, role, _, err := guestassets.Access()
	if err != nil {
		t.Fatal(err)
	}
	return role.Rules
}

// gateRules are what Karpenter may do in the guest because of feature gates.
func gateRules(t *testing.T, gates ...string) []rbacv1.PolicyRule {
	t.Helper()
	rules, err := featuregate.Rules(sets.New(gates...))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
