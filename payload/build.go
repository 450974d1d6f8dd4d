// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// AnnotationVersions is the annotation on a component's tag in image-references: comma-separated name=version pairs.
	AnnotationVersions = "io.openshift.build.versions"
	// LabelRelease is the label of a release image that holds its version.
	LabelRelease = "io.openshift.release"
)

// Spec is the content of a release image.
type Spec struct {
	// Version is the release's semantic version, without a leading "v".
	Version string
	// Previous are versions from which an upgrade is meant to work.
	Previous []string
	// Components are the release's components, in any order.
	Components []ComponentSpec
	// NodeImages are those of Release; often none.
	NodeImages NodeImages
}

// ComponentSpec is one component of a release.
type ComponentSpec struct {
	// Name is lower case letters, digits and dashes: "karpenter-clusterapi".
	Name string
	// Image is the component's image by digest.
	Image string
	// Versions are the versions of the image's contents; nodes run Versions[KubernetesVersion].
	Versions map[string]string
	// CRDs are YAML or JSON documents of CustomResourceDefinitions; one element may hold several documents.
	CRDs [][]byte
}

var componentName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Build makes a release image. It is deterministic: the same Spec gives the same digest, whatever the order of
// its components, and nothing has a timestamp. A Spec that Read would reject is an *Error.
func Build(spec Spec) (v1.Image, error) {
	files, err := render(spec)
	if err != nil {
		return nil, &Error{
			Reason: ReasonPayloadMalformed, Op: opBuilding, Ref: "release " + shorten(spec.Version), Detail: shorten(err.Error()), Err: err,
		}
	}
	archive, err := archive(files)
	if err != nil {
		return nil, fmt.Errorf("writing the release's layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("compressing the release's layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	// Its content is data and the same for every platform; a platform is required nevertheless.
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Labels: map[string]string{LabelRelease: spec.Version}}})
	if err != nil {
		return nil, fmt.Errorf("writing the release's config: %w", err)
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, fmt.Errorf("adding the release's layer: %w", err)
	}
	return img, nil
}

// render returns the files of release-manifests/, read back to be sure.
func render(spec Spec) (map[string][]byte, error) {
	components := slices.SortedFunc(slices.Values(spec.Components), func(a, b ComponentSpec) int { return strings.Compare(a.Name, b.Name) })
	stream := imagev1.ImageStream{
		TypeMeta:   metav1.TypeMeta{APIVersion: imagev1.GroupVersion.String(), Kind: "ImageStream"},
		ObjectMeta: metav1.ObjectMeta{Name: spec.Version},
	}
	files := map[string][]byte{}
	for _, c := range components {
		if !componentName.MatchString(c.Name) {
			return nil, fmt.Errorf("component %q: a name is at most 63 lower case letters, digits and dashes", c.Name)
		}
		tag := imagev1.TagReference{Name: c.Name, From: &corev1.ObjectReference{Kind: "DockerImage", Name: c.Image}}
		if len(c.Versions) > 0 {
			tag.Annotations = map[string]string{AnnotationVersions: joinVersions(c.Versions)}
		}
		stream.Spec.Tags = append(stream.Spec.Tags, tag)
		for _, content := range c.CRDs {
			if err := renderCRDs(files, c.Name, content); err != nil {
				return nil, err
			}
		}
	}
	if len(spec.NodeImages) > 0 {
		file, err := spec.NodeImages.render()
		if err != nil {
			return nil, err
		}
		files[bootImagesFile] = file
	}
	for _, v := range spec.Previous {
		if _, err := semver.Parse(v); err != nil {
			return nil, fmt.Errorf("previous version %q is no semantic version: %w", v, err)
		}
	}
	var err error
	if files[imageReferences], err = json.MarshalIndent(stream, "", "  "); err != nil {
		return nil, err
	}
	about := metadata{Kind: metadataKind, Version: spec.Version, Previous: slices.Sorted(slices.Values(spec.Previous))}
	if files[releaseMetadata], err = json.MarshalIndent(about, "", "  "); err != nil {
		return nil, err
	}
	read := newOverlay(wanted(nil))
	read.files = files
	if _, err = parse("", read, nil); err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, errors.New(e.Detail)
		}
		return nil, err
	}
	return files, nil
}

func renderCRDs(files map[string][]byte, component string, content []byte) error {
	return eachDocument(content, func(document []byte) error {
		crds, err := new(crdReader).read(document)
		if err != nil {
			return fmt.Errorf("component %s: %w", component, err)
		}
		for _, crd := range crds {
			file := fmt.Sprintf("0000_50_%s_%s.yaml", component, crd.Name)
			if _, ok := files[file]; ok {
				return fmt.Errorf("component %s: CustomResourceDefinition %s is given twice", component, crd.Name)
			}
			files[file] = append(bytes.TrimSpace(document), '\n')
		}
		return nil
	})
}

func joinVersions(versions map[string]string) string {
	pairs := make([]string, 0, len(versions))
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		pairs = append(pairs, name+"="+strings.TrimPrefix(versions[name], "v"))
	}
	return strings.Join(pairs, ",")
}

func archive(files map[string][]byte) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: directory + "/", Mode: 0o755, Format: tar.FormatUSTAR}); err != nil {
		return nil, err
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: directory + "/" + file, Mode: 0o644, Size: int64(len(files[file])), Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[file]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// Push writes img to ref (a tag, or a digest that img has) and returns it by digest: "registry.example/release@sha256:…".
func Push(ctx context.Context, ref string, img v1.Image, opts Options) (string, error) {
	reference, err := parseReference(opPushing, ref)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.timeout())
	defer cancel()

	fail := func(err error) error {
		var e *Error
		if errors.As(err, &e) {
			e.Op, e.Ref = opPushing, reference.String()
		}
		return err
	}
	options, anonymous, err := opts.remote(ctx, reference.Context())
	if err != nil {
		return "", fail(err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("digesting the image for %s: %w", ref, err)
	}
	if d, ok := reference.(name.Digest); ok && d.DigestStr() != digest.String() {
		return "", &Error{Reason: ReasonInvalidReference, Op: opPushing, Ref: ref, Detail: "the image's digest is " + digest.String()}
	}
	if err := remote.Write(reference, img, options...); err != nil {
		return "", fail(explain(ctx, reference.Context().RegistryStr(), anonymous, err))
	}
	return reference.Context().Digest(digest.String()).Name(), nil
}
