// SPDX-License-Identifier: Apache-2.0

package template

import (
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ownedHash hashes the fields of spec.template that anyone has written. An API server records who has written each field
// before its mutating webhooks add their defaults, so those have no owner. The hash is empty if the object has no record,
// as a restored one.
func ownedHash(template *unstructured.Unstructured) string {
	owned := map[string]any{}
	for _, entry := range template.GetManagedFields() {
		if entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		fields := map[string]any{}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return ""
		}
		merge(owned, fields)
	}
	fields, _, err := unstructured.NestedMap(owned, "f:spec", "f:template")
	if err != nil || len(fields) == 0 {
		return ""
	}
	content, _, err := unstructured.NestedMap(template.Object, "spec", "template")
	if err != nil {
		return ""
	}
	raw, err := json.Marshal(ownedBy(fields, content))
	if err != nil {
		return ""
	}
	return hashOf(raw)
}

// merge adds the fields of one manager to those of others.
func merge(fields, more map[string]any) {
	for key, value := range more {
		children, _ := value.(map[string]any)
		before, ok := fields[key].(map[string]any)
		if !ok {
			before = map[string]any{}
			fields[key] = before
		}
		merge(before, children)
	}
}

// ownedBy returns the part of the content that the fields name. A list or a map that is owned as a whole is kept as a whole.
func ownedBy(fields map[string]any, content map[string]any) map[string]any {
	owned := map[string]any{}
	for key, value := range content {
		below, ok := fields["f:"+key].(map[string]any)
		if !ok {
			continue
		}
		nested, isMap := value.(map[string]any)
		if isMap && hasFields(below) {
			value = ownedBy(below, nested)
		}
		owned[key] = value
	}
	return owned
}

func hasFields(fields map[string]any) bool {
	for key := range fields {
		if strings.HasPrefix(key, "f:") {
			return true
		}
	}
	return false
}
