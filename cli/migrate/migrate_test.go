// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

// migrate runs the command on files, and returns the objects, and the errors as the program prints them.
func migrate(t *testing.T, files ...string) (objects, problems string) {
	t.Helper()
	out, err := clitest.Run(t, NewCommand(), append([]string{"nodepool"}, files...)...)
	var text bytes.Buffer
	if err != nil {
		printer.Error(&text, err)
	}
	return out, text.String()
}

// admit reports what the guest's CRDs have against an object.
func admit(t *testing.T, object *unstructured.Unstructured) error {
	t.Helper()
	g := NewWithT(t)
	definitions, err := crds.Embedded()
	g.Expect(err).NotTo(HaveOccurred())
	for _, definition := range definitions {
		version := definition.Spec.Versions[0]
		if definition.Spec.Names.Kind != object.GetKind() || definition.Spec.Group+"/"+version.Name != object.GetAPIVersion() {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, internal, nil)).To(Succeed())
		validator, _, err := validation.NewSchemaValidator(internal)
		g.Expect(err).NotTo(HaveOccurred())
		structural, err := schema.NewStructural(internal)
		g.Expect(err).NotTo(HaveOccurred())
		problems := validation.ValidateCustomResource(nil, object.Object, validator)
		rules, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(t.Context(), nil, structural, object.Object, nil, celconfig.RuntimeCELCostBudget)
		return append(problems, rules...).ToAggregate()
	}
	return fmt.Errorf("the guest has no %s %s", object.GetAPIVersion(), object.GetKind())
}

func TestMigrate(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(len(inputs)).To(BeNumerically(">=", 20))
	for _, input := range inputs {
		t.Run("When "+input+" is migrated, it should be as in its golden file, and the guest should admit it", func(t *testing.T) {
			g := NewWithT(t)
			out, problems := migrate(t, input)
			golden := strings.TrimSuffix(input, ".yaml") + ".golden"
			if *clitest.Update {
				g.Expect(os.WriteFile(golden, []byte(out+problems), 0o600)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			if diff := cmp.Diff(string(want), out+problems); diff != "" {
				t.Errorf("run the test with -update if this is meant (-want +got):\n%s", diff)
			}
			g.Expect(strings.Contains(out, ": no counterpart\n")).To(Equal(strings.Contains(problems, "without a counterpart")))
			objects, err := file.ReadObjects(strings.NewReader(out), []string{"-"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(objects).NotTo(BeEmpty())
			for _, object := range objects {
				var into any = &karpv1.NodePool{}
				if object.GetKind() == v1alpha1.Kind {
					into = &v1alpha1.ClusterAPINodeClass{}
				}
				raw, err := object.MarshalJSON()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(yaml.UnmarshalStrict(raw, into)).To(Succeed())
				g.Expect(admit(t, object)).To(Succeed())
			}
		})
		t.Run("When "+input+" is migrated, each of its values should be in the output, or its document in an error", func(t *testing.T) {
			g := NewWithT(t)
			out, problems := migrate(t, input)
			g.Expect(file.Each(nil, []string{input}, func(document string, object *unstructured.Unstructured) error {
				if !strings.Contains(problems, document+":") {
					for _, value := range leaves(object.Object["spec"]) {
						g.Expect(out).To(ContainSubstring(value))
					}
				}
				return nil
			})).To(Succeed())
		})
	}
}

// replaced are values that ours take the place of.
var replaced = []string{
	"karpenter.k8s.aws", "EC2NodeClass", "eks.amazonaws.com", "NodeClass", "karpenter.azure.com", "AKSNodeClass", "karpenter.azure.com/v1alpha2", "WhenUnderutilized",
}

// leaves returns the first line of each value in a value, but for those that are replaced.
func leaves(value any) (found []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, child := range v {
			found = append(found, leaves(child)...)
		}
	case nil:
	case []any:
		for _, child := range v {
			found = append(found, leaves(child)...)
		}
	default:
		text, _, _ := strings.Cut(fmt.Sprint(v), "\n")
		if _, ours := translate(text); !slices.Contains(replaced, text) && (!ours || !foreign.MatchString(text)) {
			found = append(found, text)
		}
	}
	return found
}

func TestWrongTypes(t *testing.T) {
	const pool, class = "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\n", "apiVersion: karpenter.azure.com/v1beta1\nkind: AKSNodeClass\n"
	for name, test := range map[string]struct{ content, field string }{
		"metadata is text":                 {pool + "metadata: a", "metadata"},
		"annotations are a list":           {pool + "metadata: {annotations: [a]}", "metadata.annotations"},
		"the spec is text":                 {pool + "spec: a", "spec"},
		"disruption is a list":             {pool + "spec: {disruption: [a]}", "spec.disruption"},
		"the template is a list":           {pool + "spec: {disruption: {expireAfter: 1h}, template: [a]}", "spec.template"},
		"labels are a list":                {pool + "spec: {template: {metadata: {labels: [a]}}}", "spec.template.metadata.labels"},
		"labels are numbers":               {pool + "spec: {template: {metadata: {labels: {a: 1}}}}", "spec.template.metadata.labels.a"},
		"the node class is a list":         {pool + "spec: {template: {spec: {nodeClassRef: [a]}}}", "spec.template.spec.nodeClassRef"},
		"requirements are a mapping":       {pool + "spec: {template: {spec: {requirements: {a: b}}}}", "spec.template.spec.requirements"},
		"a requirement is text":            {pool + "spec: {template: {spec: {requirements: [a]}}}", "spec.template.spec.requirements.0"},
		"a requirement's value is no text": {pool + "spec: {template: {spec: {requirements: [{key: a, operator: In, values: [[a]]}]}}}", "spec.template.spec.requirements.0.values.0"},
		"a node class's spec is a list":    {class + "spec: [a]", "spec"},
		"kubelet is text":                  {class + "spec: {maxPods: 3, kubelet: a}", " kubelet"},
		"a number is text":                 {class + "spec: {maxPods: many}", " kubelet.maxPods"},
	} {
		t.Run("When "+name+", it should name the field", func(t *testing.T) {
			g, path := NewWithT(t), filepath.Join(t.TempDir(), "a.yaml")
			g.Expect(os.WriteFile(path, []byte(test.content), 0o600)).To(Succeed())
			out, problems := migrate(t, path)
			g.Expect(problems).To(ContainSubstring("a.yaml: document 1: "))
			g.Expect(problems).To(ContainSubstring(test.field + " has the wrong type"))
			g.Expect(out).To(BeEmpty())
		})
	}
}

func TestPage(t *testing.T) {
	t.Run("When the page's example is migrated, the page should show the output", func(t *testing.T) {
		g, path := NewWithT(t), filepath.Join(t.TempDir(), "nodepools.yaml")
		page, err := os.ReadFile("../../docs/cluster-admins/migrate.md")
		g.Expect(err).NotTo(HaveOccurred())
		_, block, _ := strings.Cut(string(page), "```yaml\n")
		block, _, _ = strings.Cut(block, "```")
		g.Expect(os.WriteFile(path, []byte(block), 0o600)).To(Succeed())
		out, problems := migrate(t, path)
		clitest.Shown(t, "docs/cluster-admins/migrate.md", "autonode migrate nodepool nodepools.yaml", out+problems)
	})
}

func TestStandardInput(t *testing.T) {
	t.Run("When the file is -, it should read standard input", func(t *testing.T) {
		g := NewWithT(t)
		content, err := os.Open("testdata/aws-static.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { g.Expect(content.Close()).To(Succeed()) })
		cmd, out := clitest.Command(NewCommand(), "nodepool", "-"), bytes.Buffer{}
		cmd.SetIn(content)
		cmd.SetOut(&out)
		g.Expect(cmd.ExecuteContext(t.Context())).To(Succeed())
		g.Expect(out.String()).To(ContainSubstring("name: ingress"))
	})
}

func TestEscapes(t *testing.T) {
	t.Run("When texts have characters that a terminal obeys, objects should keep them, and a comment should be one line", func(t *testing.T) {
		g, path := NewWithT(t), filepath.Join(t.TempDir(), "a.yaml")
		g.Expect(os.WriteFile(path, []byte(`apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: a, annotations: {reversed: "a\u202eb"}}
spec:
  template:
    spec:
      nodeClassRef: {name: a}
      requirements: [{key: karpenter.k8s.aws/instance-category, operator: "In\nweight: 3", values: ["c\n# weight: 3"]}]
  "ttl\nweight": "3\nweight: 3"`), 0o600)).To(Succeed())
		out, problems := migrate(t, path)
		g.Expect(problems).To(Equal("error: 2 settings without a counterpart: see the comments in the output\n"))
		g.Expect(out).To(And(ContainSubstring(`a\u202eb`), MatchRegexp(`# karpenter.k8s.aws/instance-category In\\u000aweight: 3 \[.*]: no counterpart\n`)))
		objects, err := file.ReadObjects(strings.NewReader(out), []string{"-"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects).To(HaveLen(1))
		g.Expect(objects[0].GetAnnotations()).To(HaveKeyWithValue("reversed", "a\u202eb"))
		g.Expect(objects[0].Object["spec"]).To(And(HaveLen(1), HaveKey("template")))
	})
}

func TestHostileOutput(t *testing.T) {
	content := strings.ReplaceAll(`apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: HOSTILE, HOSTILE: a}
spec:
  weight: HOSTILE2
  template:
    metadata: {labels: {a: HOSTILE, HOSTILE: b, karpenter.k8s.aws/a: HOSTILE}}
    spec:
      nodeClassRef: {group: HOSTILE, kind: HOSTILE, name: HOSTILE}
      requirements: [{key: karpenter.k8s.aws/a, operator: HOSTILE, values: [HOSTILE]}, {key: HOSTILE, operator: HOSTILE}]
  HOSTILE: {HOSTILE: [HOSTILE]}
`, "HOSTILE", printertest.YAML)
	for name, content := range map[string]string{
		"of a NodePool":   strings.Replace(content, "  weight: "+printertest.YAML+"2\n", "", 1),
		"of a wrong type": strings.Replace(content, printertest.YAML+"2", printertest.YAML, 1),
		"of another kind": "{apiVersion: " + printertest.YAML + ", kind: " + printertest.YAML + "}",
	} {
		path := filepath.Join(t.TempDir(), "a.yaml")
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		printertest.Harmless(t, "migrate nodepool "+name, func(out io.Writer) error {
			cmd := NewCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs([]string{"nodepool", path})
			cmd.SetOut(out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				printer.Error(out, err)
			}
			return nil
		})
	}
}
