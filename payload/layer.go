// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	directory       = "release-manifests"
	imageReferences = "image-references"
	releaseMetadata = "release-metadata"

	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// manifestFile is the name of a manifest that belongs to a component: 0000_50_<component>_<anything>.yaml. A component's name has no
// underscore, so the third field is all of it.
var manifestFile = regexp.MustCompile(`^\d+_\d+_([^_]+)_.+\.(yaml|yml|json)$`)

// overlay collects the files of release-manifests/ from an image's layers, which are added from the top down.
type overlay struct {
	// wanted reports whether a component's manifests are kept.
	wanted func(component string) bool

	files   map[string][]byte // by name, without the directory
	decided map[string]bool   // names that a layer above has set, removed, or made something else than a file
	closed  bool              // layers further down can't add anything
	size    int
	entries int
	names   int // entries in release-manifests
}

func newOverlay(wanted func(string) bool) *overlay {
	return &overlay{wanted: wanted, files: map[string][]byte{}, decided: map[string]bool{}}
}

// add reads one layer's tar stream. Its errors are errTooLarge, errMalformed, or the stream's own.
func (o *overlay) add(r io.Reader) error {
	type file struct {
		regular bool
		content []byte
	}
	var (
		here    = map[string]file{} // the last entry of a name counts
		removed []string
		others  bool // manifests beside the two files
	)
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return tarError(err)
		}
		if o.entries++; o.entries > maxEntries {
			return tooMany(maxEntries, "files")
		}
		parent, name, ok := splitEntry(header.Name)
		switch {
		case !ok:
			continue
		case parent == "" && (name == opaqueWhiteout || name == whiteout+directory),
			parent == "" && name == directory && header.Typeflag != tar.TypeDir,
			parent == directory && name == opaqueWhiteout:
			o.closed = true
			continue
		case parent != directory:
			continue
		}
		if o.names++; o.names > maxFiles {
			return tooMany(maxFiles, "files in "+directory)
		}
		if strings.HasPrefix(name, whiteout) {
			removed = append(removed, strings.TrimPrefix(name, whiteout))
			continue
		}
		f := file{regular: header.Typeflag == tar.TypeReg}
		if f.regular && name != imageReferences && name != releaseMetadata {
			others = true
		}
		if f.regular && !o.decided[name] && o.keeps(name) {
			limit := maxBytesOf(name)
			if header.Size > limit {
				return fmt.Errorf("%w: %s/%s takes more than %s", errTooLarge, directory, name, megabytes(limit))
			}
			o.size += int(header.Size)
			if o.size > maxKeptBytes {
				return fmt.Errorf("%w: the files in %s take more than %s", errTooLarge, directory, megabytes(maxKeptBytes))
			}
			f.content = make([]byte, header.Size)
			if _, err := io.ReadFull(archive, f.content); err != nil {
				return tarError(err)
			}
		}
		here[name] = f
	}

	for name, f := range here {
		if o.decided[name] {
			continue
		}
		o.decided[name] = true
		if f.regular && o.keeps(name) {
			o.files[name] = f.content
		}
	}
	// A whiteout is about the layers below, so a file beside it stays.
	for _, name := range removed {
		o.decided[name] = true
	}
	// This layer is where the release was written: see the package's documentation.
	if here[imageReferences].regular && here[releaseMetadata].regular && others {
		o.closed = true
	}
	return nil
}

func (o *overlay) keeps(name string) bool {
	if name == imageReferences || name == releaseMetadata {
		return true
	}
	if bootImages.MatchString(name) {
		return true
	}
	m := manifestFile.FindStringSubmatch(name)
	return m != nil && o.wanted(m[1])
}

func maxBytesOf(name string) int64 {
	if name == imageReferences || name == releaseMetadata {
		return maxReferencesBytes
	}
	return maxFileBytes
}

// splitEntry takes the name of a tar entry apart. It is false for names that are too deep or too long to matter or lead out of the image.
func splitEntry(entry string) (parent, name string, ok bool) {
	var parts [2]string
	n := 0
	for part := range strings.SplitSeq(entry, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." || n == len(parts) || len(part) > maxNameBytes:
			return "", "", false
		}
		parts[n] = part
		n++
	}
	switch n {
	case 1:
		return "", parts[0], true
	case 2:
		return parts[0], parts[1], true
	}
	return "", "", false
}

func tarError(err error) error {
	if errors.Is(err, errTooLarge) || errors.Is(err, errMalformed) {
		return err
	}
	return fmt.Errorf("%w: reading its tar archive: %w", errMalformed, err)
}

// unpack returns a layer's tar stream, whichever of the three ways it is compressed.
func unpack(blob io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReader(blob)
	magic, _ := buffered.Peek(4) // a shorter layer is an empty or broken tar, and read as one
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		return r, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdBytes), zstd.WithDecoderMaxMemory(maxZstdBytes))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		return r.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}
