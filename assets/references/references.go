// SPDX-License-Identifier: Apache-2.0

// Package references has which fields of infrastructure machines and bootstrap configs refer to Secrets. A policy in the management cluster
// admits an object of Karpenter's only if its references are named in Karpenter's Role, where the operator writes those of the templates.
package references

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

//go:embed references.yaml
var file []byte

// Resource and Verb are those of a Role's rule for references, with their text as the resource's name: no API serves it. The API group is
// api/v1beta1's.
const (
	Resource = "secretreferences"
	Verb     = "use"
)

// Kind declares which fields of the objects of a kind refer to Secrets. It isn't changed after it was read.
type Kind struct {
	schema.GroupKind
	// Compared are the references, and Ignored the paths of fields that only look like one.
	Compared []Reference
	Ignored  []string
}

// Reference is a field.
type Reference struct {
	// Path to it, from spec. It passes through one list at most, as [].
	Path string `json:"path"`
	// Fields of the object there that name its target; none if the field is text itself. With are its others.
	Fields []string `json:"fields,omitempty"`
	With   []string `json:"with,omitempty"`
}

// Kinds are the known ones.
type Kinds map[schema.GroupKind]Kind

// Embedded returns this package's kinds. They are shared: don't modify them.
var Embedded = sync.OnceValues(func() (Kinds, error) {
	var entries []struct {
		APIGroup string      `json:"apiGroup"`
		Kinds    []string    `json:"kinds"`
		Sources  []string    `json:"sources"`
		Compared []Reference `json:"compared"`
		Ignored  []string    `json:"ignored"`
	}
	if err := yaml.UnmarshalStrict(file, &entries); err != nil {
		return nil, fmt.Errorf("references.yaml: %w", err)
	}
	kinds := Kinds{}
	for _, entry := range entries {
		for _, name := range entry.Kinds {
			kind := Kind{GroupKind: schema.GroupKind{Group: entry.APIGroup, Kind: name}, Compared: entry.Compared, Ignored: entry.Ignored}
			kinds[kind.GroupKind] = kind
		}
	}
	return kinds, nil
})

// Text returns the references of an object of this kind as one text, which begins with the kind; empty if it has none. The policy makes the
// same text of the object that Karpenter writes. An error means that a field differs from the kind's API.
func (k Kind) Text(object map[string]any) (string, error) {
	var found []string
	for _, reference := range k.Compared {
		texts, err := reference.texts(object)
		if err != nil {
			return "", fmt.Errorf("%s: %w", reference.Path, err)
		}
		found = append(found, texts...)
	}
	if len(found) == 0 {
		return "", nil
	}
	return Name(k.GroupKind) + " " + strings.Join(found, " "), nil
}

// Name of a kind, as a Role names it to allow all references of its objects.
func Name(kind schema.GroupKind) string { return kind.Kind + "." + kind.Group }

// Made is the kind of the objects that are made from a template.
func Made(template schema.GroupKind) schema.GroupKind {
	return schema.GroupKind{Group: template.Group, Kind: strings.TrimSuffix(template.Kind, "Template")}
}

// TextOf is that of a template, whose references are those of the objects that are made from it.
func (k Kind) TextOf(template *unstructured.Unstructured) (string, error) {
	spec, _, err := unstructured.NestedFieldNoCopy(template.Object, "spec", "template", "spec")
	if err != nil {
		return "", err
	}
	return k.Text(map[string]any{"spec": spec})
}

// DataSecret is the text of a Machine that names a Secret with bootstrap data.
func DataSecret(name string) string {
	return "Machine.cluster.x-k8s.io spec.bootstrap.dataSecretName=" + name
}

// InstancePrefix is the text of the prefix that the names of a Cluster's instances have: infrastructure providers take instances for theirs
// by name.
func InstancePrefix(prefix string) string { return "Machine.cluster.x-k8s.io metadata.name=" + prefix }

func (r Reference) texts(object map[string]any) ([]string, error) {
	before, after, passes := strings.Cut(r.Path, "[]")
	value, ok := find(object, before)
	if !ok {
		return nil, nil
	}
	items := []any{value}
	if passes {
		if items, ok = value.([]any); !ok {
			return nil, fmt.Errorf("%s is no list", before)
		}
	}
	var texts []string
	for _, item := range items {
		if item, ok = find(item, after); !ok {
			continue
		}
		text, err := r.text(item)
		if err != nil {
			return nil, err
		}
		texts = append(texts, r.Path+"="+text)
	}
	return texts, nil
}

func (r Reference) text(value any) (string, error) {
	if len(r.Fields) == 0 {
		text, ok := value.(string)
		if !ok {
			return "", fmt.Errorf("is %T and no text", value)
		}
		return text, nil
	}
	object, ok := value.(map[string]any)
	if !ok {
		return "", fmt.Errorf("is %T and no object", value)
	}
	parts := make([]string, len(r.Fields))
	for i, field := range r.Fields {
		if value, there := object[field]; there {
			if parts[i], ok = value.(string); !ok {
				return "", fmt.Errorf("%s is %T and no text", field, value)
			}
		}
	}
	return strings.Join(parts, "/"), nil
}

// find follows names, of which the first may be empty.
func find(value any, path string) (any, bool) {
	for _, name := range strings.Split(strings.TrimPrefix(path, "."), ".") {
		if name == "" {
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = object[name]; !ok {
			return nil, false
		}
	}
	return value, true
}
