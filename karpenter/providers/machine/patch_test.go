// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const bootstrapGroup = "bootstrap.cluster.x-k8s.io"

// documented are the examples of docs/bootstrap.md by kind: what a person copies is what is tested.
func documented(t *testing.T) map[string]v1alpha1.BootstrapPatches {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "bootstrap.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := map[string]v1alpha1.BootstrapPatches{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		spec := v1alpha1.ClusterAPINodeClassSpec{}
		if err := yaml.UnmarshalStrict([]byte(block[1]), &spec); err != nil {
			t.Fatalf("%v in:\n%s", err, block[1])
		}
		for _, patches := range spec.BootstrapPatches {
			examples[patches.Kind] = patches
		}
	}
	return examples
}

func template(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "templates", file))
	if err != nil {
		t.Fatal(err)
	}
	return object(t, string(text))
}

func TestDocumentedPatches(t *testing.T) {
	examples := documented(t)
	for file, kind := range map[string]string{
		"rke2.yaml": "RKE2Config", "k0s.yaml": "K0sWorkerConfig", "eks.yaml": "EKSConfig", "nodeadm.yaml": "NodeadmConfig", "talos.yaml": "TalosConfig",
	} {
		t.Run("When a "+kind+" is patched as documented, it should register the node with taints, labels and kubelet settings", func(t *testing.T) {
			p := plan(t)
			p.BootstrapTemplate = template(t, file)
			p.BootstrapPatches = []v1alpha1.BootstrapPatches{
				{APIGroup: bootstrapGroup, Kind: "Another", Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/wrong", Value: "x"}}},
				examples[kind],
			}
			before := p.BootstrapTemplate.DeepCopy()
			objects, err := machine.Build(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, p.BootstrapTemplate); diff != "" {
				t.Errorf("the template, which is shared with the cache, was changed (-before +after):\n%s", diff)
			}
			compare(t, filepath.Join("patched", file), objects)
		})
	}
	t.Run("When an example is documented, it should be one that is tested", func(t *testing.T) {
		if len(examples) != 5 {
			t.Errorf("docs/bootstrap.md has %d examples", len(examples))
		}
	})
}

// patched builds a machine whose bootstrap template has the spec, and returns the config's spec after the patches.
func patched(t *testing.T, spec string, change func(*machine.Plan), patches ...v1alpha1.BootstrapPatch) (any, error) {
	t.Helper()
	p := plan(t)
	p.BootstrapTemplate = object(t, `{"apiVersion": "bootstrap.cluster.x-k8s.io/v1", "kind": "AnyConfigTemplate", "metadata": {"name": "any", "namespace": "clusters-blue"},
		"spec": {"template": {"spec": `+spec+`}}}`)
	p.BootstrapPatches = []v1alpha1.BootstrapPatches{{APIGroup: bootstrapGroup, Kind: "AnyConfig", Patches: patches}}
	if change != nil {
		change(&p)
	}
	objects, err := machine.Build(p)
	if err != nil {
		return nil, err
	}
	return objects.Bootstrap.Object["spec"], nil
}

func TestPatch(t *testing.T) {
	for name, tc := range map[string]struct {
		spec    string
		change  func(*machine.Plan)
		patches []v1alpha1.BootstrapPatch
		want    string
	}{
		"When nothing is on the way, it should make it": {
			spec: `{}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a/b/c", Value: "x"}}, want: `{"a": {"b": {"c": "x"}}}`,
		},
		"When a scalar is there, it should replace it": {
			spec: `{"a": "old"}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "new"}}, want: `{"a": "new"}`,
		},
		"When a null is there, it should be taken for nothing": {
			spec: `{"a": null}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a/-", Value: "x"}}, want: `{"a": ["x"]}`,
		},
		"When a list is missing, it should make it and append": {
			spec:    `{}`,
			patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a/-", Value: "x"}, {Path: "/spec/a/-", Value: "y"}},
			want:    `{"a": ["x", "y"]}`,
		},
		"When a path indexes a list, it should set the item": {
			spec: `{"a": [{"b": 1}, {"b": 2}]}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a/1/b", Value: "x"}}, want: `{"a": [{"b": 1}, {"b": "x"}]}`,
		},
		"When a key has a slash or a tilde, it should be written as ~1 or ~0": {
			spec: `{}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/node.x~1y/a~0b/~01", Value: "x"}}, want: `{"node.x/y": {"a~b": {"~1": "x"}}}`,
		},
		"When a value is one variable, it should keep its type": {
			spec:    `{}`,
			patches: []v1alpha1.BootstrapPatch{{Path: "/spec/number", Value: "$(MaxPods)"}, {Path: "/spec/text", Value: "$(MaxPodsFlag)"}, {Path: "/spec/version", Value: "$(Version)"}},
			want:    `{"number": 58, "text": "58", "version": "1.36.2"}`,
		},
		"When variables are in a text, it should put them in": {
			spec:    `{}`,
			patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "$(NodeClaim) is a $(CapacityType) $(InstanceType) in $(Zone) for $(MaxPods)"}},
			want:    `{"a": "general-x7k2p is a spot c4-large in a for 58"}`,
		},
		"When a variable is escaped, it should leave it as it is": {
			spec: `{}`, patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "$$(hostname) $ $5 $$ $(Zone)$"}}, want: `{"a": "$(hostname) $ $5 $$ a$"}`,
		},
		"When the template has a taint of the same key and effect, it should keep that one and add the others": {
			spec:    `{"a": [{"key": "gpu", "value": "mine", "effect": "NoSchedule"}]}`,
			patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "$(Taints)"}},
			want: `{"a": [{"key": "gpu", "value": "mine", "effect": "NoSchedule"}, {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
				{"key": "dedicated", "value": "web", "effect": "NoSchedule"}, {"key": "cni", "effect": "NoSchedule"}]}`,
		},
		"When a list is appended to a list, it should append its items": {
			spec:    `{"a": ["x"]}`,
			patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a/-", Value: "$(TaintList)"}},
			want:    `{"a": ["x", "karpenter.sh/unregistered:NoExecute", "dedicated=web:NoSchedule", "cni:NoSchedule", "gpu=true:NoSchedule"]}`,
		},
		"When an object is there, it should merge the labels in and win": {
			spec:   `{"a": {"karpenter.sh/nodepool": "wrong", "rack": "r7"}}`,
			change: func(p *machine.Plan) { p.NodeLabels = map[string]string{"karpenter.sh/nodepool": "general"} },
			patches: []v1alpha1.BootstrapPatch{
				{Path: "/spec/a", Value: "$(Labels)"},
				{Path: "/spec/b", Value: "$(Labels)"},
				{Path: "/spec/b/more", Value: "x"},
				{Path: "/spec/c", Value: "$(Labels)"},
			},
			want: `{"a": {"karpenter.sh/nodepool": "general", "rack": "r7"}, "b": {"karpenter.sh/nodepool": "general", "more": "x"}, "c": {"karpenter.sh/nodepool": "general"}}`,
		},
		"When all variables of a patch are empty, it should leave it out": {
			spec:   `{}`,
			change: func(p *machine.Plan) { p.MaxPods, p.NodeLabels = 0, nil },
			patches: []v1alpha1.BootstrapPatch{
				{Path: "/spec/a", Value: "system-reserved=$(SystemReservedFlag)"},
				{Path: "/spec/b", Value: "$(MaxPods)"},
				{Path: "/spec/c", Value: "$(Labels)"},
				{Path: "/spec/d", Value: "$(LabelList)"},
				{Path: "/spec/e", Value: "$(Zone)$(InstanceType)"},
				{Path: "/spec/f", Value: "zone=$(Zone),claim=$(NodeClaim)"},
				{Path: "/spec/g", Value: ""},
			},
			want: `{"f": "zone=,claim=general-x7k2p", "g": ""}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := patched(t, tc.spec, tc.change, tc.patches...)
			if err != nil {
				t.Fatal(err)
			}
			want := object(t, `{"apiVersion": "v1", "kind": "Any", "spec": `+tc.want+`}`).Object["spec"]
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPatchErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		spec, path, value, mention string
	}{
		"When a variable doesn't exist, it should name it":                {`{}`, "/spec/a", "x-$(Region)", "$(Region) isn't a variable"},
		"When a variable isn't closed, it should say so":                  {`{}`, "/spec/a", "x-$(Zone", "no closing parenthesis"},
		"When a list is put into a text, it should say so":                {`{}`, "/spec/a", "taints: $(TaintList)", "$(TaintList) is a list"},
		"When the path leads through a text, it should say where":         {`{"a": {"b": "x"}}`, "/spec/a/b/c", "x", "b: c: there is a string"},
		"When the path leads through a number, it should say where":       {`{"a": 1}`, "/spec/a/b", "x", "there is a number"},
		"When the path leads beyond a list, it should say how long it is": {`{"a": ["x"]}`, "/spec/a/1", "x", "a list of 1"},
		"When the path names a list's item by a word, it should say so":   {`{"a": ["x"]}`, "/spec/a/b", "x", "isn't an index"},
		"When it would append to an object, it should say so":             {`{"a": {}}`, "/spec/a/-", "x", "there is an object"},
		"When it would append in the middle, it should say so":            {`{"a": []}`, "/spec/a/-/b", "x", "last part"},
		"When a list is there and the value is a text, it should say so":  {`{"a": []}`, "/spec/a", "x", "there is a list"},
		"When a text is there and the value is a list, it should say so":  {`{"a": "x"}`, "/spec/a", "$(Taints)", "there is a string, and the value is a list"},
		"When an object is there and the value is a list, it should say so": {
			`{"a": {}}`, "/spec/a", "$(Taints)", "there is an object, and the value is a list",
		},
		"When the path isn't a JSON pointer, it should say why": {`{}`, "/spec/a~2b", "x", "~0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := patched(t, tc.spec, nil, v1alpha1.BootstrapPatch{Path: tc.path, Value: tc.value})
			var unbuildable *machine.BuildError
			if !errors.As(err, &unbuildable) || !strings.Contains(err.Error(), tc.mention) || !strings.Contains(err.Error(), "bootstrap patch "+tc.path) {
				t.Errorf("got %v, want a BuildError that names the patch and mentions %q", err, tc.mention)
			}
		})
	}
}

func TestRegisters(t *testing.T) {
	patches := func(kind, value string) []v1alpha1.BootstrapPatches {
		return []v1alpha1.BootstrapPatches{{APIGroup: bootstrapGroup, Kind: kind, Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: value}}}}
	}
	for name, tc := range map[string]struct {
		kind    string
		patches []v1alpha1.BootstrapPatches
		want    bool
	}{
		"When the kind is kubeadm's, it should need no patch":                               {"KubeadmConfigTemplate", nil, true},
		"When the kind isn't known and has no patches, it should say no":                    {"RKE2ConfigTemplate", nil, false},
		"When a patch writes the taints, it should say yes":                                 {"RKE2Config", patches("RKE2Config", "$(TaintList)"), true},
		"When a patch writes the taints into a text, it should say yes of the template too": {"RKE2ConfigTemplate", patches("RKE2Config", "--taints=$(TaintFlag)"), true},
		"When patches write all but the taints, it should say no":                           {"RKE2Config", patches("RKE2Config", "$(Labels) $$(Taints)"), false},
		"When patches are for another kind, it should say no":                               {"K0sWorkerConfig", patches("RKE2Config", "$(Taints)"), false},
	} {
		t.Run(name, func(t *testing.T) {
			nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{BootstrapPatches: tc.patches}}
			if got := machine.Registers(nodeClass, schema.GroupKind{Group: bootstrapGroup, Kind: tc.kind}); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
