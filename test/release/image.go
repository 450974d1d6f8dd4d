// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
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
	remote name.Repository
	layout layout.Path
	tagged []tagged
	// attached are what refers to the images, in order.
	attached []v1.Image
}

// tagged is an image or an index of images.
type tagged struct {
	tag        string
	descriptor v1.Descriptor
	content    content
}

// content is what images and indexes have in common.
type content interface {
	partial.Describable
	remote.Taggable
}

// repository returns the repository of that name, with an empty layout if it is new.
func (r *release) repository(of string) (*repository, error) {
	for _, known := range r.repositories {
		if known.name == of {
			return known, nil
		}
	}
	pushed, err := name.NewRepository(path.Join(r.Prefix, of), name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("naming the repository of %s: %w", of, err)
	}
	written, err := layout.Write(filepath.Join(r.Output, "images", of), empty.Index)
	if err != nil {
		return nil, fmt.Errorf("making the OCI layout of %s: %w", of, err)
	}
	made := &repository{name: of, remote: pushed, layout: written}
	r.repositories = append(r.repositories, made)
	return made, nil
}

// add writes an image or an index into the layout.
func (r *release) add(of, tag string, added content) error {
	to, err := r.repository(of)
	if err != nil {
		return err
	}
	descriptor, err := partial.Descriptor(added)
	if err != nil {
		return fmt.Errorf("describing %s:%s: %w", of, tag, err)
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})
	switch added := added.(type) {
	case v1.ImageIndex:
		err = to.layout.AppendIndex(added, named)
	case v1.Image:
		err = to.layout.AppendImage(added, named)
	}
	if err != nil {
		return fmt.Errorf("writing %s:%s: %w", of, tag, err)
	}
	to.tagged = append(to.tagged, tagged{tag, *descriptor, added})
	r.subjects = append(r.subjects, subject{path.Join(r.Prefix, of), descriptor.Digest.Hex})
	return nil
}

// packImage makes an index of images of a program, one for each platform.
func (r *release) packImage(program string) error {
	labels := r.labels(program)
	index := mutate.Annotations(empty.Index, labels).(v1.ImageIndex)
	for _, p := range r.Platforms.Images {
		file := r.program(p, program)
		image, err := registry.PackCompressed(file, program, labels)
		if err != nil {
			return err
		}
		described, err := partial.Descriptor(image)
		if err != nil {
			return fmt.Errorf("packing %s for %s: %w", program, p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}},
		})
		r.boms = append(r.boms, bom{program: program, platform: p, file: file, image: described})
		r.subjects = append(r.subjects, subject{path.Join(r.Prefix, program), described.Digest.Hex})
	}
	return r.add(program, r.Version, index)
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

// attach adds something that refers to an image of the repository. A config of artifactType reports what it is to registries without
// referrers, too.
func (repo *repository) attach(to v1.Descriptor, config, artifactType types.MediaType, content []byte, annotations map[string]string) error {
	made, err := artifact{
		artifactType: artifactType, config: blob{mediaType: config, bytes: []byte("{}")}, files: []blob{{mediaType: artifactType, bytes: content}},
		annotations: annotations, subject: &v1.Descriptor{MediaType: to.MediaType, Size: to.Size, Digest: to.Digest},
	}.image()
	if err != nil {
		return err
	}
	if err := repo.layout.AppendImage(made); err != nil {
		return fmt.Errorf("attaching a %s: %w", artifactType, err)
	}
	repo.attached = append(repo.attached, made)
	return nil
}

// push writes every repository to the registry: first the images, then what refers to them, and last the tags, so that no client
// gets an image by tag before its signature.
func (r *release) push(ctx context.Context) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("autonode-dev")}
	for _, repository := range r.repositories {
		if err := repository.unclaimed(options); err != nil {
			return err
		}
	}
	for _, repository := range r.repositories {
		if err := repository.push(options); err != nil {
			return fmt.Errorf("repository %s: %w", repository.remote, err)
		}
	}
	for _, repository := range r.repositories {
		for _, t := range repository.tagged {
			if err := remote.Tag(repository.remote.Tag(t.tag), t.content, options...); err != nil {
				return fmt.Errorf("tagging %s:%s: %w", repository.remote, t.tag, err)
			}
		}
	}
	return nil
}

// unclaimed fails if one of the tags already is another image: what was released stays.
func (repo *repository) unclaimed(options []remote.Option) error {
	for _, t := range repo.tagged {
		there, err := remote.Head(repo.remote.Tag(t.tag), options...)
		var answer *transport.Error
		switch {
		case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		case err != nil:
			return fmt.Errorf("looking for %s:%s: %w", repo.remote, t.tag, err)
		case there.Digest != t.descriptor.Digest:
			return fmt.Errorf("%s:%s already is %s, and this build gives %s: choose another version",
				repo.remote, t.tag, there.Digest, t.descriptor.Digest)
		}
	}
	return nil
}

// push pushes by digest, the images first.
func (repo *repository) push(options []remote.Option) error {
	var all []content
	for _, t := range repo.tagged {
		all = append(all, t.content)
	}
	for _, a := range repo.attached {
		all = append(all, a)
	}
	for _, pushed := range all {
		digest, err := pushed.Digest()
		if err != nil {
			return fmt.Errorf("digesting what is pushed: %w", err)
		}
		if err := remote.Push(repo.remote.Digest(digest.String()), pushed, options...); err != nil {
			return fmt.Errorf("pushing %s: %w", digest, err)
		}
	}
	return nil
}
