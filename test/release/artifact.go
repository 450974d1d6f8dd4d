// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blob is one file of an artifact.
type blob struct {
	mediaType   types.MediaType
	bytes       []byte
	annotations map[string]string
}

// artifact is what a registry holds beside images of programs: a chart, components, an SBOM, a provenance, a signature.
type artifact struct {
	// artifactType may be empty for one that its config's media type names.
	artifactType types.MediaType
	config       blob
	files        []blob
	annotations  map[string]string
	// subject is the image that the artifact refers to, if any.
	subject *v1.Descriptor
}

// artifactManifest has the artifact type that the library's lacks.
type artifactManifest struct {
	v1.Manifest
	ArtifactType types.MediaType `json:"artifactType,omitempty"`
}

// artifactImage is an artifact as an image.
type artifactImage struct {
	artifact
	manifest []byte
	layers   map[v1.Hash]v1.Layer
}

var _ partial.CompressedImageCore = artifactImage{}

// image makes an image of the artifact.
func (a artifact) image() (v1.Image, error) {
	made := artifactImage{artifact: a, layers: map[v1.Hash]v1.Layer{}}
	manifest := artifactManifest{ArtifactType: a.artifactType, Manifest: v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: a.annotations, Subject: a.subject,
	}}
	for i, b := range append([]blob{a.config}, a.files...) {
		layer := static.NewLayer(b.bytes, b.mediaType)
		described, err := partial.Descriptor(layer)
		if err != nil {
			return nil, fmt.Errorf("describing a %s: %w", b.mediaType, err)
		}
		described.Annotations = b.annotations
		made.layers[described.Digest] = layer
		if i == 0 {
			manifest.Config = *described
		} else {
			manifest.Layers = append(manifest.Layers, *described)
		}
	}
	var err error
	if made.manifest, err = json.Marshal(manifest); err != nil {
		return nil, fmt.Errorf("encoding the manifest of an artifact: %w", err)
	}
	return partial.CompressedToImage(made)
}

// RawConfigFile implements partial.CompressedImageCore.
func (a artifactImage) RawConfigFile() ([]byte, error) { return a.config.bytes, nil }

// MediaType implements partial.CompressedImageCore.
func (a artifactImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest implements partial.CompressedImageCore.
func (a artifactImage) RawManifest() ([]byte, error) { return a.manifest, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (a artifactImage) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	layer, ok := a.layers[digest]
	if !ok {
		return nil, fmt.Errorf("the artifact has no blob %s", digest)
	}
	return layer, nil
}

// Descriptor names the artifact type, which the library would take from the config.
func (a artifactImage) Descriptor() (*v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(a.manifest))
	return &v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: digest, Size: size, ArtifactType: string(cmp.Or(a.artifactType, a.config.mediaType)),
	}, err
}
