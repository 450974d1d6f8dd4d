// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
)

// autoNode checks AutoNode's own CustomResourceDefinitions. It reports whether there is any.
func (m *managementCheck) autoNode() (installed bool) {
	const upgrade = "upgrade them the way they were installed, such as `autonode install`: docs/platform/install.md"
	var missing, right []string
	for _, object := range m.installed {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		name, want := object.GetName(), &apiextensionsv1.CustomResourceDefinition{}
		subject := "CustomResourceDefinition " + name
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, want); err != nil {
			m.Unread(subject, err)
			continue
		}
		found := m.definition(name)
		if found == nil {
			missing = append(missing, name)
			continue
		}
		installed = true
		wanted, there := schemaOf(want), schemaOf(found)
		lacks, has := beyond(wanted, there), beyond(there, wanted)
		switch {
		case !apihelpers.IsCRDConditionTrue(found, apiextensionsv1.Established):
			m.wrong(subject, "see why in its conditions: `kubectl describe crd "+name+"`", "it isn't served yet")
		case len(lacks) > 0:
			m.wrong(subject, upgrade, "older than this program: it lacks %s", some(lacks))
		case len(has) > 0:
			m.warn(subject, "use the version of autonode that matches the operator", "newer than this program: it also has %s", some(has))
		default:
			right = append(right, name)
		}
	}
	const subject = "CustomResourceDefinitions"
	switch {
	case !installed:
		m.wrong(subject, "install AutoNode with `autonode install`: docs/platform/install.md; "+
			"or choose the management cluster with --context or --kubeconfig",
			"AutoNode isn't installed in this cluster")
	case len(missing) > 0:
		m.wrong(subject, upgrade, "missing: %s", strings.Join(missing, ", "))
	case len(right) > 0:
		m.ok(subject, "%d installed, at this program's version", len(right))
	}
	return installed
}

// schemaOf returns the fields of a definition, each behind its version, and the versions that are served.
func schemaOf(crd *apiextensionsv1.CustomResourceDefinition) sets.Set[string] {
	paths := sets.New[string]()
	var add func(path string, schema *apiextensionsv1.JSONSchemaProps)
	add = func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		paths.Insert(path)
		for name, property := range schema.Properties {
			add(path+"."+name, &property)
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			add(path+".[]", schema.Items.Schema)
		}
		if values := schema.AdditionalProperties; values != nil && values.Schema != nil {
			add(path+".*", values.Schema)
		}
	}
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Served && v.Schema != nil {
			add("version "+v.Name, v.Schema.OpenAPIV3Schema)
		}
	}
	return paths
}

// beyond returns what another schema lacks, the outermost of each.
func beyond(schema, other sets.Set[string]) []string {
	var found []string
	for _, path := range sets.List(schema.Difference(other)) {
		if parent := path[:max(strings.LastIndex(path, "."), 0)]; parent == "" || other.Has(parent) {
			_, field, _ := strings.Cut(path, ".")
			found = append(found, cmp.Or(strings.ReplaceAll(field, ".[]", "[]"), path))
		}
	}
	return found
}
