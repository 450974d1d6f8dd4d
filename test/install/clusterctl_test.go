// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// capiOperator is the Cluster API Operator whose CRDs the examples have to fit.
const capiOperator = "sigs.k8s.io/cluster-api-operator@v0.29.0"

func TestAddonProvider(t *testing.T) {
	t.Run("When docs show an AddonProvider, the Cluster API Operator's CRD should accept it", func(t *testing.T) {
		g := NewWithT(t)
		page, err := os.ReadFile(root + "/docs/clusterctl.md")
		g.Expect(err).NotTo(HaveOccurred())
		out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", capiOperator).Output()
		g.Expect(err).NotTo(HaveOccurred())
		var module struct{ Dir string }
		g.Expect(json.Unmarshal(out, &module)).To(Succeed())
		c := serve(t, envtest.CRDInstallOptions{Paths: []string{filepath.Join(module.Dir, "config", "crd", "bases", "operator.cluster.x-k8s.io_addonproviders.yaml")}})
		examples := 0
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
			if !strings.Contains(string(block[1]), "kind: AddonProvider") {
				continue
			}
			examples++
			object := &unstructured.Unstructured{}
			g.Expect(yaml.UnmarshalStrict(block[1], &object.Object)).To(Succeed())
			object.SetNamespace("default") // the example's doesn't exist here
			g.Expect(c.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))).To(Succeed())
			// The check itself notices what the CRD doesn't know.
			g.Expect(unstructured.SetNestedField(object.Object, "x", "spec", "unknown")).To(Succeed())
			g.Expect(c.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))).To(MatchError(ContainSubstring("spec.unknown")))
		}
		g.Expect(examples).To(BeNumerically(">", 0))
	})
}

func TestMoveLabels(t *testing.T) {
	t.Run("When clusterctl looks for what it moves, it should find HostedClusters, and nothing that the operator makes again", func(t *testing.T) {
		g := NewWithT(t)
		labels := map[string]map[string]string{}
		for _, resource := range build(t, manifests).Resources() {
			if resource.GetKind() == "CustomResourceDefinition" {
				labels[resource.GetName()] = resource.GetLabels()
			}
		}
		g.Expect(labels["hostedclusters.autonode.io"]).To(And(HaveKey(clusterctlv1.ClusterctlLabel), HaveKey(clusterctlv1.ClusterctlMoveHierarchyLabel)))
		g.Expect(labels["controlplanecomponents.autonode.io"]).NotTo(Or(HaveKey(clusterctlv1.ClusterctlMoveLabel), HaveKey(clusterctlv1.ClusterctlMoveHierarchyLabel)))
	})
}

func TestClusterctlVersion(t *testing.T) {
	t.Run("When Cluster API is upgraded, the clusterctl of the tests should be of the same version", func(t *testing.T) {
		g := NewWithT(t)
		versions := map[string]string{}
		for _, file := range []string{"go.mod", "tools/clusterctl/go.mod"} {
			content, err := os.ReadFile(filepath.Join(root, file))
			g.Expect(err).NotTo(HaveOccurred())
			match := regexp.MustCompile(`\tsigs\.k8s\.io/cluster-api (v\S+)`).FindSubmatch(content)
			g.Expect(match).NotTo(BeNil(), file)
			versions[file] = string(match[1])
		}
		g.Expect(versions["tools/clusterctl/go.mod"]).To(Equal(versions["go.mod"]))
	})
}
