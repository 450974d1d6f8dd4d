// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	root = "../.."
	// image is a value that a packaged chart has.
	image = "image.repository=registry.example/autonode/autonode-operator"
)

func chart(name string) string { return filepath.Join(root, "charts", name) }

// helm builds a Helm of each version.
func helm(t *testing.T, program string) *Helm {
	t.Helper()
	built, err := NewHelm(t.Context(), root, program, t.TempDir())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return built
}

// template renders a chart, without NOTES.txt.
func render(t *testing.T, h *Helm, name string, args ...string) string {
	t.Helper()
	out, err := h.Run(t.Context(), append([]string{"template", "autonode", chart(name), "--namespace", namespace, KubeVersion}, args...)...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}

// objects are those in YAML, by kind, namespace and name.
func objects(t *testing.T, documents string) map[string]map[string]any {
	t.Helper()
	g := NewWithT(t)
	found := map[string]map[string]any{}
	for document := range strings.SplitSeq("\n"+documents, "\n---") {
		var object map[string]any
		g.Expect(yaml.Unmarshal([]byte(document+"\n"), &object)).To(Succeed(), document)
		if len(object) == 0 {
			continue
		}
		metadata := object["metadata"].(map[string]any)
		inNamespace, _ := metadata["namespace"].(string)
		key := object["kind"].(string) + " " + inNamespace + "/" + metadata["name"].(string)
		g.Expect(found).NotTo(HaveKey(key))
		found[key] = object
	}
	return found
}

// base is what kustomize builds.
func base(t *testing.T) map[string]map[string]any {
	t.Helper()
	g := NewWithT(t)
	built, err := build(root)
	g.Expect(err).NotTo(HaveOccurred())
	var documents []string
	for _, object := range built {
		document, err := object.String()
		g.Expect(err).NotTo(HaveOccurred())
		documents = append(documents, document)
	}
	return objects(t, strings.Join(documents, "---\n"))
}

// without removes labels, or annotations, that only a chart has.
func without(object map[string]any, field string, keys ...string) {
	metadata := object["metadata"].(map[string]any)
	entries, ok := metadata[field].(map[string]any)
	if !ok {
		return
	}
	for _, key := range keys {
		delete(entries, key)
	}
	if len(entries) == 0 {
		delete(metadata, field)
	}
}

func TestGenerated(t *testing.T) {
	t.Run("When manifests/ changed, the charts should have been generated since", func(t *testing.T) {
		g := NewWithT(t)
		files, err := Render(root)
		g.Expect(err).NotTo(HaveOccurred())
		for file, want := range files {
			got, err := os.ReadFile(filepath.Join(root, file))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cmp.Diff(string(want), string(got))).To(BeEmpty(), file)
		}
	})
	t.Run("When manifests/ lose an object, its template should be removed, and one that a person wrote should stay", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		for _, folder := range []string{"manifests", "charts"} {
			g.Expect(os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder)))).To(Succeed())
		}
		stale := filepath.Join(dir, "charts", Operator, "templates", "service.yaml")
		g.Expect(os.WriteFile(stale, []byte(generatedMark+"kind: Service\n"), 0o600)).To(Succeed())
		g.Expect(Generate(dir)).To(Succeed())
		g.Expect(stale).NotTo(BeAnExistingFile())
		g.Expect(filepath.Join(dir, "charts", Operator, "templates", "_helpers.tpl")).To(BeAnExistingFile())
	})
}

func TestRender(t *testing.T) {
	helm4, helm3 := helm(t, Helm4), helm(t, Helm3)

	t.Run("When no value is set, the charts should install what kustomize builds", func(t *testing.T) {
		g := NewWithT(t)
		want := base(t)
		got := objects(t, render(t, helm4, Operator, "--set", image+",monitoring.enabled=true"))
		for key, object := range objects(t, render(t, helm4, CRDs)) {
			got[key] = object
		}
		for key, object := range got {
			without(object, "labels", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart")
			without(object, "annotations", "helm.sh/resource-policy")
			if strings.HasPrefix(key, "Deployment ") {
				pod := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
				container := pod["containers"].([]any)[0].(map[string]any)
				g.Expect(container["image"]).To(Equal("registry.example/autonode/autonode-operator:v0.0.0"))
				container["image"] = "autonode-operator"
				args := container["args"].([]any)
				g.Expect(args[len(args)-1]).To(Equal("--log-level=info"), "the flag's default")
				container["args"] = args[:len(args)-1]
			}
		}
		delete(want, "Namespace /"+namespace) // Helm's --create-namespace
		g.Expect(cmp.Diff(want, got)).To(BeEmpty())
	})

	for _, name := range []string{"everything", "shards"} {
		values := filepath.Join("testdata", name+".values.yaml")
		t.Run("When the values are those of "+name+", it should render the golden file, and Helm 3 the same", func(t *testing.T) {
			g := NewWithT(t)
			var parts []string
			files := []string{"deployment", "poddisruptionbudget"}
			if name == "everything" {
				files = append(files, "karpenter-settings", "networkpolicy")
			}
			for _, file := range files {
				parts = append(parts, render(t, helm4, Operator, "--values", values, "--show-only", "templates/"+file+".yaml"))
			}
			golden(t, filepath.Join("testdata", name+".yaml"), strings.Join(parts, ""))
			for document := range strings.SplitSeq(parts[0], "---\n") {
				if strings.TrimSpace(document) != "" {
					g.Expect(yaml.UnmarshalStrict([]byte(document), &appsv1.Deployment{})).To(Succeed())
				}
			}
			g.Expect(cmp.Diff(objects(t, render(t, helm4, Operator, "--values", values)), objects(t, render(t, helm3, Operator, "--values", values)))).To(BeEmpty())
		})
	}

	t.Run("When a NetworkPolicy isn't wanted, there should be none", func(t *testing.T) {
		NewWithT(t).Expect(render(t, helm4, Operator, "--set", image+",networkPolicy.enabled=false")).NotTo(ContainSubstring("kind: NetworkPolicy"))
	})
	t.Run("When monitoring has labels, a Prometheus should select what it scrapes and its rules by them", func(t *testing.T) {
		g := NewWithT(t)
		for key, object := range objects(t, render(t, helm4, Operator, "--set", image+",monitoring.enabled=true,monitoring.labels.release=prometheus")) {
			if strings.HasPrefix(key, "PodMonitor ") || strings.HasPrefix(key, "PrometheusRule ") {
				g.Expect(object["metadata"].(map[string]any)["labels"]).To(HaveKeyWithValue("release", "prometheus"))
			}
		}
	})
	t.Run("When the CRDs are uninstalled, Helm should keep them, and so should what prunes", func(t *testing.T) {
		g := NewWithT(t)
		out := objects(t, render(t, helm4, CRDs, "--set", "annotations.a=b,labels.c=d"))
		crds := 0
		for key, object := range out {
			metadata := object["metadata"].(map[string]any)
			g.Expect(metadata["annotations"]).To(HaveKeyWithValue("helm.sh/resource-policy", "keep"), key)
			if !strings.HasPrefix(key, "CustomResourceDefinition ") {
				continue
			}
			crds++
			g.Expect(metadata["annotations"]).To(And(HaveKeyWithValue("a", "b"), HaveKeyWithValue("kustomize.toolkit.fluxcd.io/prune", "disabled"),
				HaveKeyWithValue("argocd.argoproj.io/sync-options", "Prune=false,Delete=false")), key)
			g.Expect(metadata["labels"]).To(HaveKeyWithValue("c", "d"), key)
		}
		g.Expect(crds).To(Equal(5))
	})
	for version, h := range map[string]*Helm{"3": helm3, "4": helm4} {
		t.Run("When a chart is linted, Helm "+version+" should find nothing", func(t *testing.T) {
			g := NewWithT(t)
			for _, args := range [][]string{
				{chart(CRDs)},
				{chart(Operator), "--set", image + ",monitoring.enabled=true"},
				{chart(Operator), "--values", filepath.Join("testdata", "everything.values.yaml")},
				{chart(Operator), "--values", filepath.Join("testdata", "shards.values.yaml")},
			} {
				out, err := h.Run(t.Context(), append([]string{"lint", "--strict", KubeVersion}, args...)...)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(out).To(ContainSubstring("0 chart(s) failed"))
			}
		})
	}
}

func TestSchema(t *testing.T) {
	helm4 := helm(t, Helm4)
	for name, test := range map[string]struct{ set, want string }{
		"When a value is misspelt, it should be named":                             {"replica=3", "additional properties 'replica' not allowed"},
		"When replicas is a text, it should say what is wanted":                    {"replicas=two", "'/replicas': got string, want integer"},
		"When the log level is unknown, it should list the levels":                 {"logLevel=trace", "'/logLevel': value must be one of 'debug', 'info', 'error'"},
		"When the digest isn't one, it should be refused":                          {"image.digest=sha256:1", "'/image/digest'"},
		"When no image is named, it should say so":                                 {"image.repository=", "image.repository: the operator's image is required"},
		"When a shard has no selector, it should say so":                           {"shards[0].name=a", "'/shards/0': missing property 'selector'"},
		"When an argument isn't a flag, it should be refused":                      {"extraArgs={verbose}", "'/extraArgs/0'"},
		"When a network isn't one, it should be refused":                           {"guestNetworks={everywhere}", "'/guestNetworks/0'"},
		"When a resource isn't a quantity, it should be refused":                   {"resources.requests.cpu=four", "'/resources/requests/cpu'"},
		"When Karpenter has an unknown setting, it should be named":                {"karpenter.replicas=3", "additional properties 'replicas' not allowed"},
		"When Karpenter has a feature gate that isn't allowed, it should be named": {"karpenter.featureGates.Quantum=true", "additional properties 'Quantum' not allowed"},
		"When Karpenter's batch isn't a duration, it should be refused":            {"karpenter.batchMaxDuration=soon", "'/karpenter/batchMaxDuration'"},
		"When Karpenter requests a GPU, it should be refused":                      {"karpenter.resources.limits.gpu=1", "additional properties 'gpu' not allowed"},
		"When NodeRecords are kept for more than a year, it should be refused":     {"karpenter.nodeRecordDays=366", "'/karpenter/nodeRecordDays'"},
		"When the memory overhead isn't a percentage, it should be refused":        {"karpenter.vmMemoryOverhead=7", "'/karpenter/vmMemoryOverhead'"},
		"When an egress rule has no port, it should be refused":                    {"networkPolicy.extraEgress[0].to[0].ipBlock.cidr=10.0.0.0/8", "missing property 'ports'"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm4.Run(t.Context(), "template", "autonode", chart(Operator), KubeVersion, "--set", image, "--set", test.set)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestSettings(t *testing.T) {
	t.Run("When the operator has a setting of Karpenter, the values and their schema should have it", func(t *testing.T) {
		g := NewWithT(t)
		want := fieldsOf(reflect.TypeFor[component.Settings]())
		var defaults struct {
			Karpenter map[string]any `json:"karpenter"`
		}
		content, err := os.ReadFile(filepath.Join(chart(Operator), "values.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.Unmarshal(content, &defaults)).To(Succeed())
		g.Expect(keys(defaults.Karpenter)).To(Equal(want))
		g.Expect(properties(t, Operator)["karpenter"]).To(HaveField("Properties", WithTransform(keys[schema], Equal(want))))
	})
	t.Run("When the operator has a feature gate, the schema should let platforms and HostedClusters set it", func(t *testing.T) {
		g := NewWithT(t)
		settings := properties(t, Operator)["karpenter"].Properties
		g.Expect(keys(settings["featureGates"].Properties)).To(Equal(featuregate.Names()))
		g.Expect(settings["hostedClusterFeatureGates"].Items.Enum).To(Equal(featuregate.Names()))
	})
	t.Run("When every setting is set, the operator should accept the file that the chart makes", func(t *testing.T) {
		g := NewWithT(t)
		rendered := render(t, helm(t, Helm4), Operator, "--values", filepath.Join("testdata", "everything.values.yaml"), "--show-only", "templates/karpenter-settings.yaml")
		var made struct {
			Data map[string]string `json:"data"`
		}
		g.Expect(yaml.Unmarshal([]byte(rendered), &made)).To(Succeed())
		file := filepath.Join(t.TempDir(), "settings.yaml")
		g.Expect(os.WriteFile(file, []byte(made.Data["settings.yaml"]), 0o600)).To(Succeed())
		settings, err := component.ReadSettings(file)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range reflect.TypeOf(settings).NumField() {
			g.Expect(reflect.ValueOf(settings).Field(i).IsZero()).To(BeFalse(), reflect.TypeOf(settings).Field(i).Name)
		}
	})
	t.Run("When a value is there, the schema should have it, and no other", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{Operator, CRDs} {
			page, err := os.ReadFile(filepath.Join(chart(name), "README.md"))
			g.Expect(err).NotTo(HaveOccurred())
			known := properties(t, name)
			delete(known, "global") // Helm's own
			top := map[string]bool{}
			for _, row := range describedValue.FindAllStringSubmatch(string(page), -1) {
				value, description := row[1], row[2]
				first, rest, nested := strings.Cut(value, ".")
				top[first] = true
				g.Expect(known).To(HaveKey(first))
				if nested {
					g.Expect(known[first].Properties).To(HaveKey(rest), value)
				}
				g.Expect(description).To(HaveSuffix("."), "the comment of "+value+", which begins with # --")
			}
			g.Expect(keys(top)).To(Equal(keys(known)))
		}
	})
}

// describedValue is a row of a chart's README.
var describedValue = regexp.MustCompile("(?m)^\\| `(.+?)` \\| .+ \\| (.*) \\|$")

// schema is a part of a JSON schema.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Enum       []string          `json:"enum"`
}

func properties(t *testing.T, name string) map[string]schema {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(chart(name), "values.schema.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var whole schema
	g.Expect(json.Unmarshal(content, &whole)).To(Succeed())
	return whole.Properties
}

func keys[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for key := range m {
		list = append(list, key)
	}
	slices.Sort(list)
	return list
}

func fieldsOf(of reflect.Type) []string {
	var list []string
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	g := NewWithT(t)
	if *update {
		g.Expect(os.WriteFile(file, []byte(got), 0o600)).To(Succeed())
	}
	want, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmp.Diff(string(want), got)).To(BeEmpty(), "go test -update writes it")
}
