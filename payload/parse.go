// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// metadataKind is what release-metadata calls itself.
const metadataKind = "cincinnati-metadata-v0"

// OpenShift ships variants of some manifests under one name, for feature sets and for cluster profiles.
const (
	// annotationFeatureSet names the feature sets that a manifest is for; without it, all.
	annotationFeatureSet = "release.openshift.io/feature-set"
	// annotationHosted marks a manifest for clusters with a hosted control plane, by the name of the first such product.
	annotationHosted = "include.release.openshift.io/ibm-cloud-managed"
)

// metadata is the content of release-metadata.
type metadata struct {
	Kind     string         `json:"kind"`
	Version  string         `json:"version"`
	Previous []string       `json:"previous,omitempty"`
	Metadata map[string]any `json:"metadata,omitempty"`
}

func malformed(format string, args ...any) error {
	return &Error{Reason: ReasonPayloadMalformed, Detail: shorten(fmt.Sprintf(format, args...))}
}

// declaredType returns what a manifest is, when the registry and the manifest agree on it. What they disagree on could
// be read in two ways under one digest.
func declaredType(header types.MediaType, content []byte) (types.MediaType, error) {
	var body struct {
		MediaType types.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(content, &body); err != nil {
		return "", malformed("its manifest is no JSON: %v", err)
	}
	declared := header
	if body.MediaType != "" {
		if header.IsImage() || header.IsIndex() {
			if header != body.MediaType {
				return "", malformed("its manifest says media type %q, its registry %q", body.MediaType, header)
			}
		}
		declared = body.MediaType
	}
	switch declared {
	case types.OCIManifestSchema1, types.DockerManifestSchema2, types.OCIImageIndex, types.DockerManifestList:
		return declared, nil
	}
	return "", malformed("media type %q isn't that of an image", declared)
}

func parseManifest(content []byte) (*v1.Manifest, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(content))
	if err != nil {
		return nil, malformed("its manifest can't be read: %v", err)
	}
	switch manifest.Config.MediaType {
	case types.OCIConfigJSON, types.DockerConfigJSON:
		return manifest, nil
	}
	return nil, malformed("it is an artifact of type %q and no image", manifest.Config.MediaType)
}

func parseIndex(content []byte) ([]v1.Descriptor, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(content))
	if err != nil {
		return nil, malformed("its index can't be read: %v", err)
	}
	return index.Manifests, nil
}

// parse makes a Release of the files of release-manifests/.
func parse(image string, files *overlay, components []string) (*Release, error) {
	references, err := files.read(imageReferences)
	if err != nil {
		return nil, err
	}
	about, err := files.read(releaseMetadata)
	if err != nil {
		return nil, err
	}
	var stream imagev1.ImageStream
	if err := json.Unmarshal(references, &stream); err != nil {
		return nil, malformed("%s/%s is no ImageStream: %v", directory, imageReferences, err)
	}
	if stream.Kind != "ImageStream" || (stream.APIVersion != imagev1.GroupVersion.String() && stream.APIVersion != "v1") {
		return nil, malformed("%s/%s is a %q of %q and no ImageStream of %s", directory, imageReferences, stream.Kind, stream.APIVersion, imagev1.GroupVersion)
	}
	var m metadata
	if err := json.Unmarshal(about, &m); err != nil {
		return nil, malformed("%s/%s can't be read: %v", directory, releaseMetadata, err)
	}
	if m.Kind != metadataKind {
		return nil, malformed("%s/%s has kind %q instead of %q", directory, releaseMetadata, m.Kind, metadataKind)
	}
	if _, err := semver.Parse(m.Version); err != nil {
		return nil, malformed("%s/%s: version %q is no semantic version: %v", directory, releaseMetadata, m.Version, err)
	}
	if stream.Name != m.Version {
		return nil, malformed("%s says version %q, %s says %q", imageReferences, stream.Name, releaseMetadata, m.Version)
	}

	r := &Release{Version: m.Version, Previous: m.Previous, Image: image, Components: map[string]Component{}}
	wants := wanted(components)
	seen := map[string]bool{}
	for _, tag := range stream.Spec.Tags {
		if seen[tag.Name] {
			if wants(tag.Name) {
				return nil, malformed("%s has two tags %q", imageReferences, tag.Name)
			}
			continue
		}
		seen[tag.Name] = true
		if !wants(tag.Name) {
			continue
		}
		c, err := parseTag(tag)
		if err != nil {
			return nil, err
		}
		c.release = image
		r.Components[tag.Name] = c
	}
	r.Names = slices.Sorted(maps.Keys(seen))
	return r, addCRDs(r, files)
}

func (o *overlay) read(file string) ([]byte, error) {
	content, ok := o.files[file]
	if ok {
		return content, nil
	}
	if o.decided[file] {
		return nil, malformed("%s/%s was removed or is no regular file", directory, file)
	}
	return nil, malformed("it is no release image: it has no %s/%s", directory, file)
}

func parseTag(tag imagev1.TagReference) (Component, error) {
	if tag.Name == "" {
		return Component{}, malformed("%s has a tag without a name", imageReferences)
	}
	if tag.From == nil || tag.From.Kind != "DockerImage" {
		return Component{}, malformed("tag %s in %s isn't from a DockerImage", tag.Name, imageReferences)
	}
	if _, err := name.NewDigest(tag.From.Name); err != nil {
		return Component{}, malformed("tag %s in %s: %q isn't an image by digest", tag.Name, imageReferences, tag.From.Name)
	}
	versions, err := parseVersions(tag.Annotations[AnnotationVersions])
	if err != nil {
		return Component{}, malformed("tag %s in %s: annotation %s: %v", tag.Name, imageReferences, AnnotationVersions, err)
	}
	return Component{Name: tag.Name, Image: tag.From.Name, Versions: versions}, nil
}

// parseVersions reads comma-separated name=version pairs; a leading "v" of a version is dropped.
func parseVersions(annotation string) (map[string]string, error) {
	versions := map[string]string{}
	if strings.TrimSpace(annotation) == "" {
		return versions, nil
	}
	for pair := range strings.SplitSeq(annotation, ",") {
		name, version, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q isn't name=version", pair)
		}
		version = strings.TrimPrefix(version, "v")
		if _, err := semver.Parse(version); err != nil {
			return nil, fmt.Errorf("%s: %q is no semantic version: %w", name, version, err)
		}
		if old, ok := versions[name]; ok && old != version {
			return nil, fmt.Errorf("%s is both %s and %s", name, old, version)
		}
		versions[name] = version
	}
	return versions, nil
}

func addCRDs(r *Release, files *overlay) error {
	for _, file := range slices.Sorted(maps.Keys(files.files)) {
		m := manifestFile.FindStringSubmatch(file)
		if m == nil {
			continue
		}
		component, ok := r.Components[m[1]]
		if !ok {
			continue // a manifest of something without an image of its own
		}
		crds, err := parseCRDs(files.files[file])
		if err != nil {
			return malformed("%s/%s: %v", directory, file, err)
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
		slices.SortFunc(component.CRDs, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
		r.Components[component.Name] = component
	}
	return nil
}

func hosted(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[annotationHosted] == "true"
}

// parseCRDs returns the CustomResourceDefinitions among the documents of a manifest file, except those that OpenShift ships
// for other feature sets than the default one.
func parseCRDs(content []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var crds []*apiextensionsv1.CustomResourceDefinition
	err := eachDocument(content, func(document []byte) error {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return err
		}
		if kind.Kind != "CustomResourceDefinition" {
			return nil
		}
		if want := apiextensionsv1.SchemeGroupVersion.String(); kind.APIVersion != want {
			return fmt.Errorf("a CustomResourceDefinition of apiVersion %q instead of %s", kind.APIVersion, want)
		}
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

// eachDocument calls do for each YAML document that isn't empty.
func eachDocument(content []byte, do func([]byte) error) error {
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
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
