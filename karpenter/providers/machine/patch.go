// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// taintVariables are those that carry the unregistered taint.
var taintVariables = []string{"Taints", "TaintList", "TaintFlag"}

// Registers says whether nodes of a node class whose bootstrap config is of that kind (or of its template's) register with the
// unregistered taint: either the kind is known, or a patch writes the taints.
func Registers(nodeClass *v1alpha1.ClusterAPINodeClass, kind schema.GroupKind) bool {
	if KnownBootstrap(kind.Group, kind.Kind) {
		return true
	}
	for _, patch := range patchesFor(nodeClass.Spec.BootstrapPatches, kind) {
		parts, err := parseValue(patch.Value)
		if err == nil && slices.ContainsFunc(parts, func(p part) bool { return slices.Contains(taintVariables, p.variable) }) {
			return true
		}
	}
	return false
}

// Unallowed returns the first kind whose patches aren't among those that are allowed, as a message names it, or nothing. Nil allows any.
// A patch can name a Secret that a bootstrap provider then hands to the machine.
func Unallowed(patches, allowed []v1alpha1.BootstrapPatches) string {
	if allowed == nil {
		return ""
	}
	for _, p := range patches {
		if !slices.ContainsFunc(allowed, func(a v1alpha1.BootstrapPatches) bool { return equality.Semantic.DeepEqual(a, p) }) {
			return fmt.Sprintf("%s (%s)", p.Kind, p.APIGroup)
		}
	}
	return ""
}

func patchesFor(all []v1alpha1.BootstrapPatches, kind schema.GroupKind) []v1alpha1.BootstrapPatch {
	name := strings.TrimSuffix(kind.Kind, "Template")
	for _, patches := range all {
		if patches.APIGroup == kind.Group && patches.Kind == name {
			return patches.Patches
		}
	}
	return nil
}

// applyPatches writes what a node class's patches say into a bootstrap config. The error names the patch's path.
func applyPatches(config *unstructured.Unstructured, plan Plan, registration Registration) error {
	patches := patchesFor(plan.BootstrapPatches, config.GroupVersionKind().GroupKind())
	if len(patches) == 0 {
		return nil
	}
	values, err := variables(plan, registration)
	if err != nil {
		return err
	}
	for _, patch := range patches {
		value, empty, err := expand(patch.Value, values, plan.Images)
		if err != nil {
			return fmt.Errorf("bootstrap patch %s: value: %w", patch.Path, err)
		}
		if empty {
			continue
		}
		tokens, err := parsePointer(patch.Path)
		if err != nil {
			return fmt.Errorf("bootstrap patch %s: %w", patch.Path, err)
		}
		patched, err := set(config.Object, tokens, value)
		if err != nil {
			return fmt.Errorf("bootstrap patch %s: %w", patch.Path, err)
		}
		config.Object, _ = patched.(map[string]any)
	}
	return nil
}

// parsePointer reads a JSON pointer (RFC 6901).
func parsePointer(path string) ([]string, error) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil, fmt.Errorf("the path isn't a JSON pointer: it doesn't begin with /")
	}
	tokens := strings.Split(rest, "/")
	for i, token := range tokens {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(token), "~") {
			return nil, fmt.Errorf("the path isn't a JSON pointer: in %q a ~ is neither ~0 nor ~1", token)
		}
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return tokens, nil
}

// set returns node, which is nil where nothing is yet, with the value at the path. What is missing on the way is made.
func set(node any, tokens []string, value any) (any, error) {
	if len(tokens) == 0 {
		return merge(node, value)
	}
	token, rest := tokens[0], tokens[1:]
	if node == nil {
		if token == "-" {
			node = []any{}
		} else {
			node = map[string]any{}
		}
	}
	switch at := node.(type) {
	case map[string]any:
		if token == "-" && len(rest) == 0 {
			return nil, fmt.Errorf("there is an object, and - appends to a list")
		}
		child, err := set(at[token], rest, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", token, err)
		}
		at[token] = child
		return at, nil
	case []any:
		if token == "-" {
			if len(rest) > 0 {
				return nil, fmt.Errorf("- has to be the last part of the path")
			}
			if _, isList := value.([]any); !isList {
				return append(at, value), nil
			}
			return merge(at, value)
		}
		index, err := strconv.Atoi(token)
		if err != nil || index < 0 || index >= len(at) {
			return nil, fmt.Errorf("%s: there is a list of %d, and that isn't an index in it", token, len(at))
		}
		child, err := set(at[index], rest, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", token, err)
		}
		at[index] = child
		return at, nil
	}
	return nil, fmt.Errorf("%s: there is a %s, which has no parts", token, kindOf(node))
}

// merge puts a value where there may be one: lists and objects are merged, a scalar takes a scalar's place.
func merge(existing, value any) (any, error) {
	switch old := existing.(type) {
	case map[string]any:
		ours, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("there is an object, and the value is a %s", kindOf(value))
		}
		for key, value := range ours {
			old[key] = value
		}
		return old, nil
	case []any:
		ours, ok := value.([]any)
		if !ok {
			return nil, fmt.Errorf("there is a list, and the value is a %s; end the path with /- to append", kindOf(value))
		}
		return mergeLists(old, ours), nil
	case nil:
		return value, nil
	}
	switch value.(type) {
	case map[string]any, []any:
		return nil, fmt.Errorf("there is a %s, and the value is a %s", kindOf(existing), kindOf(value))
	}
	return value, nil
}

// mergeLists appends what isn't there yet. As with kubeadm, a template's own taint stays, and a label of ours wins.
func mergeLists(old, ours []any) []any {
	for _, item := range ours {
		at := slices.IndexFunc(old, func(o any) bool { return equality.Semantic.DeepEqual(identity(o), identity(item)) })
		switch {
		case at < 0:
			old = append(old, item)
		case isLabel(item):
			old[at] = item
		}
	}
	return old
}

// identity is what two items of a list may not both have: the key and effect of a taint, and the key of a label.
func identity(item any) any {
	switch v := item.(type) {
	case map[string]any:
		if v["key"] != nil && v["effect"] != nil {
			return [2]any{v["key"], v["effect"]}
		}
	case string:
		pair, effect, _ := strings.Cut(v, ":")
		key, _, isPair := strings.Cut(pair, "=")
		if isPair || effect != "" {
			return [2]any{key, effect}
		}
	}
	return item
}

// isLabel tells key=value from key=value:effect.
func isLabel(item any) bool {
	text, ok := item.(string)
	return ok && !strings.Contains(text, ":")
}
