// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Resolve returns ref by digest, under its source's name: "registry.example/release@sha256:…". A reference that names a digest
// already needs no request; for a tag the mirrors are asked, then the source.
func Resolve(ctx context.Context, ref string, opts Options) (string, error) {
	reference, err := parseReference(opResolving, ref)
	if err != nil {
		return "", err
	}
	if digest, ok := reference.(name.Digest); ok {
		return digest.Name(), nil
	}
	var found v1.Hash
	err = opts.each(ctx, opResolving, reference, func(ctx context.Context, s *session) error {
		found, err = s.digest(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	return reference.Context().Digest(found.String()).Name(), nil
}

// Read pulls the release image that ref (a tag or a digest) names.
func Read(ctx context.Context, ref string, opts Options) (*Release, error) {
	reference, err := parseReference(opPulling, ref)
	if err != nil {
		return nil, err
	}
	return read(ctx, reference, opts)
}

// ReadDigest is Read for a reference by digest, as Resolve returns it; any other is an error.
func ReadDigest(ctx context.Context, ref string, opts Options) (*Release, error) {
	reference, err := parseReference(opPulling, ref)
	if err != nil {
		return nil, err
	}
	if _, ok := reference.(name.Digest); !ok {
		return nil, &Error{Reason: ReasonInvalidReference, Op: opPulling, Ref: ref, Detail: "it doesn't name a digest"}
	}
	return read(ctx, reference, opts)
}

// read verifies the signature before it reads anything of the image.
func read(ctx context.Context, reference name.Reference, opts Options) (*Release, error) {
	ctx, cancel := context.WithTimeout(ctx, opts.timeout())
	defer cancel()
	reference, unverified, err := opts.verified(ctx, reference)
	if err != nil {
		return nil, err
	}
	var release *Release
	err = opts.each(ctx, opPulling, reference, func(ctx context.Context, s *session) error {
		digest, files, err := s.pull(ctx)
		if err != nil {
			return err
		}
		image := reference.Context().Digest(digest.String()).Name()
		if release, err = parse(image, files, opts.Components); err != nil {
			return err
		}
		release.Digest = digest.String()
		release.ServedBy, release.Unverified = s.repository.Name(), unverified
		return nil
	})
	if err != nil {
		return nil, err
	}
	return release, nil
}

func parseReference(op, ref string) (name.Reference, error) {
	var reference name.Reference
	var err error
	// Not name.ParseReference: its error doesn't name the problem.
	if strings.Contains(ref, "@") {
		reference, err = name.NewDigest(ref)
	} else {
		reference, err = name.NewTag(ref)
	}
	if err != nil {
		return nil, &Error{Reason: ReasonInvalidReference, Op: op, Ref: shorten(ref), Detail: shorten(err.Error()), Err: err}
	}
	return reference, nil
}

// each calls do for the mirrors of reference and then for its source, until one succeeds. An error's Reason decides
// whether to try the next one.
func (o Options) each(ctx context.Context, op string, reference name.Reference, do func(context.Context, *session) error) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout())
	defer cancel()

	var failed []*Error
	places := o.places(reference.Context())
	for i, place := range places {
		err := func() error {
			// A repository that hangs may not take the time of those after it.
			ctx, cancel := context.WithTimeout(ctx, share(ctx, len(places)-i))
			defer cancel()
			s, err := o.open(ctx, place, reference)
			if err != nil {
				return err
			}
			return do(ctx, s)
		}()
		if err == nil {
			return nil
		}
		var e *Error
		if !errors.As(err, &e) {
			e = &Error{Reason: ReasonPayloadMalformed, Detail: shorten(err.Error()), Err: err}
		}
		e.Op, e.Ref = op, reference.String()
		if e.Reason == ReasonPayloadMalformed || e.Reason == ReasonPayloadTooLarge {
			return e
		}
		failed = append(failed, e)
		if ctx.Err() != nil {
			break
		}
	}
	return merge(failed, places)
}

func (o Options) timeout() time.Duration {
	if o.Timeout <= 0 {
		return DefaultTimeout
	}
	return o.Timeout
}

func share(ctx context.Context, among int) time.Duration {
	deadline, _ := ctx.Deadline() // each has set one
	return time.Until(deadline) / time.Duration(among)
}

// digest resolves the tag.
func (s *session) digest(ctx context.Context) (v1.Hash, error) {
	ctx = withBodyLimit(ctx, maxManifestBytes)
	if d, err := s.puller.Head(ctx, s.reference); err == nil {
		return d.Digest, nil
	}
	// Some registries answer HEAD badly, and its errors never say why.
	d, err := s.puller.Get(ctx, s.reference)
	if err != nil {
		return v1.Hash{}, s.explain(ctx, err)
	}
	return d.Digest, nil
}

// pull returns the digest of the reference and the files in its release-manifests.
func (s *session) pull(ctx context.Context) (v1.Hash, *overlay, error) {
	digest, manifest, err := s.manifest(ctx)
	if err != nil {
		return v1.Hash{}, nil, err
	}
	if n := len(manifest.Layers); n > maxLayers {
		return v1.Hash{}, nil, &Error{Reason: ReasonPayloadTooLarge, Detail: fmt.Sprintf("it has %d layers, more than %d", n, maxLayers)}
	}
	files := newOverlay(s.selects)
	pulled, unpacked := s.maxBytes, s.maxBytes
	for i, layer := range slices.Backward(manifest.Layers) {
		if err := s.layer(ctx, layer, files, &pulled, &unpacked); err != nil {
			var e *Error
			if errors.As(err, &e) {
				e.Detail = fmt.Sprintf("layer %d of %d: %s", i+1, len(manifest.Layers), e.Detail)
				if _, ok := files.files[imageReferences]; !ok && e.Reason == ReasonPayloadTooLarge {
					e.Detail += "; no layer above it has " + directory + "/" + imageReferences + ": is it a release image?"
				}
			}
			return v1.Hash{}, nil, err
		}
		if files.closed {
			break
		}
	}
	return digest, files, nil
}

// manifest returns the digest that the reference stands for, and the manifest of the image for our platform.
func (s *session) manifest(ctx context.Context) (v1.Hash, *v1.Manifest, error) {
	ctx = withBodyLimit(ctx, maxManifestBytes)
	top, err := s.get(ctx, s.reference)
	if err != nil {
		return v1.Hash{}, nil, err
	}
	mediaType, err := declaredType(top.MediaType, top.Manifest)
	if err != nil {
		return v1.Hash{}, nil, err
	}
	content := top.Manifest
	if mediaType.IsIndex() {
		child, err := s.choose(content)
		if err != nil {
			return v1.Hash{}, nil, err
		}
		d, err := s.get(ctx, s.repository.Digest(child.String()))
		if err != nil {
			return v1.Hash{}, nil, err
		}
		if mediaType, err = declaredType(d.MediaType, d.Manifest); err != nil {
			return v1.Hash{}, nil, err
		}
		content = d.Manifest
	}
	if !mediaType.IsImage() {
		return v1.Hash{}, nil, malformed("its index names another index where an image is due")
	}
	manifest, err := parseManifest(content)
	if err != nil {
		return v1.Hash{}, nil, err
	}
	return top.Digest, manifest, nil
}

// get returns a manifest whose digest is right. The library believes a registry's word for it when that claims the content to be of schema
// 1, so that a mirror could serve anything under any digest.
func (s *session) get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	d, err := s.puller.Get(ctx, ref)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	digest, _, err := v1.SHA256(bytes.NewReader(d.Manifest))
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	wanted := d.Digest.String()
	if byDigest, ok := ref.(name.Digest); ok {
		wanted = byDigest.DigestStr()
	}
	if digest.String() != wanted {
		return nil, s.explain(ctx, fmt.Errorf("the manifest's digest %s does not match %s", digest, wanted))
	}
	return d, nil
}

// choose returns the image for the platform asked for, else for this machine's architecture, else for amd64.
func (s *session) choose(index []byte) (v1.Hash, error) {
	images, err := parseIndex(index)
	if err != nil {
		return v1.Hash{}, err
	}
	preferred := []v1.Platform{{OS: "linux", Architecture: goruntime.GOARCH}, {OS: "linux", Architecture: "amd64"}}
	if s.platform != nil {
		preferred = []v1.Platform{*s.platform}
	}
	for _, want := range preferred {
		for _, image := range images {
			if image.Platform == nil || !image.Platform.Satisfies(want) {
				continue
			}
			if image.Digest == (v1.Hash{}) {
				return v1.Hash{}, malformed("its index has an image for %s without a digest", want.String())
			}
			return image.Digest, nil
		}
	}
	return v1.Hash{}, malformed("its index has no image for %s; it has %s", preferred[0].String(), enumerate(platforms(images), 10))
}

// Platforms returns the platforms of an image, such as linux/amd64: those of its index, or the one in its config.
func Platforms(ctx context.Context, image string, opts Options) (found []string, err error) {
	reference, err := parseReference(opReading, image)
	if err != nil {
		return nil, err
	}
	err = opts.each(ctx, opReading, reference, func(ctx context.Context, s *session) error {
		ctx = withBodyLimit(ctx, maxManifestBytes)
		top, err := s.get(ctx, s.reference)
		if err != nil {
			return err
		}
		if mediaType, err := declaredType(top.MediaType, top.Manifest); err != nil {
			return err
		} else if mediaType.IsIndex() {
			images, err := parseIndex(top.Manifest)
			found = platforms(images)
			return err
		}
		manifest, err := parseManifest(top.Manifest)
		if err != nil {
			return err
		}
		content, err := s.blob(ctx, manifest.Config, maxManifestBytes, "of its config")
		if err != nil {
			return err
		}
		config := v1.Platform{}
		err = json.Unmarshal(content, &config)
		found = platforms([]v1.Descriptor{{Platform: &config}})
		return err
	})
	return found, err
}

// platforms names the platforms of an index's images. Attestations are of the platform unknown.
func platforms(images []v1.Descriptor) (names []string) {
	for _, image := range images {
		if p := image.Platform; p != nil && p.OS != "" && p.OS != "unknown" {
			names = append(names, p.OS+"/"+p.Architecture)
		}
	}
	return names
}

// layer adds one layer to files. pulled and unpacked are the remaining bounds.
func (s *session) layer(ctx context.Context, layer v1.Descriptor, files *overlay, pulled, unpacked *int64) error {
	switch layer.MediaType {
	case types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer, types.DockerUncompressedLayer:
	default:
		return malformed("media type %q isn't that of a layer of an image", shorten(string(layer.MediaType)))
	}
	if layer.Size < 0 || layer.Size > *pulled {
		return &Error{Reason: ReasonPayloadTooLarge, Detail: fmt.Sprintf("pulling it would take more than %s in all", megabytes(s.maxBytes))}
	}
	blobs, err := s.puller.Layer(withBodyLimit(ctx, layer.Size), s.repository.Digest(layer.Digest.String()))
	if err != nil {
		return s.explain(ctx, err)
	}
	body, err := blobs.Compressed()
	if err != nil {
		return s.explain(ctx, err)
	}
	defer body.Close()

	blob := &source{r: body}
	err = func() error {
		stream, err := unpack(&budget{r: blob, remaining: pulled, limit: s.maxBytes, what: "to pull"})
		if err != nil {
			return err
		}
		defer stream.Close()
		bounded := &budget{r: stream, remaining: unpacked, limit: s.maxBytes, what: "unpacked"}
		if err := files.add(bounded); err != nil {
			return err
		}
		// Bytes after the archive's end count for the digest and the bounds too.
		if _, err := io.Copy(io.Discard, bounded); err != nil {
			return tarError(err)
		}
		return nil
	}()
	// Content that doesn't match its digest is the registry's fault, whatever it looks like: so it is read to its end, within
	// the size that its descriptor states.
	if !errors.Is(err, errTooLarge) {
		_, _ = io.Copy(io.Discard, blob)
	}
	switch {
	case blob.err != nil:
		return s.explain(ctx, blob.err)
	case err != nil:
		return refuse(err, "%v", err)
	}
	return nil
}

// source remembers the error of the stream it reads, which a decoder above it may have replaced by its own.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}
