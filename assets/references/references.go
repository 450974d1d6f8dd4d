// SPDX-License-Identifier: Apache-2.0

// Package references has the fields in which infrastructure machines and bootstrap configs may differ from their templates. A policy in the
// management cluster admits an object of Karpenter's only if the rest of its spec is named in Karpenter's Role, where the operator writes
// that of each template.
package references

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/infrastructure"
)

//go:embed references.yaml
var file []byte

// Resource and Verb are those of a Role's rule for specs, with their text as the resource's name: no API serves it. The API group is
// api/v1beta1's.
const (
	Resource = "secretreferences"
	Verb     = "use"
)

const (
	// depth is how deep below spec objects may be. A KubevirtMachine's affinity is the deepest that is known.
	depth = 18
	// maxKeys bounds an object's fields, which the policy sorts.
	maxKeys = 64
	// maxAnnotations bounds those of an object that Karpenter doesn't write itself.
	maxAnnotations = 32
)

// Kind of the objects that are made from templates. It isn't changed after it was read.
type Kind struct {
	schema.GroupKind
	// Varies are the paths of fields in which an object may differ from its template, with [] for a list.
	Varies []string
}

// Kinds are the known ones.
type Kinds map[schema.GroupKind]Kind

// Embedded returns this package's bootstrap kinds and those with a profile. They are shared: don't modify them.
var Embedded = sync.OnceValues(func() (Kinds, error) {
	var entries []struct {
		Kinds   []string `json:"kinds"`
		Sources []string `json:"sources"`
		Varies  []string `json:"varies"`
	}
	if err := yaml.UnmarshalStrict(file, &entries); err != nil {
		return nil, fmt.Errorf("references.yaml: %w", err)
	}
	profiles, err := infrastructure.Embedded()
	if err != nil {
		return nil, err
	}
	kinds := Kinds{}
	for kind, profile := range profiles {
		if kind.Kind != infrastructure.Every {
			kinds[kind] = Kind{GroupKind: kind, Varies: profile.Varies}
		}
	}
	for _, entry := range entries {
		for _, name := range entry.Kinds {
			kind := schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: name}
			kinds[kind] = Kind{GroupKind: kind, Varies: entry.Varies}
		}
	}
	return kinds, nil
})

// Name of a kind, as a Role names it to allow any object of it.
func Name(kind schema.GroupKind) string { return kind.Kind + "." + kind.Group }

// Made is the kind of the objects that are made from a template.
func Made(template schema.GroupKind) schema.GroupKind {
	return schema.GroupKind{Group: template.Group, Kind: strings.TrimSuffix(template.Kind, "Template")}
}

// TextOf is that of a template, whose spec is that of the objects that are made from it.
func (k Kind) TextOf(template *unstructured.Unstructured) (string, error) {
	spec, _, err := unstructured.NestedFieldNoCopy(template.Object, "spec", "template", "spec")
	if err != nil {
		return "", err
	}
	return k.Text(spec)
}

// Text returns the part of a spec that has to equal a template's, behind the name of the kind. The policy makes the same text of the object
// that Karpenter writes.
func (k Kind) Text(spec any) (string, error) {
	if spec == nil {
		spec = map[string]any{}
	}
	text, err := k.encode("spec", spec, 0)
	return Name(k.GroupKind) + " " + text, err
}

// encode writes maps in the order of their keys, and text behind its length, so that different values have different texts.
func (k Kind) encode(path string, value any, level int) (string, error) {
	var b strings.Builder
	add := func(key, path string, value any) error {
		if value == nil || slices.Contains(k.Varies, path) {
			return nil
		}
		text, err := k.encode(path, value, level+1)
		within := func(varies string) bool {
			return strings.HasPrefix(varies, path+".") || strings.HasPrefix(varies, path+"[]")
		}
		if !(text == "{;" || text == "[;") || !slices.ContainsFunc(k.Varies, within) {
			b.WriteString(key + text) // otherwise only what varies made it
		}
		return err
	}
	var errs error
	switch value := value.(type) {
	case map[string]any:
		if len(value) > maxKeys || level == depth {
			return "", fmt.Errorf("%s is too large or too deep", path)
		}
		b.WriteString("{")
		for _, key := range slices.Sorted(maps.Keys(value)) {
			errs = errors.Join(errs, add(text(key)+"=", path+"."+key, value[key]))
		}
	case []any:
		if level == depth {
			return "", fmt.Errorf("%s is too deep", path)
		}
		b.WriteString("[")
		for _, item := range value {
			errs = errors.Join(errs, add("", path+"[]", item))
		}
	case string:
		b.WriteString(text(value))
	case float64:
		fmt.Fprintf(&b, "%g", value)
	default:
		fmt.Fprint(&b, value)
	}
	b.WriteString(";")
	return b.String(), errs
}

func text(value string) string { return fmt.Sprintf("%d:%s", utf8.RuneCountInString(value), value) }

// Annotations returns the text of the annotations that a machine's objects have from their template and MachineDeployment; empty for none.
// Those that Karpenter writes itself aren't part of it.
func Annotations(annotations map[string]string) string {
	var b strings.Builder
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(annotations)), func(key string) bool {
		return strings.HasPrefix(key, "karpenter.cluster.x-k8s.io/") || slices.Contains(written, key)
	})
	if len(keys) == 0 || len(keys) > maxAnnotations {
		return ""
	}
	for _, key := range keys {
		b.WriteString(text(key) + text(annotations[key]))
	}
	return "Machine.cluster.x-k8s.io metadata.annotations=" + b.String()
}

// written are annotations of Cluster API's that Karpenter writes.
var written = []string{
	clusterv1.TemplateClonedFromNameAnnotation, clusterv1.TemplateClonedFromGroupKindAnnotation, clusterv1.ExcludeNodeDrainingAnnotation,
	clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, clusterv1.RemediateMachineAnnotation,
}

// DataSecret is the text of a Machine that names a Secret with bootstrap data.
func DataSecret(name string) string {
	return "Machine.cluster.x-k8s.io spec.bootstrap.dataSecretName=" + name
}

// InstancePrefix is the text of the prefix that the names of a Cluster's instances have: infrastructure providers take instances for theirs
// by name.
func InstancePrefix(prefix string) string { return "Machine.cluster.x-k8s.io metadata.name=" + prefix }

// ClusterName is the text of the Cluster that Machines and their objects are of.
func ClusterName(name string) string { return "Machine.cluster.x-k8s.io spec.clusterName=" + name }
