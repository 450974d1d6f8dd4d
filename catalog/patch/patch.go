// SPDX-License-Identifier: Apache-2.0

// Package patch applies a platform's JSON patches to the objects that a machine is made of. The patches are those of a ClusterClass:
// RFC 6902 operations whose values are literals, variables, or Go templates. They come from annotations and node classes, so both
// parsing and rendering are bounded in size and steps, and a template has no function that reads anything but its arguments.
package patch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
)

// Limits of Parse's input and Apply's output.
const (
	// MaxPatches of one list.
	MaxPatches = 32
	// MaxList is the length of a list that Decode reads, in bytes.
	MaxList = 64 << 10
	// MaxTemplate is the length of a template in bytes.
	MaxTemplate = 4 << 10
	// MaxValue is the length in bytes of one value in JSON, and of a template's output.
	MaxValue = 16 << 10
	maxPath  = 512
	maxDepth = 32
	// maxIndex is the number of digits of a list index.
	maxIndex = 4
)

// List is a list of patches that were parsed. The zero List changes nothing. It is safe for concurrent use.
type List struct {
	patches []compiled
	hash    string
}

// compiled is one patch. At most one of value, variable and template is set; a remove has none.
type compiled struct {
	index    int
	patch    v1alpha1.JSONPatch
	parts    []string
	value    json.RawMessage
	variable string
	template *valueTemplate
}

// Error names the patch that can't be used.
type Error struct {
	// Index of the patch in its list.
	Index int
	Op    v1alpha1.JSONPatchOperation
	Path  string
	err   error
}

// Error reads "patch 0 (add /spec/zone): ...".
func (e *Error) Error() string {
	return fmt.Sprintf("patch %d (%s %s): %s", e.Index, shorten(string(e.Op)), shorten(e.Path), e.err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Decode reads a list of patches from YAML or JSON, as an annotation has it. Unknown fields are errors.
func Decode(text string) ([]v1alpha1.JSONPatch, error) {
	if len(text) > MaxList {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", len(text), MaxList)
	}
	raw, err := toJSON(text, MaxList)
	if err != nil {
		return nil, err
	}
	var patches []v1alpha1.JSONPatch
	if err := yaml.UnmarshalStrict(raw, &patches); err != nil {
		return nil, fmt.Errorf("not a list of JSON patches {op, path, value or valueFrom}: %w", err)
	}
	return patches, nil
}

// Parse checks patches. The error is an *Error, or reports that there are too many.
func Parse(patches []v1alpha1.JSONPatch) (List, error) {
	if len(patches) > MaxPatches {
		return List{}, fmt.Errorf("%d patches exceed the limit of %d", len(patches), MaxPatches)
	}
	list := List{}
	for i := range patches {
		c, err := compile(&patches[i])
		if err != nil {
			return List{}, &Error{Index: i, Op: patches[i].Op, Path: patches[i].Path, err: err}
		}
		c.index = i
		list.patches = append(list.patches, c)
	}
	if len(patches) > 0 {
		raw, err := json.Marshal(patches)
		if err != nil {
			return List{}, fmt.Errorf("encoding the patches: %w", err)
		}
		sum := sha256.Sum256(raw)
		list.hash = hex.EncodeToString(sum[:8])
	}
	return list, nil
}

func compile(patch *v1alpha1.JSONPatch) (compiled, error) {
	c := compiled{patch: *patch}
	var err error
	if c.parts, err = parsePointer(patch.Path); err != nil {
		return c, err
	}
	appends := c.parts[len(c.parts)-1] == "-"
	switch patch.Op {
	case v1alpha1.JSONPatchAdd:
	case v1alpha1.JSONPatchReplace, v1alpha1.JSONPatchRemove:
		if appends {
			return c, errors.New(`a path ends in "-" only with op add`)
		}
	default:
		return c, errors.New("op must be add, replace or remove")
	}
	if slices.Contains(c.parts[:len(c.parts)-1], "-") {
		return c, errors.New(`"-" must be the last part of the path`)
	}
	switch {
	case patch.Op == v1alpha1.JSONPatchRemove:
		if patch.Value != nil || patch.ValueFrom != nil {
			return c, errors.New("a remove has no value")
		}
		return c, nil
	case (patch.Value == nil) == (patch.ValueFrom == nil):
		return c, errors.New("exactly one of value and valueFrom must be set")
	case patch.Value != nil:
		c.value, err = literal(patch.Value.Raw)
		return c, err
	}
	from := patch.ValueFrom
	switch {
	case (from.Variable == "") == (from.Template == ""):
		return c, errors.New("exactly one of valueFrom.variable and valueFrom.template must be set")
	case from.Variable != "":
		c.variable = from.Variable
		return c, checkVariable(from.Variable)
	}
	if c.template, err = parseTemplate(from.Template); err != nil {
		return c, fmt.Errorf("valueFrom.template: %w", err)
	}
	return c, nil
}

func literal(raw []byte) (json.RawMessage, error) {
	if len(raw) > MaxValue {
		return nil, fmt.Errorf("value: %d bytes exceed the limit of %d", len(raw), MaxValue)
	}
	var decoded any
	if err := utiljson.Unmarshal(raw, &decoded); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	return raw, nil
}

// parsePointer reads a JSON pointer (RFC 6901) into the spec. The first part is "spec".
func parsePointer(path string) ([]string, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path's %d bytes exceed the limit of %d", len(path), maxPath)
	}
	rest, ok := strings.CutPrefix(path, "/")
	if !ok || !strings.HasPrefix(rest, "spec/") {
		return nil, errors.New("the path must begin with /spec/")
	}
	parts := strings.Split(rest, "/")
	if len(parts) > maxDepth {
		return nil, fmt.Errorf("the path's %d parts exceed the limit of %d", len(parts), maxDepth)
	}
	for i, part := range parts {
		switch {
		case part == "":
			return nil, errors.New("the path has an empty part")
		case strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(part), "~"):
			return nil, fmt.Errorf("path part %q: a ~ is written as ~0, a / as ~1", part)
		}
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	return parts, nil
}

// IsEmpty reports whether there are no patches.
func (l List) IsEmpty() bool { return len(l.patches) == 0 }

// Hash is of the patches' content; empty without any.
func (l List) Hash() string { return l.hash }

// Refers reports whether a patch refers to one of the variables.
func (l List) Refers(variables ...string) bool {
	for i := range l.patches {
		c := &l.patches[i]
		if slices.Contains(variables, c.variable) ||
			c.template != nil && slices.ContainsFunc(variables, func(name string) bool { return c.template.variables[name] }) {
			return true
		}
	}
	return false
}

// Images that the patches refer to, in their order.
func (l List) Images() []Image {
	var images []Image
	for i := range l.patches {
		c := &l.patches[i]
		if image, ok := imageOf(c.variable); ok {
			images = append(images, image)
		}
		if c.template != nil {
			images = append(images, c.template.images...)
		}
	}
	return images
}

// Apply changes the spec of an object as in unstructured.Unstructured. The error is an *Error; the object is as before then.
func (l List) Apply(object map[string]any, values Values) error {
	if len(l.patches) == 0 {
		return nil
	}
	spec, err := json.Marshal(map[string]any{"spec": object["spec"]})
	if err != nil {
		return fmt.Errorf("encoding the object's spec: %w", err)
	}
	for i := range l.patches {
		c := &l.patches[i]
		value, skip, err := c.render(values)
		if err == nil && !skip {
			spec, err = c.apply(spec, value)
		}
		if err != nil {
			return &Error{Index: c.index, Op: c.patch.Op, Path: c.patch.Path, err: err}
		}
	}
	patched := map[string]any{}
	if err := utiljson.Unmarshal(spec, &patched); err != nil {
		return fmt.Errorf("decoding the patched spec: %w", err)
	}
	if object["spec"] = patched["spec"]; object["spec"] == nil {
		delete(object, "spec")
	}
	return nil
}

// render returns the value in JSON, and whether the patch has nothing to say.
func (c *compiled) render(values Values) (value json.RawMessage, skip bool, err error) {
	switch {
	case c.patch.Op == v1alpha1.JSONPatchRemove:
		return nil, false, nil
	case c.variable != "":
		v, err := values.get(c.variable)
		if err != nil || isEmpty(v) {
			return nil, err == nil, err
		}
		value, err = json.Marshal(v)
		if err != nil {
			return nil, false, fmt.Errorf("encoding variable %s: %w", c.variable, err)
		}
	case c.template != nil:
		text, err := c.template.render(values)
		if err != nil {
			return nil, false, fmt.Errorf("valueFrom.template: %w", err)
		}
		if strings.TrimSpace(text) == "" {
			return nil, true, nil
		}
		if value, err = toJSON(text, MaxValue); err != nil {
			return nil, false, fmt.Errorf("valueFrom.template renders %q: %w", shorten(text), err)
		}
	default:
		value = c.value
	}
	return value, false, nil
}

// apply patches a document in JSON.
func (c *compiled) apply(document []byte, value json.RawMessage) ([]byte, error) {
	document, err := c.prepare(document)
	if err != nil {
		return nil, err
	}
	raw := func(text string) *json.RawMessage {
		encoded, _ := json.Marshal(text) // a string always encodes
		return (*json.RawMessage)(&encoded)
	}
	operation := jsonpatch.Operation{"op": raw(string(c.patch.Op)), "path": raw(c.patch.Path)}
	if c.patch.Op != v1alpha1.JSONPatchRemove {
		operation["value"] = &value
	}
	return jsonpatch.Patch{operation}.Apply(document)
}

// prepare follows the path. It creates the parents that an add lacks, as a list where the next part appends to it. The library checks
// less: it would replace a field that is missing.
func (c *compiled) prepare(document []byte) ([]byte, error) {
	root := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	if err := decoder.Decode(&root); err != nil {
		return nil, fmt.Errorf("decoding the spec: %w", err)
	}
	var at any = root
	adds, created := c.patch.Op == v1alpha1.JSONPatchAdd, false
	for i, part := range c.parts {
		last := i == len(c.parts)-1
		switch parent := at.(type) {
		case map[string]any:
			child, exists := parent[part]
			switch {
			case last && part == "-":
				return nil, fmt.Errorf(`%s is an object, and "-" appends to a list`, pointer(c.parts[:i]))
			case !adds && (!exists || child == nil && !last):
				return nil, fmt.Errorf("%s doesn't exist", pointer(c.parts[:i+1]))
			case adds && !last && child == nil:
				child, created = map[string]any{}, true
				if c.parts[i+1] == "-" {
					child = []any{}
				}
				parent[part] = child
			}
			at = child
		case []any:
			if part == "-" {
				break
			}
			items := len(parent)
			if adds && last {
				items++ // it may insert behind the last one
			}
			index, err := strconv.ParseUint(part, 10, 32)
			if err != nil || len(part) > maxIndex || int(index) >= items {
				return nil, fmt.Errorf("%s is a list of %d, and %q is not an index of it", pointer(c.parts[:i]), len(parent), part)
			}
			if !last {
				at = parent[index]
			}
		default:
			return nil, fmt.Errorf("%s is neither an object nor a list", pointer(c.parts[:i]))
		}
	}
	if !created {
		return document, nil
	}
	return json.Marshal(root)
}

func pointer(parts []string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
	}
	return "/" + strings.Join(escaped, "/")
}

// shorten bounds the text of a patch that messages repeat.
func shorten(text string) string { return message.Cut(text, 120) }
