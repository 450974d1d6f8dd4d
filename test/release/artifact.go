// SPDX-License-Identifier: Apache-2.0

package release

import (
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

// artifactFiles are an artifact with a config of a media type of its own: what a chart is in a registry, for example.
type artifactFiles struct {
	config   []byte
	layers   map[v1.Hash]v1.Layer
	manifest []byte
}

var _ partial.CompressedImageCore = artifactFiles{}

// newArtifact makes an image of files.
func newArtifact(config blob, artifactType types.MediaType, annotations map[string]string, blobs ...blob) (v1.Image, error) {
	made := artifactFiles{config: config.bytes, layers: map[v1.Hash]v1.Layer{}}
	describe := func(c blob) (v1.Descriptor, error) {
		layer := static.NewLayer(c.bytes, c.mediaType)
		described, err := partial.Descriptor(layer)
		if err != nil {
			return v1.Descriptor{}, fmt.Errorf("describing a %s: %w", c.mediaType, err)
		}
		described.Annotations = c.annotations
		made.layers[described.Digest] = layer
		return *described, nil
	}
	manifest := artifact{ArtifactType: artifactType, Manifest: v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: annotations}}
	var err error
	if manifest.Config, err = describe(config); err != nil {
		return nil, err
	}
	for _, c := range blobs {
		described, err := describe(c)
		if err != nil {
			return nil, err
		}
		manifest.Layers = append(manifest.Layers, described)
	}
	if made.manifest, err = json.Marshal(manifest); err != nil {
		return nil, fmt.Errorf("encoding the manifest of an artifact: %w", err)
	}
	return partial.CompressedToImage(made)
}

// RawConfigFile implements partial.CompressedImageCore.
func (f artifactFiles) RawConfigFile() ([]byte, error) { return f.config, nil }

// MediaType implements partial.CompressedImageCore.
func (f artifactFiles) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest implements partial.CompressedImageCore.
func (f artifactFiles) RawManifest() ([]byte, error) { return f.manifest, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (f artifactFiles) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	layer, ok := f.layers[digest]
	if !ok {
		return nil, fmt.Errorf("the artifact has no blob %s", digest)
	}
	return layer, nil
}
