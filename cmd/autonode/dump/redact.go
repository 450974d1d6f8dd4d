// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Removed takes the place of what may be secret.
const Removed = "REMOVED"

var (
	// secretKeys are fields, flags and JSON pointers whose values may be secret.
	secretKeys = regexp.MustCompile(`(?i)(token|passw|secret|kubeconfig|user-?data|cloud-?init|cloud-?config|ignition|credential|private-?key|access-?key|` +
		`api-?key|client-?key|ssh-?key|encryption-?key|bearer|authorization|^content$|^contents$|^value-?from$|^data$|^stringData$|^binaryData$)`)
	// harmlessKeys end the names of fields that refer to a secret, or say how one is used.
	harmlessKeys = regexp.MustCompile(`(?i)(name|names|ref|refs|namespace|type|policy|count|seconds|ttl|format|mode|audience|audiences|path|mounttoken|` +
		`mountserviceaccounttoken|imagepullsecrets|created|generated|ready)$`)
	// reference are the fields of an object that refers to another one.
	reference = []string{"name", "namespace", "kind", "apiVersion", "apiGroup", "key", "optional", "uid"}

	// known are the domains of annotations whose values aren't secret.
	known = regexp.MustCompile(`(^|\.)(karpenter\.sh|cluster\.x-k8s\.io|autonode\.io|kubernetes\.io|k8s\.io)$`)

	// shapes of secrets in any text. The groups of an expression stay.
	shapes = []*regexp.Regexp{
		regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
		regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
		regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),
		regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"']+(@)`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[^\s"',;]+`),
		regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:token|passw(?:or)?d|passphrase|secret-?key|client-?secret|private-?key|access-?key|api-?key|` +
			`client-?key-?data)"?\s*[:=]\s*"?)[^\s"',;&]+`),
	}
)

// Text removes what has the shape of a secret.
func Text(text string) string {
	for _, shape := range shapes {
		text = shape.ReplaceAllString(text, "${1}"+Removed+"${2}")
	}
	return text
}

// Object removes what may be secret from an object, in place. own is an object whose pods are AutoNode's, whose arguments say much.
func Object(object *unstructured.Unstructured, own bool) {
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
	object.SetAnnotations(cleanAnnotations(annotations))
	r := redactor{own: own}
	gk := object.GroupVersionKind().GroupKind()
	switch {
	case gk == schema.GroupKind{Kind: "Secret"}:
		r.keepOnly(object.Object, "type")
	case gk == schema.GroupKind{Kind: "ConfigMap"} && !own:
		r.keepOnly(object.Object)
	case strings.HasPrefix(gk.Group, "bootstrap."):
		r.bootstrap(object.Object)
	case gk.Kind == "CertificateSigningRequest":
		r.keepOnly(object.Object, "status")
	}
	for key, value := range object.Object {
		if key == "data" && gk.Kind == "ConfigMap" {
			object.Object[key] = r.texts(value)
			continue
		}
		if key != "metadata" && key != "apiVersion" && key != "kind" {
			object.Object[key] = r.value(key, value)
		}
	}
}

// cleanAnnotations keeps the values of annotations whose domain is known.
func cleanAnnotations(annotations map[string]string) map[string]string {
	cleaned := make(map[string]string, len(annotations))
	for key, value := range annotations {
		domain, name, found := strings.Cut(key, "/")
		if !found || !known.MatchString(domain) || strings.HasSuffix(name, "-patches") || secretKeys.MatchString(name) && !harmlessKeys.MatchString(name) {
			cleaned[key] = Removed
			continue
		}
		cleaned[key] = Text(value)
	}
	return cleaned
}

type redactor struct{ own bool }

// keepOnly removes all fields of an object but its metadata and these.
func (redactor) keepOnly(object map[string]any, fields ...string) {
	for key := range object {
		if key != "apiVersion" && key != "kind" && key != "metadata" && !slices.Contains(fields, key) {
			object[key] = Removed
		}
	}
}

// bootstrap keeps of a bootstrap config how the node is registered.
func (r redactor) bootstrap(object map[string]any) {
	spec, _, _ := unstructured.NestedMap(object, "spec")
	if spec == nil {
		return
	}
	kept := map[string]any{}
	for _, path := range [][]string{{"joinConfiguration", "nodeRegistration"}, {"template", "spec", "joinConfiguration", "nodeRegistration"}} {
		if registration, found, _ := unstructured.NestedMap(spec, path...); found {
			_ = unstructured.SetNestedMap(kept, registration, path...) // kept has nothing in its way
		}
	}
	kept[Removed] = "the other fields"
	object["spec"] = kept
}

// value returns a field's value without what may be secret.
func (r redactor) value(key string, value any) any {
	if secretKeys.MatchString(key) && !harmlessKeys.MatchString(key) {
		return r.secret(value)
	}
	switch v := value.(type) {
	case string:
		return Text(v)
	case []any:
		for i := range v {
			v[i] = r.item(key, v[i])
		}
		return v
	case map[string]any:
		r.object(key, v)
		return v
	}
	return value
}

// item of a list.
func (r redactor) item(key string, value any) any {
	if text, ok := value.(string); ok && (key == "args" || key == "command") {
		return r.argument(text)
	}
	if m, ok := value.(map[string]any); ok {
		switch _, has := m["value"]; {
		case has && (key == "env" || key == "variables" || key == "httpHeaders"):
			m["value"] = Removed
		case has && secretKeys.MatchString(stringOf(m["path"])):
			m["value"] = Removed
		}
	}
	return r.value("", value)
}

// argument of a program. Those of others than AutoNode may have a secret in any place.
func (r redactor) argument(text string) string {
	if !r.own {
		return Removed
	}
	if flag, _, found := strings.Cut(text, "="); found && secretKeys.MatchString(flag) && !harmlessKeys.MatchString(flag) {
		return flag + "=" + Removed
	}
	return Text(text)
}

func (r redactor) object(key string, m map[string]any) {
	for field, value := range m {
		switch {
		case field == "annotations":
			m[field] = r.annotations(value)
		case key == "template" && field == "metadata" || field == "labels" || field == "matchLabels":
			m[field] = r.value(field, value)
		case field == "bootstrapPatches", field == "lifecycle", strings.HasSuffix(field, "Probe"):
			m[field] = Removed
		default:
			m[field] = r.value(field, value)
		}
	}
}

func (r redactor) annotations(value any) any {
	m, ok := value.(map[string]any)
	if !ok {
		return Removed
	}
	annotations := make(map[string]string, len(m))
	for key, value := range m {
		if text, ok := value.(string); ok && key != "kubectl.kubernetes.io/last-applied-configuration" {
			annotations[key] = text
		}
	}
	cleaned := map[string]any{}
	for key, value := range cleanAnnotations(annotations) {
		cleaned[key] = value
	}
	return cleaned
}

// secret keeps of a value what refers to another object.
func (r redactor) secret(value any) any {
	switch v := value.(type) {
	case bool, nil:
		return v
	case map[string]any:
		for field, inner := range v {
			if text, ok := inner.(string); ok && slices.Contains(reference, field) {
				v[field] = Text(text)
				continue
			}
			v[field] = r.secret(inner)
		}
		return v
	case []any:
		for i := range v {
			v[i] = r.secret(v[i])
		}
		return v
	}
	return Removed
}

// texts of a map.
func (r redactor) texts(value any) any {
	if m, ok := value.(map[string]any); ok {
		for key, inner := range m {
			m[key] = Text(stringOf(inner))
		}
	}
	return value
}

func stringOf(value any) string {
	text, _ := value.(string)
	return text
}
