// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/autonode-io/autonode/test/world/registry"
)

const (
	sourceURL = "https://github.com/autonode-io/autonode"
	// emptyMediaType is of a config without content.
	emptyMediaType types.MediaType = "application/vnd.oci.empty.v1+json"
)

// repository is one repository of a registry, and one OCI layout in the release.
type repository struct {
	name   string
	layout layout.Path
	tagged []tagged
	// attached are what refers to the images, in order.
	attached []attachment
}

// tagged is an image or an index of images.
type tagged struct {
	tag    string
	digest v1.Hash
	image  v1.Image
	index  v1.ImageIndex
}

func (t tagged) taggable() remote.Taggable {
	if t.index != nil {
		return t.index
	}
	return t.image
}

// repository returns the repository of that name, with an empty layout if it is new.
func (r *release) repository(of string) (*repository, error) {
	for _, known := range r.repositories {
		if known.name == of {
			return known, nil
		}
	}
	written, err := layout.Write(filepath.Join(r.Output, "images", of), empty.Index)
	if err != nil {
		return nil, fmt.Errorf("making the OCI layout of %s: %w", of, err)
	}
	made := &repository{name: of, layout: written}
	r.repositories = append(r.repositories, made)
	return made, nil
}

// add writes an image or an index into the layout.
func (r *release) add(of string, t tagged) error {
	to, err := r.repository(of)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": t.tag})
	if t.index != nil {
		t.digest, err = t.index.Digest()
		err = errors.Join(err, to.layout.AppendIndex(t.index, named))
	} else {
		t.digest, err = t.image.Digest()
		err = errors.Join(err, to.layout.AppendImage(t.image, named))
	}
	if err != nil {
		return fmt.Errorf("writing %s:%s: %w", of, t.tag, err)
	}
	to.tagged = append(to.tagged, t)
	r.subjects = append(r.subjects, subject{path.Join(r.Prefix, of), t.digest.Hex})
	return nil
}

// packImages makes an index of images, one for each platform, of each program that is deployed.
func (r *release) packImages(context.Context) error {
	for _, program := range []string{operatorProgram, karpenterProgram} {
		labels := r.labels(program)
		index := mutate.Annotations(empty.Index, labels).(v1.ImageIndex)
		for _, p := range r.Platforms.Images {
			file := r.program(p, program)
			image, err := pack(file, program, labels)
			if err != nil {
				return err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}},
			})
			digest, err := image.Digest()
			if err != nil {
				return fmt.Errorf("packing %s for %s: %w", program, p, err)
			}
			r.boms = append(r.boms, bom{program: program, platform: p, file: file, image: &digest})
			r.subjects = append(r.subjects, subject{path.Join(r.Prefix, program), digest.Hex})
		}
		if err := r.add(program, tagged{tag: r.Version, index: index}); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) labels(title string) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title": title, "org.opencontainers.image.version": r.Version,
		"org.opencontainers.image.source": sourceURL, "org.opencontainers.image.licenses": "Apache-2.0",
	}
	if r.commit != "" {
		labels["org.opencontainers.image.revision"] = r.commit
	}
	return labels
}

// pack makes an image of one program, compressed.
func pack(file, program string, labels map[string]string) (v1.Image, error) {
	plain, err := registry.PackProgram(file, program, labels)
	if err != nil {
		return nil, err
	}
	layers, err := plain.Layers()
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", file, err)
	}
	config, err := plain.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", file, err)
	}
	compressed := config.DeepCopy()
	compressed.RootFS.DiffIDs, compressed.History = nil, nil
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.ConfigFile(image, compressed); err != nil {
		return nil, fmt.Errorf("packing %s: %w", file, err)
	}
	for _, layer := range layers {
		gzipped, err := tarball.LayerFromOpener(layer.Uncompressed, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, fmt.Errorf("compressing %s: %w", file, err)
		}
		if image, err = mutate.AppendLayers(image, gzipped); err != nil {
			return nil, fmt.Errorf("packing %s: %w", file, err)
		}
	}
	return image, nil
}

// attachment is an image without a file system, which refers to another one: an SBOM, a provenance, a signature.
type attachment struct {
	config, content v1.Layer
	manifest        []byte
	descriptor      v1.Descriptor
}

// RawManifest implements remote.Taggable.
func (a attachment) RawManifest() ([]byte, error) { return a.manifest, nil }

// MediaType implements remote.Taggable.
func (a attachment) MediaType() (types.MediaType, error) { return a.descriptor.MediaType, nil }

// artifact is a manifest with the artifact type that the library's lacks.
type artifact struct {
	v1.Manifest
	ArtifactType types.MediaType `json:"artifactType,omitempty"`
}

// attach adds something that refers to an image of the repository. A config of artifactType says what it is to registries without
// referrers, too.
func (repo *repository) attach(image v1.Hash, config, artifactType types.MediaType, content []byte, annotations map[string]string) error {
	var target *v1.Descriptor
	for _, t := range repo.tagged {
		descriptor, err := partial.Descriptor(t.taggable().(partial.Describable))
		if err != nil {
			return fmt.Errorf("describing %s:%s: %w", repo.name, t.tag, err)
		}
		if descriptor.Digest == image {
			target = descriptor
		}
		if t.index == nil {
			continue
		}
		manifest, err := t.index.IndexManifest()
		if err != nil {
			return fmt.Errorf("describing %s:%s: %w", repo.name, t.tag, err)
		}
		for _, child := range manifest.Manifests {
			if child.Digest == image {
				target = &child
			}
		}
	}
	if target == nil {
		return fmt.Errorf("%s has no image %s to attach a %s to", repo.name, image, artifactType)
	}
	made := attachment{config: static.NewLayer([]byte("{}"), config), content: static.NewLayer(content, artifactType)}
	described, err := partial.Descriptor(made.config)
	if err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	layer, err := partial.Descriptor(made.content)
	if err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	made.manifest, err = json.Marshal(artifact{ArtifactType: artifactType, Manifest: v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: *described, Layers: []v1.Descriptor{*layer}, Annotations: annotations,
		Subject: &v1.Descriptor{MediaType: target.MediaType, Size: target.Size, Digest: target.Digest},
	}})
	if err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	made.descriptor = v1.Descriptor{MediaType: types.OCIManifestSchema1, ArtifactType: string(artifactType)}
	if made.descriptor.Digest, made.descriptor.Size, err = v1.SHA256(bytes.NewReader(made.manifest)); err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	for _, blob := range []v1.Layer{made.config, made.content} {
		if err := repo.writeLayer(blob); err != nil {
			return err
		}
	}
	if err := repo.layout.WriteBlob(made.descriptor.Digest, io.NopCloser(bytes.NewReader(made.manifest))); err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	if err := repo.layout.AppendDescriptor(made.descriptor); err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	repo.attached = append(repo.attached, made)
	return nil
}

func (repo *repository) writeLayer(blob v1.Layer) error {
	digest, err := blob.Digest()
	if err != nil {
		return fmt.Errorf("digesting an attachment of %s: %w", repo.name, err)
	}
	content, err := blob.Uncompressed()
	if err != nil {
		return fmt.Errorf("reading an attachment of %s: %w", repo.name, err)
	}
	if err := repo.layout.WriteBlob(digest, content); err != nil {
		return fmt.Errorf("writing an attachment of %s: %w", repo.name, err)
	}
	return nil
}

// push writes every repository to the registry: first the images, then what refers to them, and last the tags, so that nobody
// gets an image by tag before its signature.
func (r *release) push(ctx context.Context) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("autonode-dev")}
	repositories := make([]name.Repository, len(r.repositories))
	for i, from := range r.repositories {
		var err error
		if repositories[i], err = name.NewRepository(path.Join(r.Prefix, from.name), name.StrictValidation); err != nil {
			return fmt.Errorf("naming the repository of %s: %w", from.name, err)
		}
		if err := from.unclaimed(repositories[i], options); err != nil {
			return err
		}
	}
	for i, from := range r.repositories {
		if err := from.push(repositories[i], options); err != nil {
			return fmt.Errorf("repository %s: %w", repositories[i], err)
		}
	}
	for i, from := range r.repositories {
		for _, t := range from.tagged {
			if err := remote.Tag(repositories[i].Tag(t.tag), t.taggable(), options...); err != nil {
				return fmt.Errorf("tagging %s:%s: %w", repositories[i], t.tag, err)
			}
		}
	}
	return nil
}

// unclaimed fails if one of the tags already is another image: what was released stays.
func (repo *repository) unclaimed(to name.Repository, options []remote.Option) error {
	for _, t := range repo.tagged {
		there, err := remote.Head(to.Tag(t.tag), options...)
		var answer *transport.Error
		switch {
		case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		case err != nil:
			return fmt.Errorf("looking for %s:%s: %w", to, t.tag, err)
		case there.Digest != t.digest:
			return fmt.Errorf("%s:%s already is %s, and this build gives %s: choose another version", to, t.tag, there.Digest, t.digest)
		}
	}
	return nil
}

func (repo *repository) push(to name.Repository, options []remote.Option) error {
	for _, t := range repo.tagged {
		ref := to.Digest(t.digest.String())
		var err error
		if t.index != nil {
			err = remote.WriteIndex(ref, t.index, options...)
		} else {
			err = remote.Write(ref, t.image, options...)
		}
		if err != nil {
			return fmt.Errorf("pushing %s: %w", t.tag, err)
		}
	}
	for _, a := range repo.attached {
		if err := cmp.Or(remote.WriteLayer(to, a.config, options...), remote.WriteLayer(to, a.content, options...)); err != nil {
			return fmt.Errorf("pushing what refers to an image: %w", err)
		}
		if err := remote.Put(to.Digest(a.descriptor.Digest.String()), a, options...); err != nil {
			return fmt.Errorf("pushing what refers to an image: %w", err)
		}
	}
	return nil
}
