// SPDX-License-Identifier: Apache-2.0

// Package nodeimage reads the node images that release payloads name.
package nodeimage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/blang/semver/v4"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
)

// maxFileSize is in bytes. A ConfigMap is smaller.
const maxFileSize = 4 << 20

// Images of one architecture: by infrastructure, then by variant, which is a region or a format.
type Images map[string]map[string]string

// Get returns an image. Without a variant it returns the only one.
func (i Images) Get(infrastructure, variant string) (string, bool) {
	variants := i[infrastructure]
	if name, ok := variants[variant]; ok || variant != "" || len(variants) != 1 {
		return name, ok
	}
	for _, name := range variants {
		return name, true
	}
	return "", false
}

// release holds one payload's images, for nodes of its version, by architecture.
type release struct {
	Version string            `json:"version"`
	Release string            `json:"release"` // by digest; empty of an operator that doesn't write it
	Images  map[string]Images `json:"images"`

	version semver.Version
}

// File reads images from a JSON file, a list of {version, images}, and watches it. A missing file has no images; on a
// malformed one, the last valid content stays. It is a manager.Runnable.
type File struct {
	*filewatch.File
	releases atomic.Pointer[[]release] // the newest first
}

// NewFile reads a file for the first time. Without a path there are no images.
func NewFile(path string) *File {
	f := &File{}
	f.releases.Store(&[]release{})
	f.File = filewatch.NewFile(path, maxFileSize, func(ctx context.Context, raw []byte, err error) bool {
		var releases []release
		if err == nil {
			releases, err = parse(raw)
		}
		if err != nil {
			// Log only: the operator writes this file, and no user can correct it.
			log.FromContext(ctx).Error(err, "reading node images; keeping the previous ones", "file", path)
			return false
		}
		f.releases.Store(&releases)
		return true
	})
	return f
}

// For returns the images for nodes of a version, with or without a leading v, and an architecture. Images of that
// version come first, then the newest of no newer minor version: an image may contain a kubelet, and a kubelet must
// not be newer than its API server.
func (f *File) For(version, architecture string) Images {
	return f.ForRelease("", version, architecture)
}

// ForRelease does so for nodes of a release, by digest: of two with that version, its own images come first.
func (f *File) ForRelease(image, version, architecture string) Images {
	wanted, err := semver.Parse(strings.TrimPrefix(version, "v"))
	if err != nil {
		return nil
	}
	var found *release
	for _, r := range *f.releases.Load() {
		switch {
		case r.version.EQ(wanted) && (image == "" || r.Release == "" || r.Release == image):
			return r.Images[architecture]
		case found == nil && (r.version.Major < wanted.Major || r.version.Major == wanted.Major && r.version.Minor <= wanted.Minor):
			found = &r
		}
	}
	if found == nil {
		return nil
	}
	return found.Images[architecture]
}

func parse(raw []byte) ([]release, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var releases []release
	if err := json.Unmarshal(raw, &releases); err != nil {
		return nil, fmt.Errorf("it isn't a list of {version, images}: %w", err)
	}
	for i := range releases {
		var err error
		if releases[i].version, err = semver.Parse(strings.TrimPrefix(releases[i].Version, "v")); err != nil {
			return nil, fmt.Errorf("entry %d: version %q: %w", i+1, releases[i].Version, err)
		}
	}
	slices.SortStableFunc(releases, func(a, b release) int { return b.version.Compare(a.version) })
	return releases, nil
}
