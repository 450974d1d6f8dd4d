// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
)

// nodeClasses has the kind of node class of each provider's group.
var nodeClasses = map[string]string{v1alpha1.Group: v1alpha1.Kind,
	"karpenter.k8s.aws": "EC2NodeClass", "eks.amazonaws.com": "NodeClass", "karpenter.azure.com": "AKSNodeClass"}

// foreign begins other providers' labels.
var foreign = regexp.MustCompile(
	`^((karpenter|topology)\.k8s\.aws|eks\.amazonaws\.com|(karpenter|kubernetes)\.azure\.com|capacity\.karpenter\.cluster\.x-k8s\.io)/`)

// counterparts are our labels for theirs, without the domain. All count cores and MiB. A family of AKS, such as D, has many of ours.
var counterparts = map[string]string{
	"instance-family": v1alpha1.InstanceFamilyLabel, "instance-size": v1alpha1.Group + "/instance-size",
	"instance-cpu": wellknown.InstanceCPULabel, "sku-cpu": wellknown.InstanceCPULabel, "cpu": wellknown.InstanceCPULabel,
	"instance-memory": wellknown.InstanceMemoryLabel, "sku-memory": wellknown.InstanceMemoryLabel, "memory": wellknown.InstanceMemoryLabel,
	"sku-name": corev1.LabelInstanceTypeStable,
}

// written matches fields of metadata, and annotations, that a cluster writes.
var written = regexp.MustCompile(`^(creationTimestamp|finalizers|generation|managedFields|ownerReferences|resourceVersion|selfLink|uid)$` +
	`|/(last-applied-configuration|stored-version-migrated|(ec2|aks)?node(pool|class)-hash(-version)?)$`)

// fillIn begins the spec of a node class.
const fillIn = `# Fill in infrastructureTemplateSelectors or catalogSelectors, and bootstrap, such as those of the node class "default".`

// converter converts objects, and counts the settings that become comments.
type converter struct{ lost int }

// convert returns a document with an object that a hosted cluster accepts.
func (c *converter) convert(u *unstructured.Unstructured) ([]byte, error) {
	gvk, into := u.GroupVersionKind(), any(&karpv1.NodePool{})
	nodeClass := nodeClasses[gvk.Group] == gvk.Kind
	switch {
	case nodeClass:
		into = &v1alpha1.ClusterAPINodeClass{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
		move(u, []string{"spec", "maxPods"}, []string{"spec", "kubelet", "maxPods"})
		spec, _ := u.Object["spec"].(map[string]any)
		if u.Object["spec"] == nil {
			u.Object["spec"] = spec
		}
		if _, selects := spec["scalableResourceSelector"]; selects && len(spec) == 1 { // upstream selects among the members
			_ = unstructured.SetNestedField(spec, "", "scalableResourceSelector", "matchLabels", v1alpha1.MemberLabel)
		}
	case gvk.Group == "karpenter.sh" && gvk.Kind == "NodePool" && (gvk.Version == "v1" || gvk.Version == "v1beta1"):
		u.SetAPIVersion("karpenter.sh/v1")
		if gvk.Version == "v1beta1" {
			move(u, []string{"spec", "disruption", "expireAfter"}, []string{"spec", "template", "spec", "expireAfter"})
		}
	default:
		return nil, fmt.Errorf("%s %s isn't a NodePool or node class of EKS, AKS or karpenter-provider-cluster-api", u.GetAPIVersion(), gvk.Kind)
	}
	delete(u.Object, "status")
	object := &yamlv3.Node{}
	if err := object.Encode(u.Object); err != nil {
		return nil, err
	}
	c.walk(object, object, reflect.TypeOf(into))
	if nodeClass && gvk.Group != v1alpha1.Group {
		spec := object.Content[len(object.Content)-2:]
		first := append(spec[1].Content, spec[0])[0]
		first.HeadComment = lines(fillIn, first.HeadComment)
	}
	content, err := kyaml.Marshal(quote(object))
	raw, wrong := yaml.YAMLToJSON(content)
	if err = errors.Join(err, wrong, json.Unmarshal(raw, into)); err != nil {
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, u.GetName(), err)
	}
	return append([]byte("---\n"), content...), nil
}

// move moves a field, unless its new place is taken. If a mapping has the wrong type, the object is rejected for that.
func move(u *unstructured.Unstructured, from, to []string) {
	_, taken, _ := unstructured.NestedFieldNoCopy(u.Object, to...)
	if value, found, err := unstructured.NestedFieldNoCopy(u.Object, from...); err == nil && found && !taken {
		unstructured.RemoveNestedField(u.Object, from...)
		_ = unstructured.SetNestedField(u.Object, value, to...)
	}
}

// walk drops the fields that a type lacks, and converts others. above gets the comments if nothing is left.
func (c *converter) walk(above, node *yamlv3.Node, of reflect.Type) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[apiextensionsv1.JSON](): // of any form
	case node.Kind == yamlv3.SequenceNode && of.Kind() == reflect.Slice:
		for _, item := range node.Content {
			c.walk(item, item, of.Elem())
		}
	case node.Kind == yamlv3.MappingNode && of.Kind() == reflect.Struct:
		fields := fieldsOf(of)
		filter(above, node, func(field []*yamlv3.Node) (string, bool) { return c.field(field, of, fields[field[0].Value]) })
	}
}

// field converts a field in a type; of is its own, or nil if the type has no such field.
func (c *converter) field(field []*yamlv3.Node, in, of reflect.Type) (comment string, keep bool) {
	key, value := field[0], field[1]
	name, metadata := key.Value, in == reflect.TypeFor[metav1.ObjectMeta]()
	switch {
	case metadata && written.MatchString(name):
		return "", false
	case metadata && name == "annotations":
		filter(key, value, func(annotation []*yamlv3.Node) (string, bool) { return "", !written.MatchString(annotation[0].Value) })
	case in == reflect.TypeFor[karpv1.ObjectMeta]() && name == "labels" && value.Kind == yamlv3.MappingNode:
		filter(key, value, func(label []*yamlv3.Node) (comment string, keep bool) {
			ours, keep := translate(label[0].Value, label[1].Value)
			if !keep {
				return c.lose(inline(label)), false
			}
			label[0].SetString(ours)
			return "", true
		})
	case of == reflect.TypeFor[[]karpv1.NodeSelectorRequirementWithMinValues]():
		filter(key, value, c.requirement)
	case of == reflect.TypeFor[*karpv1.NodeClassReference]():
		var ref map[string]string
		if value.Decode(&ref) != nil {
			return "", true // which the type rejects
		}
		group, _, _ := strings.Cut(ref["group"]+ref["apiVersion"], "/")
		if _, known := nodeClasses[group]; group != "" && !known {
			comment = c.lose(inline(field))
		}
		return comment, value.Encode(map[string]string{"group": v1alpha1.Group, "kind": v1alpha1.Kind, "name": ref["name"]}) == nil
	case name == "consolidationPolicy" && value.Value == "WhenUnderutilized": // of v1beta1
		value.SetString(string(karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized))
	case of == nil:
		return c.lose(inline(field)), false
	default:
		c.walk(key, value, of)
	}
	return "", true
}

// requirement converts a requirement, or returns the comment that replaces it.
func (c *converter) requirement(item []*yamlv3.Node) (comment string, keep bool) {
	var r struct {
		Key, Operator string
		Values        []string
		MinValues     string `yaml:"minValues"`
	}
	if item[0].Decode(&r) != nil {
		return "", true // which the type rejects
	}
	ours, keep := translate(r.Key, r.Values...)
	if !keep {
		shown := fmt.Sprintf("%s %s [%s] minValues %s", r.Key, r.Operator, strings.Join(r.Values, ", "), r.MinValues)
		return c.lose(strings.Replace(strings.TrimSuffix(shown, " minValues "), " []", "", 1)), false
	}
	for field := range slices.Chunk(item[0].Content, 2) {
		if field[0].Value == "key" {
			field[1].SetString(ours)
		}
	}
	c.walk(item[0], item[0], reflect.TypeFor[karpv1.NodeSelectorRequirementWithMinValues]())
	return "", true
}

// lose returns the comment that replaces a setting.
func (c *converter) lose(shown string) string {
	c.lost++
	return "# " + message.Line(shown) + ": no counterpart"
}

// translate returns our key for a label. It returns false without a counterpart for the key or its values.
func translate(key string, values ...string) (string, bool) {
	if !foreign.MatchString(key) {
		return key, true
	}
	ours, ok := counterparts[foreign.ReplaceAllString(key, "")]
	number := ours == wellknown.InstanceCPULabel || ours == wellknown.InstanceMemoryLabel
	return ours, ok && !(number && slices.ContainsFunc(values, func(value string) bool { return strings.Trim(value, "0123456789") != "" }))
}

// filter drops fields of a mapping or items of a list, and writes comments in their place, or above it if nothing is left.
func filter(above, node *yamlv3.Node, keep func(entry []*yamlv3.Node) (comment string, keep bool)) {
	size := 1
	if node.Kind == yamlv3.MappingNode {
		size = 2
	}
	var kept []*yamlv3.Node
	pending := ""
	for entry := range slices.Chunk(node.Content, size) {
		comment, ok := keep(entry)
		pending = lines(pending, comment)
		if ok {
			entry[0].HeadComment, pending = lines(pending, entry[0].HeadComment), ""
			kept = append(kept, entry...)
		}
	}
	if node.Content = kept; len(kept) == 0 {
		above.HeadComment = lines(above.HeadComment, pending)
	} else {
		last := kept[len(kept)-size]
		if size == 1 && len(last.Content) > 1 { // below an item, a comment moves to the next field
			last = last.Content[len(last.Content)-2]
		}
		last.FootComment = lines(last.FootComment, pending)
	}
}

// lines joins comments.
func lines(comments ...string) string {
	return strings.Trim(strings.Join(comments, "\n"), "\n")
}

// inline returns a field on one line.
func inline(field []*yamlv3.Node) string {
	content, err := kyaml.Marshal(&yamlv3.Node{Kind: yamlv3.MappingNode, Style: yamlv3.FlowStyle, Content: field})
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(content), "{"), "}\n")
}

// quote quotes what a terminal would obey, so that it can be escaped.
func quote(node *yamlv3.Node) *yamlv3.Node {
	if message.Visible(node.Value) != node.Value {
		node.Style = yamlv3.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		quote(child)
	}
	return node
}

// fieldsOf returns the types of a type's fields by their names in JSON.
func fieldsOf(of reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(of) {
		if len(field.Index) == 1 || of.Field(field.Index[0]).Tag.Get("json") == ",inline" {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields[name] = field.Type
		}
	}
	return fields
}
