// SPDX-License-Identifier: Apache-2.0

package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// autoNode checks AutoNode's own CustomResourceDefinitions. It reports whether there is any.
func (m *managementCheck) autoNode() (installed bool) {
	const upgrade = "upgrade them in the way they were installed, such as `autonode install`: docs/platform/install.md"
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
		lacks, has := compared(want, found)
		switch {
		case !apihelpers.IsCRDConditionTrue(found, apiextensionsv1.Established):
			m.wrong(subject, "see why in its conditions: `kubectl describe crd "+name+"`", "it isn't served yet")
		case len(lacks) > 0:
			m.wrong(subject, upgrade, "it is older than this program: it lacks %s", fields(lacks))
		case len(has) > 0:
			m.warn(subject, "use the autonode of the operator's version", "it is newer than this program: it has %s beside", fields(has))
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
		m.ok(subject, "%s of AutoNode's, in this program's version", english.Plural(len(right), "is", "are"))
	}
	return installed
}

// fields names a few of many.
func fields(paths []string) string {
	const few = 3
	if more := len(paths) - few; more > 0 {
		return strings.Join(paths[:few], ", ") + " and " + english.Plural(more, "more field", "")
	}
	return strings.Join(paths, ", ")
}

// compared returns the fields that the schemas of one definition have and those of the other lack, both ways. A version that isn't served
// counts as one.
func compared(want, found *apiextensionsv1.CustomResourceDefinition) (lacks, has []string) {
	versions := func(crd *apiextensionsv1.CustomResourceDefinition) map[string]*apiextensionsv1.JSONSchemaProps {
		schemas := map[string]*apiextensionsv1.JSONSchemaProps{}
		for i := range crd.Spec.Versions {
			if v := &crd.Spec.Versions[i]; v.Served && v.Schema != nil {
				schemas[v.Name] = v.Schema.OpenAPIV3Schema
			}
		}
		return schemas
	}
	wanted, there := versions(want), versions(found)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if there[name] == nil {
			lacks = append(lacks, "version "+name)
			continue
		}
		lacks = append(lacks, missing("", wanted[name], there[name])...)
		has = append(has, missing("", there[name], wanted[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if wanted[name] == nil {
			has = append(has, "version "+name)
		}
	}
	return lacks, has
}

// missing returns the paths of the fields that another schema lacks, the outermost of each.
func missing(path string, schema, other *apiextensionsv1.JSONSchemaProps) []string {
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		at := strings.TrimPrefix(path+"."+name, ".")
		if has, ok := other.Properties[name]; ok {
			paths = append(paths, missing(at, &property, &has)...)
		} else {
			paths = append(paths, at)
		}
	}
	if schema.Items != nil && schema.Items.Schema != nil && other.Items != nil && other.Items.Schema != nil {
		paths = append(paths, missing(path+"[]", schema.Items.Schema, other.Items.Schema)...)
	}
	if values, than := schema.AdditionalProperties, other.AdditionalProperties; values != nil && values.Schema != nil &&
		than != nil && than.Schema != nil {
		paths = append(paths, missing(path+".*", values.Schema, than.Schema)...)
	}
	return paths
}
