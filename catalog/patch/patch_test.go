// SPDX-License-Identifier: Apache-2.0

package patch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
)

// values of one machine.
func values() patch.Values {
	return patch.Values{
		Variables: map[string]any{
			patch.Taints: []any{
				map[string]any{"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
				map[string]any{"key": "dedicated", "value": "web", "effect": "NoSchedule"},
			},
			patch.TaintList:    []any{"karpenter.sh/unregistered:NoExecute", "dedicated=web:NoSchedule"},
			patch.Labels:       map[string]any{"karpenter.sh/nodepool": "general", "tier": "front"},
			patch.LabelFlag:    "karpenter.sh/nodepool=general,tier=front",
			patch.MaxPods:      int64(58),
			patch.Version:      "1.36.2",
			patch.InstanceType: "c4-large",
			patch.Zone:         "1",
			patch.CapacityType: "spot",
			patch.NodeClaim:    "general-x7k2p",
		},
		Image: func(image patch.Image) (string, bool) {
			name, ok := map[string]string{"image.aws.us-east-1": "ami-u", "image.metal.raw.gz": "https://rhcos.example/raw.gz", "image.kubevirt": "quay.example/vm"}[image.String()]
			return name, ok
		},
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	object := map[string]any{}
	if err := utiljson.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return object
}

// apply patches an object with that spec.
func apply(spec, patches string, values patch.Values) (map[string]any, error) {
	object := map[string]any{}
	if err := utiljson.Unmarshal([]byte(`{"metadata": {"name": "any"}, "spec": `+spec+`}`), &object); err != nil {
		return nil, err
	}
	decoded, err := patch.Decode(patches)
	if err != nil {
		return nil, err
	}
	list, err := patch.Parse(decoded)
	if err != nil {
		return nil, err
	}
	return object, list.Apply(object, values)
}

func TestApply(t *testing.T) {
	for name, tc := range map[string]struct{ spec, patches, want string }{
		"When a value is a literal, it should set it as it is": {
			`{"a": 1}`, `[{op: add, path: /spec/a, value: {b: [1, 2.5, "x", true, null]}}]`, `{"a": {"b": [1, 2.5, "x", true, null]}}`,
		},
		"When a template renders null, it should set null": {`{"a": 1}`, `[{op: replace, path: /spec/a, valueFrom: {template: "null"}}]`, `{"a": null}`},
		"When a value is a variable, it should keep the variable's type": {
			`{}`,
			`[{op: add, path: /spec/text, valueFrom: {variable: zone}}, {op: add, path: /spec/number, valueFrom: {variable: maxPods}},
			  {op: add, path: /spec/list, valueFrom: {variable: taintList}}, {op: add, path: /spec/object, valueFrom: {variable: labels}}]`,
			`{"text": "1", "number": 58, "list": ["karpenter.sh/unregistered:NoExecute", "dedicated=web:NoSchedule"], "object": {"karpenter.sh/nodepool": "general", "tier": "front"}}`,
		},
		"When a template renders YAML, it should set what that means": {
			`{}`,
			`[{op: add, path: /spec/a, valueFrom: {template: "max-pods={{ .maxPods }}"}}, {op: add, path: /spec/b, valueFrom: {template: "{{ .maxPods }}"}},
			  {op: add, path: /spec/c, valueFrom: {template: "{{ .zone }}"}}, {op: add, path: /spec/d, valueFrom: {template: "{{ .zone | quote }}"}},
			  {op: add, path: /spec/e, valueFrom: {template: '{{ if eq .capacityType "spot" }}{maxPrice: "{{ .version }}"}{{ end }}'}},
			  {op: add, path: /spec/f, valueFrom: {template: "{{ toJson .labels }}"}},
			  {op: add, path: /spec/g, valueFrom: {template: '{{ index .labels "tier" }}-{{ .instanceType | upper }}'}}]`,
			`{"a": "max-pods=58", "b": 58, "c": 1, "d": "1", "e": {"maxPrice": "1.36.2"}, "f": {"karpenter.sh/nodepool": "general", "tier": "front"}, "g": "front-C4-LARGE"}`,
		},
		"When a template ranges over a variable, it should render every item": {
			`{}`,
			`[{op: add, path: /spec/a, valueFrom: {template: "{{ range .taints }}- {{ .key }}\n{{ end }}"}},
			  {op: add, path: /spec/b, valueFrom: {template: "{{ range $key, $value := $.labels }}{{ $key }}: {{ $value }}\n{{ end }}"}},
			  {op: add, path: /spec/c, valueFrom: {template: '{{ join "," .taintList }}'}}]`,
			`{"a": ["karpenter.sh/unregistered", "dedicated"], "b": {"karpenter.sh/nodepool": "general", "tier": "front"}, "c": "karpenter.sh/unregistered:NoExecute,dedicated=web:NoSchedule"}`,
		},
		"When a template renders a block of text, it should set the text": {
			`{}`, `[{op: add, path: /spec/a/-, valueFrom: {template: "|\n  machine:\n    type: {{ .instanceType }}\n"}}]`, `{"a": ["machine:\n  type: c4-large\n"]}`,
		},
		"When a variable is empty or a template renders nothing, it should skip the patch": {
			`{}`,
			`[{op: add, path: /spec/a, valueFrom: {variable: kubeReservedFlag}}, {op: add, path: /spec/b, valueFrom: {variable: labelList}},
			  {op: add, path: /spec/c, valueFrom: {template: "{{ with .kubeReservedFlag }}kube-reserved={{ . }}{{ end }}"}},
			  {op: replace, path: /spec/missing, valueFrom: {variable: failureDomain}}, {op: add, path: /spec/d, value: ""},
			  {op: add, path: /spec/e, valueFrom: {template: '{{ default "none" .failureDomain }}'}}]`,
			`{"d": "", "e": "none"}`,
		},
		"When an image is referred to, it should be the payload's": {
			`{}`,
			`[{op: add, path: /spec/a, valueFrom: {variable: image.aws.us-east-1}}, {op: add, path: /spec/b, valueFrom: {variable: image.metal.raw.gz}},
			  {op: add, path: /spec/c, valueFrom: {template: 'boot {{ image "kubevirt" }} or {{ image "metal" "raw.gz" | trimSuffix ".gz" }}'}}]`,
			`{"a": "ami-u", "b": "https://rhcos.example/raw.gz", "c": "boot quay.example/vm or https://rhcos.example/raw"}`,
		},
		"When parents are missing or null, an add should create them": {
			`{"n": null}`,
			`[{op: add, path: /spec/a/b/c, value: x}, {op: add, path: /spec/l/-, value: x}, {op: add, path: /spec/l/-, value: z}, {op: add, path: /spec/n/m, value: x}]`,
			`{"a": {"b": {"c": "x"}}, "l": ["x", "z"], "n": {"m": "x"}}`,
		},
		"When a path goes into a list, it should set, insert and remove there": {
			`{"a": [{"b": 1}, {"b": 2}, {"b": 3}]}`,
			`[{op: replace, path: /spec/a/1/b, value: x}, {op: remove, path: /spec/a/2}, {op: add, path: /spec/a/0, value: z}]`,
			`{"a": ["z", {"b": 1}, {"b": "x"}]}`,
		},
		"When a key has a slash or a tilde, it should be written as ~1 or ~0": {
			`{}`, `[{op: add, path: /spec/node.x~1y/a~0b/~01, value: x}]`, `{"node.x/y": {"a~b": {"~1": "x"}}}`,
		},
		"When a number is large, it should stay exact": {`{"a": 9007199254740993}`, `[{op: add, path: /spec/b/c, value: 9007199254740993}]`, `{"a": 9007199254740993, "b": {"c": 9007199254740993}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := apply(tc.spec, tc.patches, values())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decode(t, `{"metadata": {"name": "any"}, "spec": `+tc.want+`}`), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What a person copies from the documentation is what is tested.
func TestDocumented(t *testing.T) {
	for _, page := range []string{"patches.md", "templates.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "platform", page))
		if err != nil {
			t.Fatal(err)
		}
		examples := regexp.MustCompile(`(?s)infrastructure-patches: \|\n(.*?)\x60\x60\x60`).FindAllStringSubmatch(string(text), -1)
		if len(examples) != 1 {
			t.Errorf("docs/platform/%s has %d examples", page, len(examples))
		}
		for _, example := range examples {
			for capacityType, want := range map[string]any{"on-demand": nil, "spot": map[string]any{}} {
				t.Run("When a "+capacityType+" machine is patched as docs/platform/"+page+" shows, it should be one", func(t *testing.T) {
					v := values()
					v.Variables[patch.CapacityType] = capacityType
					got, err := apply(`{"instanceType": "m5.large"}`, example[1], v)
					if err != nil {
						t.Fatal(err)
					}
					spec, _ := got["spec"].(map[string]any)
					if diff := cmp.Diff(want, spec["spotMarketOptions"]); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

func TestErrors(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for name, tc := range map[string]struct{ spec, patches, mention string }{
		"When the list is not a list, it should say so":                      {`{}`, `{op: add}`, "not a list of JSON patches"},
		"When the list is not YAML, it should say so":                        {`{}`, "[{", "not YAML"},
		"When the list has two documents, it should say so":                  {`{}`, "[]\n---\n[]", "not one YAML document"},
		"When the list is empty text, it should say so":                      {`{}`, "", "not YAML"},
		"When a patch has an unknown field, it should name it":               {`{}`, `[{op: add, path: /spec/a, valeu: x}]`, "valeu"},
		"When the list is too long, it should say the limit":                 {`{}`, `["` + strings.Repeat("x", patch.MaxList) + `"]`, "exceed the limit of 65536"},
		"When there are too many patches, it should say the limit":           {`{}`, "[" + strings.Repeat("{op: remove, path: /spec/a},", 33) + "]", "33 patches exceed the limit of 32"},
		"When the list has an alias, it should say so":                       {`{}`, `[{op: add, path: /spec/a, value: &a x}]`, "anchors and aliases"},
		"When the operation is another one, it should say which":             {`{}`, `[{op: copy, path: /spec/a}]`, "op must be add, replace or remove"},
		"When the path is outside the spec, it should say so":                {`{}`, `[{op: add, path: /metadata/name, value: x}]`, "must begin with /spec/"},
		"When the path has an empty part, it should say so":                  {`{}`, `[{op: add, path: /spec/a//b, value: x}]`, "empty part"},
		"When the path has a stray tilde, it should say so":                  {`{}`, `[{op: add, path: /spec/a~2b, value: x}]`, "~0"},
		"When the path is too long, it should say the limit":                 {`{}`, `[{op: add, path: /spec/` + long + `, value: x}]`, "exceed the limit of 512"},
		"When the path is too deep, it should say the limit":                 {`{}`, `[{op: add, path: /spec` + strings.Repeat("/a", 40) + `, value: x}]`, "exceed the limit of 32"},
		"When a replace appends, it should say so":                           {`{}`, `[{op: replace, path: /spec/a/-, value: x}]`, "only with op add"},
		"When it would append in the middle, it should say so":               {`{}`, `[{op: add, path: /spec/a/-/b, value: x}]`, "must be the last part"},
		"When a literal is null, it should say so, because that is no value": {`{}`, `[{op: add, path: /spec/a, value: null}]`, "exactly one of value and valueFrom"},
		"When there is no value, it should say so":                           {`{}`, `[{op: add, path: /spec/a}]`, "exactly one of value and valueFrom"},
		"When there are two values, it should say so":                        {`{}`, `[{op: add, path: /spec/a, value: x, valueFrom: {variable: zone}}]`, "exactly one of value and valueFrom"},
		"When a remove has a value, it should say so":                        {`{}`, `[{op: remove, path: /spec/a, value: x}]`, "a remove has no value"},
		"When valueFrom is empty, it should say so":                          {`{}`, `[{op: add, path: /spec/a, valueFrom: {}}]`, "valueFrom.variable and valueFrom.template"},
		"When a variable does not exist, it should name it":                  {`{}`, `[{op: add, path: /spec/a, valueFrom: {variable: region}}]`, `unknown variable "region"`},
		"When a template's variable does not exist, it should name it":       {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: "{{ .region }}"}}]`, `unknown variable "region"`},
		"When an image has no infrastructure, it should say so":              {`{}`, `[{op: add, path: /spec/a, valueFrom: {variable: image}}]`, `unknown variable "image"`},
		"When the payload has no such image, it should name it":              {`{}`, `[{op: add, path: /spec/a, valueFrom: {variable: image.aws.mars-1}}]`, "names no image.aws.mars-1"},
		"When a template's image is computed, it should say how":             {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ image "aws" .zone }}'}}]`, "in quotes"},
		"When the path leads through a text, it should say where":            {`{"a": {"b": "x"}}`, `[{op: add, path: /spec/a/b/c, value: x}]`, "/spec/a/b is neither an object nor a list"},
		"When the path leads beyond a list, it should say how long":          {`{"a": ["x"]}`, `[{op: add, path: /spec/a/2, value: x}]`, `/spec/a is a list of 1, and "2" is not an index`},
		"When an index is huge, it should say so":                            {`{"a": []}`, `[{op: add, path: /spec/a/999999999999, value: x}]`, "not an index"},
		"When a list's item is named by a word, it should say so":            {`{"a": ["x"]}`, `[{op: add, path: /spec/a/b, value: x}]`, "not an index"},
		"When it would append to an object, it should say so":                {`{"a": {}}`, `[{op: add, path: /spec/a/-, value: x}]`, "/spec/a is an object"},
		"When a replaced field is missing, it should say so":                 {`{}`, `[{op: replace, path: /spec/a, value: x}]`, "/spec/a doesn't exist"},
		"When a removed field is missing, it should say so":                  {`{}`, `[{op: remove, path: /spec/a/b}]`, "/spec/a doesn't exist"},
		"When a template isn't closed, it should say so":                     {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: "{{ .zone"}}]`, "unclosed action"},
		"When a template calls an unknown function, it should name it":       {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ env "HOME" }}'}}]`, `"env" not defined`},
		"When a template calls js, it should be unknown":                     {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ .zone | js }}'}}]`, `"js" not defined`},
		"When a template calls itself, it should say so":                     {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}'}}]`, "not supported"},
		"When a template has a block, it should say so":                      {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ block "a" .zone }}{{ end }}'}}]`, "not supported"},
		"When a template ranges over a number, it should say so":             {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ range 1000000000 }}{{ end }}'}}]`, "must be over a variable"},
		"When a template ranges over maxPods, it should say so":              {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ range .maxPods }}{{ end }}'}}]`, "must be over a variable"},
		"When a template ranges over its own variable, it should say so": {
			`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ $x := 99999999 }}{{ range $x }}{{ end }}'}}]`, "must be over a variable",
		},
		"When a template nests loops, it should say so":               {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ range .taints }}{{ range $.taints }}{{ end }}{{ end }}'}}]`, "inside a range"},
		"When a template takes all variables, it should say so":       {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ toJson . }}'}}]`, "by its name"},
		"When a template takes all variables by $, it should say so":  {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ toJson $ }}'}}]`, "by its name"},
		"When a template is too long, it should say the limit":        {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: "` + long + `"}}]`, "exceed the limit of 4096"},
		"When a value doubles again and again, it should stop":        {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ $x := "xx" }}` + strings.Repeat(`{{ $x = printf "%s%s" $x $x }}`, 40) + `'}}]`, "exceeds 16384 bytes"},
		"When a value is padded, it should stop":                      {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ printf "%99999d" 1 }}'}}]`, "at most three digits"},
		"When a value is padded by an argument, it should stop":       {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ printf "%*d" 99999 1 }}'}}]`, "at most three digits"},
		"When replace makes a value long, it should stop":             {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ $x := printf "%999d" 1 }}{{ replace " " $x $x }}'}}]`, "exceeds 16384 bytes"},
		"When a template renders no YAML, it should show what":        {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{ {{ .zone }}'}}]`, `renders "{ 1"`},
		"When a template renders an alias, it should say so":          {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '[&a x, *a]'}}]`, "anchors and aliases"},
		"When a template renders a number that isn't, it should fail": {`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '.inf'}}]`, "unsupported value"},
		"When a template reads a label that is missing, it should say so": {
			`{}`, `[{op: add, path: /spec/a, valueFrom: {template: '{{ .labels.team }}'}}]`, `no entry for key "team"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := apply(tc.spec, tc.patches, values())
			if err == nil || !strings.Contains(err.Error(), tc.mention) {
				t.Fatalf("got %v, want an error that mentions %q", err, tc.mention)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestErrorNamesThePatch(t *testing.T) {
	t.Run("When a patch can't be applied, the error should name it and the object should be as before", func(t *testing.T) {
		object := decode(t, `{"spec": {"a": 1}}`)
		decoded, err := patch.Decode(`[{op: add, path: /spec/a, value: 2}, {op: remove, path: /spec/b}]`)
		if err != nil {
			t.Fatal(err)
		}
		list, err := patch.Parse(decoded)
		if err != nil {
			t.Fatal(err)
		}
		var failed *patch.Error
		if err := list.Apply(object, values()); !errors.As(err, &failed) || failed.Index != 1 || !strings.HasPrefix(err.Error(), "patch 1 (remove /spec/b): ") {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff(decode(t, `{"spec": {"a": 1}}`), object); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("When a variable has too many items for a template, it should say the limit", func(t *testing.T) {
		v := values()
		v.Variables[patch.TaintList] = make([]any, 257)
		_, err := apply(`{}`, `[{op: add, path: /spec/a, valueFrom: {template: "x"}}]`, v)
		if err == nil || !strings.Contains(err.Error(), "taintList has 257 items") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("When a loop calls functions without end, it should stop", func(t *testing.T) {
		v := values()
		items := make([]any, 256)
		for i := range items {
			items[i] = fmt.Sprintf("%016000d", i)
		}
		v.Variables[patch.TaintList] = items
		_, err := apply(`{}`, `[{op: add, path: /spec/a, valueFrom: {template: "{{ range .taintList }}{{ $x := upper . }}{{ end }}"}}]`, v)
		if err == nil || !strings.Contains(err.Error(), "too many steps") {
			t.Errorf("got %v", err)
		}
	})
}

func TestReferences(t *testing.T) {
	decoded, err := patch.Decode(`
- {op: add, path: /spec/a, valueFrom: {variable: image.aws.us-east-1}}
- {op: add, path: /spec/b, valueFrom: {template: '{{ if .zone }}{{ image "metal" "raw.gz" }}{{ else }}{{ image "kubevirt" | upper }}{{ end }}'}}
- {op: add, path: /spec/c, valueFrom: {template: '{{ with .capacityType }}{{ $.labelFlag }}{{ end }}'}}
`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := patch.Parse(decoded)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("When patches refer to images, it should list them", func(t *testing.T) {
		if got := fmt.Sprint(list.Images()); got != "[image.aws.us-east-1 image.metal.raw.gz image.kubevirt]" {
			t.Errorf("got %s", got)
		}
	})
	for variable, want := range map[string]bool{patch.Zone: true, patch.CapacityType: true, patch.LabelFlag: true, patch.Taints: false, patch.Version: false} {
		t.Run("When the variable is "+variable+", it should know whether a patch refers to it", func(t *testing.T) {
			if got := list.Refers(variable); got != want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// FuzzPatches: whatever a platform writes into an annotation, there is an error or a spec that encodes, and no panic.
func FuzzPatches(f *testing.F) {
	for _, seed := range []string{
		`[{op: add, path: /spec/a/-, valueFrom: {template: "max-pods={{ .maxPods }}"}}]`,
		`[{op: replace, path: /spec/list/1, valueFrom: {template: '{{ range $i, $t := .taints }}{{ $t.key | quote | indent 2 }}{{ break }}{{ end }}'}}]`,
		`[{op: remove, path: /spec/list/0}, {op: add, path: /spec/object/~1/x, value: {a: [null]}}]`,
		`[{op: remove, path: /spec/list/-1}, {op: replace, path: /spec/null/x, value: 1}]`,
		`[{op: add, path: /spec/x, valueFrom: {variable: image.aws.us-east-1}}]`,
		`[{op: add, path: /spec/x, valueFrom: {template: '{{ image "aws" "us-east-1" | replace "a" "b" | toJson }}{{ slice .zone 0 1 }}'}}]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, patches string) {
		got, err := apply(`{"list": ["x", {"y": 1}], "object": {"k": "v"}, "null": null, "number": 1.5}`, patches, values())
		if err != nil {
			return
		}
		encoded, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if len(encoded) > 8*patch.MaxPatches*patch.MaxValue {
			t.Errorf("%d bytes of patches made %d bytes", len(patches), len(encoded))
		}
	})
}

// FuzzTemplates: a template alone, on any path.
func FuzzTemplates(f *testing.F) {
	for _, seed := range [][2]string{
		{"/spec/list/1/y", `{{ with $x := .labels }}{{ index $x "tier" | default "none" | trimPrefix "f" }}{{ end }}`},
		{"/spec/object/k", `{{ range $k, $v := .labels }}{{ if eq $k "tier" }}{{ continue }}{{ end }}{{ $k }}: {{ $v | quote }}{{ end }}`},
		{"/spec/list/-", `{{ printf "%s-%03d" .zone .maxPods | upper | indent 4 }}`},
		{"/spec/a~1b/0", `[{{ join "," .taintList }}, {{ len .taints }}, {{ slice .version 0 4 }}]`},
		{"/spec/null", `{{ image "kubevirt" | replace "/" "-" }}{{ $y := 1 }}{{ and .zone (not .failureDomain) }}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, path, text string) {
		list, err := patch.Parse([]v1alpha1.JSONPatch{{Op: v1alpha1.JSONPatchAdd, Path: path, ValueFrom: &v1alpha1.JSONPatchValue{Template: text}}})
		if err != nil {
			return
		}
		object := map[string]any{"spec": map[string]any{"list": []any{"x", map[string]any{"y": int64(1)}}, "object": map[string]any{"k": "v"}, "null": nil}}
		if err := list.Apply(object, values()); err != nil {
			return
		}
		if encoded, err := json.Marshal(object); err != nil || len(encoded) > 8*patch.MaxValue {
			t.Errorf("%d bytes, %v", len(encoded), err)
		}
	})
}
