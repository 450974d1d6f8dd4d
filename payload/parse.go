// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/autonode-io/autonode/internal/message"
)

// metadataKind is the kind in release-metadata.
const metadataKind = "cincinnati-metadata-v0"

// metadata is the content of release-metadata.
type metadata struct {
	Kind     string   `json:"kind"`
	Version  string   `json:"version"`
	Previous []string `json:"previous,omitempty"`
}

// imageStream is as much of an image.openshift.io/v1 ImageStream as is read.
type imageStream struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Tags []tagReference `json:"tags"`
	} `json:"spec"`
}

type tagReference struct {
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations"`
	From        *struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"from"`
}

func malformed(format string, args ...any) error {
	return &Error{Reason: ReasonPayloadMalformed, Detail: shorten(fmt.Sprintf(format, quotable(args)...))}
}

// maxQuoted is how many bytes of one text of a payload's a message quotes.
const maxQuoted = 200

// quotable cuts the arguments of a message that are long: a payload's author chooses how long.
func quotable(args []any) []any {
	cut := slices.Clone(args)
	for i, arg := range cut {
		if err, ok := arg.(error); ok {
			arg = err.Error()
		}
		if value := reflect.ValueOf(arg); value.Kind() == reflect.String && value.Len() > maxQuoted {
			cut[i] = message.Cut(value.String(), maxQuoted)
		}
	}
	return cut
}

// declaredType returns a manifest's media type, when the registry and the manifest agree on it. Without agreement, it could
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
				return "", malformed("its manifest has media type %q, its registry reports %q", body.MediaType, header)
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
	default:
		return nil, malformed("it is an artifact of type %q and no image", manifest.Config.MediaType)
	}
	for i, layer := range manifest.Layers {
		if layer.Digest == (v1.Hash{}) {
			return nil, malformed("layer %d of %d in its manifest has no digest", i+1, len(manifest.Layers))
		}
	}
	return manifest, nil
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
	var stream imageStream
	if err := count(references); err != nil {
		return nil, refuse(err, "%s/%s: %v", directory, imageReferences, err)
	}
	if err := json.Unmarshal(references, &stream); err != nil {
		return nil, malformed("%s/%s is no ImageStream: %v", directory, imageReferences, err)
	}
	if stream.Kind != "ImageStream" || (stream.APIVersion != imagev1.GroupVersion.String() && stream.APIVersion != "v1") {
		return nil, malformed("%s/%s is a %q of %q and no ImageStream of %s", directory, imageReferences, stream.Kind, stream.APIVersion,
			imagev1.GroupVersion)
	}
	var m metadata
	if err := count(about); err != nil {
		return nil, refuse(err, "%s/%s: %v", directory, releaseMetadata, err)
	}
	if err := json.Unmarshal(about, &m); err != nil {
		return nil, malformed("%s/%s can't be read: %v", directory, releaseMetadata, err)
	}
	if m.Kind != metadataKind {
		return nil, malformed("%s/%s has kind %q instead of %q", directory, releaseMetadata, m.Kind, metadataKind)
	}
	if err := checkVersion(m.Version); err != nil {
		return nil, malformed("%s/%s: version %v", directory, releaseMetadata, err)
	}
	if stream.Metadata.Name != m.Version {
		return nil, malformed("%s has version %q, %s has %q", imageReferences, stream.Metadata.Name, releaseMetadata, m.Version)
	}

	r := &Release{Version: m.Version, Previous: m.Previous, Image: image, Components: map[string]Component{}}
	selects := wanted(components)
	seen := map[string]bool{}
	for _, tag := range stream.Spec.Tags {
		if seen[tag.Name] {
			if selects(tag.Name) {
				return nil, malformed("%s has two tags %q", imageReferences, tag.Name)
			}
			continue
		}
		seen[tag.Name] = true
		if !selects(tag.Name) {
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
	if r.NodeImages, err = readNodeImages(files); err != nil {
		return nil, err
	}
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

// checkVersion also keeps versions to a length at which they can be shown.
func checkVersion(version string) error {
	if len(version) > maxVersionBytes {
		return fmt.Errorf("%q… is longer than %d bytes", version[:32], maxVersionBytes)
	}
	if _, err := semver.Parse(version); err != nil {
		return fmt.Errorf("%q is no semantic version: %w", version, err)
	}
	return nil
}

// CheckPinned returns why a component can't have this image, nil if it can: it has to be named by digest.
func CheckPinned(image string) error {
	if len(image) > maxReferenceBytes {
		return fmt.Errorf("image %q… is longer than %d bytes", image[:64], maxReferenceBytes)
	}
	if _, err := name.NewDigest(image); err != nil {
		return fmt.Errorf("%q isn't an image by digest", image)
	}
	return nil
}

func parseTag(tag tagReference) (Component, error) {
	if tag.Name == "" {
		return Component{}, malformed("%s has a tag without a name", imageReferences)
	}
	if tag.From == nil || tag.From.Kind != "DockerImage" {
		return Component{}, malformed("tag %s in %s isn't from a DockerImage", tag.Name, imageReferences)
	}
	if err := CheckPinned(tag.From.Name); err != nil {
		return Component{}, malformed("tag %s in %s: %v", tag.Name, imageReferences, err)
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
		if err := checkVersion(version); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if old, ok := versions[name]; ok && old != version {
			return nil, fmt.Errorf("%s is both %s and %s", name, old, version)
		}
		versions[name] = version
	}
	return versions, nil
}
