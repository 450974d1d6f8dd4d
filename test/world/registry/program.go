// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// User is the one that packed programs run as: what "nonroot" means in distroless images, as user:group.
const User = "65532:65532"

// PackProgram makes an image with one static binary at /<entrypoint> and nothing else: no base image, no shell, user 65532. It is
// deterministic, and its layer isn't compressed: it travels over loopback only. The image reads the file whenever it is
// pushed, so binary must stay as it is until then.
func PackProgram(binary, entrypoint string, labels map[string]string) (v1.Image, error) {
	return pack(binary, entrypoint, labels, func(layer v1.Layer) (v1.Layer, error) { return layer, nil })
}

// PackCompressed is PackProgram with a compressed layer, which stays in memory.
func PackCompressed(binary, entrypoint string, labels map[string]string) (v1.Image, error) {
	return pack(binary, entrypoint, labels, func(layer v1.Layer) (v1.Layer, error) {
		return tarball.LayerFromOpener(layer.Uncompressed, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	})
}

func pack(binary, entrypoint string, labels map[string]string, compress func(v1.Layer) (v1.Layer, error)) (v1.Image, error) {
	if entrypoint == "" || path.Base(entrypoint) != entrypoint {
		return nil, fmt.Errorf("packing %s: entrypoint %q must be a file's name", binary, entrypoint)
	}
	architecture, err := staticArchitecture(binary)
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", binary, err)
	}
	plain, err := newProgramLayer(binary, entrypoint)
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", binary, err)
	}
	layer, err := compress(plain)
	if err != nil {
		return nil, fmt.Errorf("compressing %s: %w", binary, err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: architecture, RootFS: v1.RootFS{Type: "layers"}, Config: v1.Config{
		Entrypoint: []string{"/" + entrypoint},
		User:       User,
		WorkingDir: "/",
		Labels:     maps.Clone(labels),
	}})
	if err != nil {
		return nil, fmt.Errorf("packing %s: writing the config: %w", binary, err)
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, fmt.Errorf("packing %s: adding its layer: %w", binary, err)
	}
	return img, nil
}

// staticArchitecture returns the architecture of a binary that runs without anything beside it.
func staticArchitecture(binary string) (string, error) {
	file, err := elf.Open(binary)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("it is linked dynamically, and an image of it alone couldn't run; build it with CGO_ENABLED=0")
		}
	}
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("it is for machine %s, neither amd64 nor arm64", file.Machine)
}

// programLayer is a layer that is streamed from the binary's file each time, so that it is never in memory as a whole.
type programLayer struct {
	binary        string
	head, tail    []byte // of the tar archive, around the file's content
	digest        v1.Hash
	size, content int64
}

var _ v1.Layer = (*programLayer)(nil)

func newProgramLayer(binary, entrypoint string) (*programLayer, error) {
	info, err := os.Stat(binary)
	if err != nil {
		return nil, err
	}
	l := &programLayer{binary: binary, content: info.Size()}
	var head bytes.Buffer
	header := &tar.Header{Typeflag: tar.TypeReg, Name: entrypoint, Mode: 0o555, Size: info.Size(), Format: tar.FormatPAX}
	if err := tar.NewWriter(&head).WriteHeader(header); err != nil {
		return nil, err
	}
	const block = 512
	l.head = head.Bytes()
	l.tail = make([]byte, (block-l.content%block)%block+2*block)
	stream, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if l.digest, l.size, err = v1.SHA256(stream); err != nil {
		return nil, err
	}
	return l, nil
}

// Uncompressed returns the tar archive.
func (l *programLayer) Uncompressed() (io.ReadCloser, error) {
	file, err := os.Open(l.binary)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(l.head), io.LimitReader(file, l.content), bytes.NewReader(l.tail)), file}, nil
}

// Compressed returns the tar archive as well: the layer's media type declares that it isn't compressed.
func (l *programLayer) Compressed() (io.ReadCloser, error) { return l.Uncompressed() }

// Digest returns the archive's digest.
func (l *programLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID returns the same.
func (l *programLayer) DiffID() (v1.Hash, error) { return l.digest, nil }

// Size returns the archive's size in bytes.
func (l *programLayer) Size() (int64, error) { return l.size, nil }

// MediaType is that of an uncompressed layer.
func (l *programLayer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }
