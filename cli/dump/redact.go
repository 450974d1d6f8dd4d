// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	// reference are the fields of an object that refers to another one.
	reference = []string{"name", "namespace", "kind", "apiVersion", "apiGroup", "key", "optional", "uid", "fieldPath"}

	// allowedAnnotations are those whose values stay. Of the others their keys stay.
	allowedAnnotations = regexp.MustCompile(`^(?:` +
		`([a-z0-9-]+\.)*(?:karpenter\.sh|karpenter\.k8s\.aws|karpenter\.cluster\.x-k8s\.io|autonode\.io)/.*|` +
		`(?:machine|machineset|machinedeployment|clusterctl|pre-drain\.delete\.hook\.machine|pre-terminate\.delete\.hook\.machine|` +
		`topology)\.cluster\.x-k8s\.io/.*|` +
		`cluster\.x-k8s\.io/(?:annotations-from-machine|cloned-from-groupkind|cloned-from-name|` +
		`cluster-api-autoscaler-node-group-(?:min|max)-size|cluster-name|cluster-namespace|delete-machine|disable-machine-create|` +
		`labels-from-machine|machine|managed-by|owner-kind|owner-name|paused|remediate-machine|replicas-managed-by|skip-remediation)|` +
		`(?:capacity\.)?cluster-autoscaler\.kubernetes\.io/.*|deployment\.kubernetes\.io/.*|pv\.kubernetes\.io/.*|` +
		`volume\.kubernetes\.io/.*|csi\.volume\.kubernetes\.io/nodeid|node\.alpha\.kubernetes\.io/ttl)$`)

	// fieldName is what kinds call their fields. A map's keys, which may be secret, most often have another form.
	fieldName = regexp.MustCompile(`^[a-z][a-zA-Z]{0,39}$`)

	flagName = regexp.MustCompile(`^--?[a-zA-Z][a-zA-Z0-9-]*$`)
)

// Object removes from an object, in place, what isn't known to be harmless: see fields.yaml. ours is an object whose pods are AutoNode's,
// whose arguments say much, or a ConfigMap that AutoNode reads.
func Object(object *unstructured.Unstructured, ours bool) {
	if data, ok := object.Object["data"].(map[string]any); ok && ours && object.GetKind() == "ConfigMap" {
		for key, value := range data {
			text, _ := value.(string)
			data[key] = Text(text)
		}
		delete(object.Object, "data")
		defer func() { object.Object["data"] = data }()
	}
	object.Object = keep("", treeOf(object.GroupVersionKind().GroupKind(), ours), object.Object).(map[string]any)
}

// keep returns what of a value stays.
func keep(key string, t tree, value any) any {
	switch v := value.(type) {
	case map[string]any:
		switch {
		case key == "metadata":
			return only(v, allowed().Metadata)
		case key == "kubeletExtraArgs":
			return kubeletArgs(v)
		case t == nil:
			return scrub(key, v)
		}
		return fieldsOf(v, t)
	case []any:
		switch {
		case key == "kubeletExtraArgs":
			return kubeletArgs(v)
		case key == "args" || key == "command":
			return arguments(v)
		case t == nil:
			return scrub(key, v)
		}
		for i := range v {
			v[i] = keep("", t, v[i])
		}
		return v
	}
	if _, stays := t[anyText]; t == nil || stays {
		return scrub(key, value)
	}
	return shape(key, value)
}

// shape keeps the names of fields. Of a list it keeps the different shapes of its elements.
func shape(key string, value any) any {
	switch v := value.(type) {
	case nil:
		return nil
	case map[string]any:
		if strings.HasSuffix(strings.ToLower(key), "data") { // a Secret's, a ConfigMap's: its keys are names of files
			return Removed
		}
		return fieldsOf(v, nil)
	case []any:
		different, seen := []any{}, map[string]bool{}
		for _, inner := range v {
			inner = shape("", inner)
			if text, err := json.Marshal(inner); err == nil && !seen[string(text)] {
				seen[string(text)] = true
				different = append(different, inner)
			}
		}
		return different
	}
	return Removed
}

// fieldsOf keeps of an object what stays of some fields, and the names of the others.
func fieldsOf(v map[string]any, stay tree) map[string]any {
	others := 0
	for field, inner := range v {
		switch t, stays := stay[field]; {
		case stays:
			v[field] = keep(field, t, inner)
		case fieldName.MatchString(field):
			v[field] = shape(field, inner)
		default:
			delete(v, field)
			others++
		}
	}
	if others > 0 {
		v[Removed] = fmt.Sprintf("%d fields", others)
	}
	return v
}

// only keeps fields, without what looks secret.
func only(v map[string]any, fields []string) map[string]any {
	for field, value := range v {
		if slices.Contains(fields, field) {
			v[field] = scrub(field, value)
		} else {
			delete(v, field)
		}
	}
	return v
}

func annotations(value any) any {
	m, ok := value.(map[string]any)
	if !ok {
		return Removed
	}
	for key, value := range m {
		_, name, _ := strings.Cut(key, "/")
		if text, ok := value.(string); ok && allowedAnnotations.MatchString(key) && !strings.HasSuffix(name, "-patches") && !isSecret(name) {
			m[key] = Text(text)
			continue
		}
		m[key] = Removed
	}
	// It is whole objects.
	delete(m, "kubectl.kubernetes.io/last-applied-configuration")
	return m
}

func conditions(list []any) []any {
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			only(m, allowed().Condition)
		}
	}
	return list
}

// arguments of a program of AutoNode's: its flags, and no other words.
func arguments(list []any) []any {
	for i, item := range list {
		text, _ := item.(string)
		flag, value, found := strings.Cut(text, "=")
		switch {
		case !flagName.MatchString(flag):
			list[i] = Removed
		case !found:
		case isSecret(flag):
			list[i] = flag + "=" + Removed
		default:
			list[i] = flag + "=" + Text(value)
		}
	}
	return list
}

// kubeletArgs are a map, or a list of names and values.
func kubeletArgs(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, arg := range v {
			if v[name] = Removed; slices.Contains(allowed().Kubelet, name) {
				v[name] = scrub(name, arg)
			}
		}
	case []any:
		for i, item := range v {
			arg, ok := item.(map[string]any)
			if !ok {
				v[i] = Removed
				continue
			}
			name, _ := arg["name"].(string)
			argument := map[string]any{"name": Text(name), "value": Removed}
			if slices.Contains(allowed().Kubelet, name) {
				argument["value"] = scrub(name, arg["value"])
			}
			v[i] = argument
		}
	}
	return value
}

// scrub removes from a value that stays what looks secret nevertheless.
func scrub(key string, value any) any {
	switch {
	case key == "annotations":
		return annotations(value)
	case isSecret(key):
		return references(value)
	}
	switch v := value.(type) {
	case string:
		return Text(v)
	case []any:
		if key == "conditions" {
			return conditions(v)
		}
		for i := range v {
			v[i] = scrub("", v[i])
		}
		return v
	case map[string]any:
		for field, inner := range v {
			if nested, _ := inner.(map[string]any); field == "metadata" && nested != nil {
				v[field] = only(nested, allowed().Metadata)
			} else {
				v[field] = scrub(field, inner)
			}
		}
		return v
	}
	return value
}

// references keeps of a value what refers to another object.
func references(value any) any {
	switch v := value.(type) {
	case bool, nil:
		return v
	case map[string]any:
		for field, inner := range v {
			if text, ok := inner.(string); ok && slices.Contains(reference, field) {
				v[field] = Text(text)
				continue
			}
			v[field] = references(inner)
		}
		return v
	case []any:
		for i := range v {
			v[i] = references(v[i])
		}
		return v
	}
	return Removed
}
