// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	. "github.com/onsi/gomega"
)

func TestLayers(t *testing.T) {
	dir := func(file string) string { return "release-manifests/" + file }
	good := releaseFiles(nil)
	base := layerOf(t, tarEntry{name: "etc/os-release", content: "an operating system"})
	with := func(replace map[string]string) v1.Layer { return layerOf(t, releaseFiles(replace)...) }
	newer := stream(tag(component, "kubernetes=1.99.0"))

	for name, c := range map[string]struct {
		layers []v1.Layer // the lowest first
		// node and crds are what the component is expected to have; want is an error's text.
		node string
		crds []string
		want string
		// pulled is how many layers may be pulled at most; zero: all.
		pulled int
	}{
		"When the release is in the top layer, it should pull that alone": {
			layers: []v1.Layer{base, with(nil)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}, pulled: 1},
		"When the release lies below others, it should be found": {
			layers: []v1.Layer{base, with(nil), layerOf(t, tarEntry{name: "a", content: "b"})}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}, pulled: 2},
		"When an upper layer replaces a file, it should win": {
			layers: []v1.Layer{base, with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer})},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}, pulled: 2},
		"When an upper layer replaces both files, the CRDs below should still count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer}, tarEntry{name: dir("release-metadata"),
				content: `{"kind":"cincinnati-metadata-v0","version":"1.36.3"}`})},
			node: "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When an upper layer adds a CRD, both should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("0000_50_karpenter-clusterapi_x.yaml"), content: string(crd("xs"))})},
			node:   "1.36.3", crds: []string{"nodepools.karpenter.sh", "xs.karpenter.sh"}},
		"When the files are spread over layers, it should find all of them": {
			layers: []v1.Layer{layerOf(t, good[1]), layerOf(t, good[2]), layerOf(t, good[3])}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a whiteout removes a CRD, it should be gone": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh.0000_50_karpenter-clusterapi_nodepools.yaml")})}, node: "1.36.3"},
		"When a whiteout is beside a file of its name, the file should stay": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer}, tarEntry{name: dir(".wh.image-references")})},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When a whiteout removes image-references, it should say so": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh.image-references")})}, want: "image-references was removed or is no regular file"},
		"When the directory is opaque, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh..wh..opq")}, tarEntry{name: dir("image-references"), content: newer})},
			want:   "has no release-manifests/release-metadata", pulled: 1},
		"When the whole root is opaque, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: ".wh..wh..opq"})}, want: "it is no release image", pulled: 1},
		"When the directory is removed, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: ".wh.release-manifests"})}, want: "it is no release image", pulled: 1},
		"When the directory becomes a link, it should not be followed": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: "release-manifests", kind: tar.TypeSymlink, link: "/etc"})}, want: "it is no release image", pulled: 1},
		"When a name leads out of the image or deeper, it should be ignored": {
			layers: []v1.Layer{with(nil), layerOf(t,
				tarEntry{name: "release-manifests/../release-manifests/image-references", content: newer},
				tarEntry{name: "../release-manifests/image-references", content: newer},
				tarEntry{name: "release-manifests/deep/image-references", content: newer},
				tarEntry{name: "etc/image-references", content: newer},
			)},
			node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When names begin with ./ or /, they should mean the same": {
			layers: []v1.Layer{layerOf(t, tarEntry{name: "./" + good[1].name, content: good[1].content}, tarEntry{name: "/" + good[2].name, content: good[2].content},
				tarEntry{name: "./release-manifests/./" + strings.TrimPrefix(good[3].name, "release-manifests/"), content: good[3].content})},
			node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a name comes twice in a layer, the last should count": {
			layers: []v1.Layer{layerOf(t, append(releaseFiles(nil), tarEntry{name: dir("image-references"), content: newer})...)},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer isn't compressed, it should be read": {
			layers: []v1.Layer{static.NewLayer(tarOf(t, good...), types.OCIUncompressedLayer)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer is compressed with zstd, it should be read": {
			layers: []v1.Layer{static.NewLayer(zstdOf(t, tarOf(t, good...)), types.OCILayerZStd)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer is empty, it should be passed over": {
			layers: []v1.Layer{with(nil), static.NewLayer(nil, types.OCIUncompressedLayer)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer is no archive, it should say which": {
			layers: []v1.Layer{with(nil), static.NewLayer(bytes.Repeat([]byte("no tar"), 200), types.OCIUncompressedLayer)}, want: "layer 2 of 2: malformed: reading its tar archive"},
		"When a gzip stream is cut off, it should say so": {
			layers: []v1.Layer{static.NewLayer(gzipped(t, tarOf(t, good...))[:100], types.OCILayer)}, want: "layer 1 of 1: malformed"},
		"When a gzip header is broken, it should say so": {
			layers: []v1.Layer{static.NewLayer([]byte{0x1f, 0x8b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, types.OCILayer)}, want: "layer 1 of 1: malformed: gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer(t, nil)
			ref, _ := s.push(t, "release:1", imageOf(t, c.layers...))
			r, err := Read(t.Context(), ref, Options{})
			if c.pulled > 0 {
				g.Expect(s.count("GET /v2/release/blobs/")).To(BeNumerically("<=", c.pulled))
			}
			if c.want != "" {
				expectError(t, err, ReasonPayloadMalformed, c.want)
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Components[component].NodeVersion()).To(Equal(c.node))
			g.Expect(crdNames(r.Components[component])).To(Equal(c.crds))
		})
	}
}

func zstdOf(t testing.TB, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(content, nil)
}

// bomb is a gzip stream that unpacks to a file of that many zeros.
func bomb(t testing.TB, size int64) []byte {
	t.Helper()
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "release-manifests/zeros", Size: size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for left := size; left > 0; left -= int64(len(chunk)) {
		if _, err := w.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestBounds(t *testing.T) {
	refusal := func(t *testing.T, img v1.Image, opts Options) error {
		t.Helper()
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", img)
		_, err := Read(t.Context(), ref, opts)
		return err
	}

	t.Run("When what follows the archive unpacks to too much, it should stop there too", func(t *testing.T) {
		content := append(tarOf(t, releaseFiles(nil)...), make([]byte, 8<<20)...)
		err := refusal(t, imageOf(t, static.NewLayer(gzipped(t, content), types.OCILayer)), Options{MaxBytes: 4 << 20})
		expectError(t, err, ReasonPayloadTooLarge, "more than 4 MiB unpacked")
	})

	t.Run("When layers are large only together, the bound should hold for their sum", func(t *testing.T) {
		layers := make([]v1.Layer, 4)
		for i := range layers {
			layers[i] = layerOf(t, tarEntry{name: fmt.Sprintf("file-%d", i), content: strings.Repeat("x", 1<<20)})
		}
		expectError(t, refusal(t, imageOf(t, layers...), Options{MaxBytes: 3 << 20}), ReasonPayloadTooLarge, "3 MiB unpacked")
	})

	t.Run("When a layer is too large to pull, it should not be pulled at all", func(t *testing.T) {
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", imageOf(t, static.NewLayer(make([]byte, 2<<20), types.OCIUncompressedLayer)))
		_, err := Read(t.Context(), ref, Options{MaxBytes: 1 << 20})
		expectError(t, err, ReasonPayloadTooLarge, "would take more than 1 MiB", "is it a release image?")
		NewWithT(t).Expect(s.count("GET /v2/release/blobs/")).To(BeZero())
	})

	t.Run("When a release takes just the bytes that are allowed, it should be read", func(t *testing.T) {
		g := NewWithT(t)
		content := tarOf(t, releaseFiles(nil)...)
		layer := static.NewLayer(content, types.OCIUncompressedLayer)
		g.Expect(refusal(t, imageOf(t, layer), Options{MaxBytes: int64(len(content))})).To(Succeed())
		expectError(t, refusal(t, imageOf(t, layer), Options{MaxBytes: int64(len(content)) - 1}), ReasonPayloadTooLarge)
	})

	t.Run("When a huge file is of a component that isn't asked for, it should not be kept", func(t *testing.T) {
		file := tarEntry{name: "release-manifests/0000_50_a_b.yaml", content: strings.Repeat("#", maxFileBytes+1)}
		NewWithT(t).Expect(newOverlay(wanted([]string{"other"})).add(bytes.NewReader(tarOf(t, file)))).To(Succeed())
	})

	t.Run("When there are too many files, it should be refused", func(t *testing.T) {
		files := newOverlay(wanted(nil))
		files.entries = maxEntries - 1
		err := files.add(bytes.NewReader(tarOf(t, tarEntry{name: "a"}, tarEntry{name: "b"})))
		NewWithT(t).Expect(err).To(MatchError(errTooLarge))
	})
}

// FuzzReadLayer reads two layers, as they could come from anyone's image, and what they hold.
func FuzzReadLayer(f *testing.F) {
	good := tarOf(f, releaseFiles(nil)...)
	f.Add([]byte{}, good)
	f.Add(gzipped(f, good), []byte("x"))
	f.Add(good, tarOf(f, tarEntry{name: "release-manifests/.wh.image-references"}))
	f.Add(good, tarOf(f, tarEntry{name: "release-manifests", kind: tar.TypeSymlink, link: "/"}))
	f.Add(tarOf(f, releaseFiles(map[string]string{"image-references": stream(tag("a", "kubernetes=1.2.3,b=")), "0000_50_a_b.yaml": "a: &a [*a]"})...), []byte{})
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		const limit = 1 << 20
		left := int64(limit)
		files := newOverlay(wanted(nil))
		for _, layer := range [][]byte{upper, lower} {
			stream, err := unpack(bytes.NewReader(layer))
			if err != nil {
				return
			}
			err = files.add(&budget{r: stream, remaining: &left, limit: limit, what: "unpacked"})
			if closing := stream.Close(); err != nil || closing != nil {
				return
			}
		}
		kept := 0
		for file, content := range files.files {
			if strings.Contains(file, "/") || file == ".." {
				t.Errorf("kept %q", file)
			}
			kept += len(content)
		}
		// A hole in a file takes no bytes in the archive.
		if kept > maxKeptBytes {
			t.Errorf("kept %d bytes of at most %d", kept, maxKeptBytes)
		}
		release, err := parse("registry.example/release@sha256:0", files, nil)
		if err != nil {
			if reason := ReasonFor(err); reason != ReasonPayloadMalformed && reason != ReasonPayloadTooLarge {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		for _, name := range release.Names {
			c, err := release.Component(name)
			if err != nil {
				t.Errorf("component %q: %v", name, err)
			}
			if !strings.Contains(c.Image, "@sha256:") {
				t.Errorf("component %q has image %q", name, c.Image)
			}
		}
		if _, err := json.Marshal(release); err != nil {
			t.Errorf("encoding the release: %v", err)
		}
	})
}
