// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2" // the parser beneath sigs.k8s.io/yaml, so that both see the same
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// OpenShift ships variants of some manifests under one name, for feature sets and for cluster profiles.
const (
	// annotationFeatureSet names the feature sets that a manifest is for; without it, all.
	annotationFeatureSet = "release.openshift.io/feature-set"
	// annotationHosted marks a manifest for clusters with a hosted control plane, by the name of the first such product.
	annotationHosted = "include.release.openshift.io/ibm-cloud-managed"
)

func addCRDs(r *Release, files *overlay) error {
	readers := map[string]*crdReader{}
	for _, file := range slices.Sorted(maps.Keys(files.files)) {
		m := manifestFile.FindStringSubmatch(file)
		if m == nil {
			continue
		}
		component, ok := r.Components[m[1]]
		if !ok {
			continue // a manifest of something without an image of its own
		}
		if readers[component.Name] == nil {
			readers[component.Name] = &crdReader{}
		}
		crds, err := readers[component.Name].read(files.files[file])
		if err != nil {
			return refuse(err, "%s/%s: %v", directory, file, err)
		}
		for _, crd := range crds {
			i := slices.IndexFunc(component.CRDs, func(other *apiextensionsv1.CustomResourceDefinition) bool { return other.Name == crd.Name })
			switch {
			case i < 0:
				component.CRDs = append(component.CRDs, crd)
			case hosted(crd) == hosted(component.CRDs[i]):
				return malformed("%s/%s: component %s has CustomResourceDefinition %s twice", directory, file, component.Name, crd.Name)
			case hosted(crd):
				component.CRDs[i] = crd
			}
		}
		if len(component.CRDs) > maxCRDs {
			return refuse(errTooLarge, "component %s has more than %d CustomResourceDefinitions", component.Name, maxCRDs)
		}
		slices.SortFunc(component.CRDs, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
		r.Components[component.Name] = component
	}
	return nil
}

func hosted(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[annotationHosted] == "true"
}

// crdReader reads the CustomResourceDefinitions of one component, and keeps the bounds over all of its files.
type crdReader struct {
	documents int
	nodes     int
}

// read returns the CustomResourceDefinitions among the documents of a manifest file, except those that OpenShift ships
// for other feature sets than the default one.
func (r *crdReader) read(content []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var crds []*apiextensionsv1.CustomResourceDefinition
	err := eachDocument(content, func(document []byte) error {
		if r.documents++; r.documents > maxDocuments {
			return tooMany(maxDocuments, "YAML documents of one component")
		}
		root, err := decode(document)
		if err != nil {
			return err
		}
		if root["kind"] != "CustomResourceDefinition" {
			return nil
		}
		if want := apiextensionsv1.SchemeGroupVersion.String(); root["apiVersion"] != want {
			return fmt.Errorf("a CustomResourceDefinition of apiVersion %q instead of %s", fmt.Sprint(root["apiVersion"]), want)
		}
		// Only now is it known that its aliases and its depth do no harm.
		size := measure{nodes: r.nodes}
		if err := size.add(root, 1); err != nil {
			return err
		}
		r.nodes = size.nodes
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(document, crd); err != nil {
			return err
		}
		if want := crd.Spec.Names.Plural + "." + crd.Spec.Group; crd.Name != want || len(crd.Spec.Versions) == 0 {
			return fmt.Errorf("CustomResourceDefinition %q isn't named <plural>.<group> or has no versions", crd.Name)
		}
		if sets, ok := crd.Annotations[annotationFeatureSet]; ok && !slices.Contains(strings.Split(sets, ","), "Default") {
			return nil
		}
		crds = append(crds, crd)
		return nil
	})
	return crds, err
}

// decode returns the fields of a YAML document, none for one that holds only comments. It does not write JSON, as
// sigs.k8s.io/yaml does: that repeats an alias's content each time, so that megabytes become terabytes.
func decode(document []byte) (map[any]any, error) {
	if len(document) > maxDocumentBytes {
		return nil, fmt.Errorf("%w: a YAML document of more than %s", errTooLarge, megabytes(maxDocumentBytes))
	}
	indicators := 0
	for _, c := range []string{"-", "?", ":", ",", "[", "{"} {
		indicators += bytes.Count(document, []byte(c))
	}
	if indicators > maxIndicators {
		return nil, tooMany(maxIndicators, "fields and elements in one YAML document")
	}
	var root any
	if err := yamlv2.Unmarshal(document, &root); err != nil {
		return nil, err
	}
	switch root := root.(type) {
	case nil:
		return nil, nil
	case map[any]any:
		return root, nil
	}
	return nil, errors.New("a YAML document that is no mapping")
}

// measure is how large decoded YAML is with all aliases written out.
type measure struct{ nodes, bytes int }

func (m *measure) add(value any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: a CustomResourceDefinition nests more than %d levels deep", errTooLarge, maxDepth)
	}
	if m.nodes++; m.nodes > maxNodes {
		return tooMany(maxNodes, "fields and elements in the CustomResourceDefinitions of one component")
	}
	switch value := value.(type) {
	case map[any]any:
		for key, element := range value {
			if err := errors.Join(m.add(key, depth+1), m.add(element, depth+1)); err != nil {
				return err
			}
		}
	case []any:
		for _, element := range value {
			if err := m.add(element, depth+1); err != nil {
				return err
			}
		}
	case string:
		if m.bytes += len(value); m.bytes > maxDocumentBytes {
			return fmt.Errorf("%w: a CustomResourceDefinition of more than %s", errTooLarge, megabytes(maxDocumentBytes))
		}
	}
	return nil
}

// eachDocument calls do for each YAML document that isn't empty.
func eachDocument(content []byte, do func([]byte) error) error {
	// Without the newline, the reader would drop a last line that just fills its buffer.
	lines := io.MultiReader(bytes.NewReader(content), strings.NewReader("\n"))
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(lines)); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if err := do(document); err != nil {
			return err
		}
	}
}
